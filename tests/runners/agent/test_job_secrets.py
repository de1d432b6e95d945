"""Secrets reach the ranks of a job, and nothing else: no disk where that can be avoided, no record, no log, no other job."""

import base64
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from runners.agent import job_secrets
from runners.agent.job_secrets import JobSecrets, is_own_folder, memory_folder
from runners.agent.journal import ContainerJournal
from runners.agent.portal_client import PortalClient, PortalUnavailableError
from runners.agent.reconcile import Exit, JournalEntry
from runners.host import processes
from runners.host.node_files import NodeFiles
from runners.runtime import SECRET_VARIABLES, SECRETS, CreateError
from runners.runtimes import host_config
from runners.spec import RunSpec
from tests.contents import contents_below
from tests.fake_portal import FakePortal
from tests.runners.agent_bench import NAME, AgentProcess, Bench, entry, give_code, spec_of

TOKEN = "hf_Tq/8+Zw4"
KEY = '{"username": "alice",\n "key": "0a1b2c3d4e5f"}\n'
FORMS = (TOKEN, base64.b64encode(TOKEN.encode()).decode(), quote(TOKEN, safe=""), "0a1b2c3d4e5f")
GIVEN = [
    {"name": "HF_TOKEN", "kind": "variable", "value": TOKEN},
    {"name": "kaggle.json", "kind": "file", "value": KEY},
]
NAMES = (("HF_TOKEN", "variable"), ("kaggle.json", "file"))
PRINT = b"""
import base64, os, pathlib, sys, time
from urllib.parse import quote
token, folder = os.environ["HF_TOKEN"], pathlib.Path(os.environ["SCHEDULEARN_SECRETS"])
for piece in token[:2], token[2:7], token[7:] + "\\n":
    print(piece, end="", flush=True)
print(token, base64.b64encode(token.encode()).decode(), quote(token, safe=""))
print(sorted(path.name for path in folder.iterdir()), (folder / "kaggle.json").read_text(), flush=True)
try:
    (folder / "kaggle.json").write_text("changed")
except OSError:
    print("read-only", flush=True)
while not os.path.exists("enough"):
    time.sleep(0.02)
print(token, flush=True)
"""
PRINTED = (b"***\n*** *** ***\n['kaggle.json'] ***\n\n", b"***\n")
NOSY = b"""
import os, pathlib
print(sorted(name for name in os.environ if "TOKEN" in name or "SECRET" in name))
print(pathlib.Path("/dev/shm").is_dir() and [path.name for path in pathlib.Path("/dev/shm").glob("schedulearn-*")])
"""


@pytest.fixture
def files(tmp_path: Path) -> NodeFiles:
    files = NodeFiles(tmp_path / "agent", memory=tmp_path / "memory")
    files.make()
    return files


@pytest.fixture
def secrets(files: NodeFiles, portal: FakePortal) -> JobSecrets:
    portal.secrets = list(GIVEN)
    return JobSecrets(files, ContainerJournal(files), PortalClient(portal.url, "sln_fake"))


def secret_spec(sha256: str = "0" * 64, *more: str, **fields: Any) -> RunSpec:
    return spec_of(sha256, *more, secrets=NAMES, **fields)


def holds_no_secret(*folders: Path) -> None:
    for path, content in (found for folder in folders for found in contents_below(folder)):
        assert not [form for form in FORMS if form.encode() in content], path


def test_the_folder_is_complete_and_only_for_the_jobs_user(secrets: JobSecrets, files: NodeFiles) -> None:
    secrets.place(secret_spec())
    folder = files.secrets(NAME)
    assert (folder / "variables" / "HF_TOKEN").read_text() == TOKEN
    assert (folder / "files" / "kaggle.json").read_text() == KEY
    for path in (files.secrets(NAME).parent, folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o400), path
    if os.geteuid() == 0:
        owner = host_config.owner_for(1, 0, 0).uid
        assert {path.stat().st_uid for path in folder.rglob("*")} == {owner}
        assert folder.stat().st_uid == 0


def test_it_is_fetched_once_and_removed_at_the_end(
    secrets: JobSecrets, files: NodeFiles, portal: FakePortal, tmp_path: Path
) -> None:
    secrets.place(secret_spec())
    secrets.place(secret_spec())
    assert sum(count for path, count in portal.requests.items() if path.endswith("/secrets")) == 1
    secrets.place(secret_spec("0" * 64, "sl-2-a1-0"))
    secrets.remove(NAME)
    assert not files.secrets(NAME).exists() and files.secrets("sl-2-a1-0").exists()
    secrets.remove("sl-2-a1-0")
    secrets.remove("sl-2-a1-0")
    assert not list((tmp_path / "memory").iterdir())


def test_an_agent_that_was_killed_while_it_wrote_begins_again(secrets: JobSecrets, files: NodeFiles) -> None:
    half = files.secrets(f"{NAME}.new")
    (half / "files").mkdir(parents=True)
    files.secrets(NAME).parent.chmod(0o700)
    (half / "files" / "half").write_text("x")
    secrets.place(secret_spec())
    assert [path.name for path in (files.secrets(NAME) / "files").iterdir()] == ["kaggle.json"]
    assert not half.exists()


def test_leftovers_of_ended_containers_go_when_the_agent_starts(files: NodeFiles, portal: FakePortal) -> None:
    journal = ContainerJournal(files)
    journal.begin("sl-1-a1-0", JournalEntry(1, 11, 1))
    journal.begin("sl-2-a1-0", JournalEntry(2, 21, 1, exit=Exit(0, "exited")))
    for name in ("sl-1-a1-0", "sl-2-a1-0", "sl-3-a1-0", "sl-3-a1-0.new"):
        files.secrets(name).mkdir(parents=True)
    files.secrets(NAME).parent.chmod(0o700)
    JobSecrets(files, journal, PortalClient(portal.url, "sln_fake"))
    assert [path.name for path in files.secrets(NAME).parent.iterdir()] == ["sl-1-a1-0"]


def test_a_refusal_ends_the_start(secrets: JobSecrets, portal: FakePortal) -> None:
    portal.secrets = None
    with pytest.raises(CreateError) as error:
        secrets.place(secret_spec())
    assert str(error.value) == "The secrets of the job could not be fetched: The secret HF_TOKEN was deleted."


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../../escape", "kind": "file"},
        {"name": ".hidden", "kind": "file"},
        {"name": "a/b", "kind": "file"},
        {"name": "A-B", "kind": "variable"},
        {"name": "A" * 101, "kind": "variable"},
        {"name": "HF_TOKEN\n", "kind": "variable"},
        {"kind": "socket"},
        {"kind": ["file"]},
        {"value": 5},
        {"value": "x" * 65_537},
        {"value": "nul\0"},
        {"value": "\ud800" * 6},
        {"name": "OTHER"},
    ],
)
def test_an_answer_with_anything_else_is_not_followed(files: NodeFiles, change: dict[str, Any]) -> None:
    class Portal:
        def secrets(self, container: str) -> dict[str, Any]:
            return {"secrets": [{**GIVEN[0], **change}, GIVEN[1]]}

    with pytest.raises(PortalUnavailableError) as error:
        JobSecrets(files, ContainerJournal(files), Portal()).place(secret_spec())
    assert error.value.__cause__ is None and TOKEN not in str(error.value)
    assert not files.secrets(NAME).exists()


@pytest.mark.parametrize(
    "answer", [{}, {"secrets": []}, {"secrets": GIVEN * 26}, {"secrets": {}}, {"secrets": [GIVEN[0]]}]
)
def test_an_incomplete_answer_is_not_followed(files: NodeFiles, answer: dict[str, Any]) -> None:
    class Portal:
        def secrets(self, container: str) -> dict[str, Any]:
            return answer

    with pytest.raises(PortalUnavailableError):
        JobSecrets(files, ContainerJournal(files), Portal()).place(secret_spec())


def test_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_mount", lambda path: True)
    home = tmp_path / "agent"
    folder = memory_folder(home, tmp_path)
    assert folder is not None and folder.parent == tmp_path and not folder.exists()
    folder.mkdir(mode=0o755)
    assert memory_folder(home, tmp_path) is None, "others can enter it"
    folder.chmod(0o700)
    assert memory_folder(home, tmp_path) == folder
    monkeypatch.setattr(job_secrets.os, "geteuid", lambda: 77)
    assert memory_folder(home, tmp_path) is None
    with pytest.raises(PermissionError):
        job_secrets.make_own_folder(folder)
    monkeypatch.undo()
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert not is_own_folder(folder)
    assert memory_folder(home, tmp_path / "missing") is None


def test_only_hosts_of_such_jobs_have_the_folders(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    spec = secret_spec()
    assert RunSpec.from_json(spec.to_json()) == spec
    mounts = {each["Target"]: each for each in host_config.mounts(files.folders(spec))}
    assert mounts[SECRETS]["ReadOnly"] and mounts[SECRET_VARIABLES]["ReadOnly"]
    assert f"SCHEDULEARN_SECRETS={SECRETS}" in host_config.environment(spec)
    assert files.secrets(NAME) == tmp_path / "containers" / NAME / "secrets", "without memory, on the disk"
    for other in (replace(spec, secrets=()), replace(spec, role="driver", hostname="driver")):
        assert files.folders(other).secrets is None
        assert "SECRET" not in " ".join(host_config.environment(other))
    assert "secrets" not in replace(spec, secrets=()).to_json(), "old agents refuse keys that they do not know"


def test_a_pretended_job_gets_them_and_its_node_reports_that_it_knows_them(bench: Bench, portal: FakePortal) -> None:
    portal.secrets = list(GIVEN)
    portal.want(entry(secret_spec(give_code(portal))))
    bench.start()
    portal.until(lambda: not portal.desired)
    assert portal.reports[-1]["facts"]["job_secrets"] is True
    assert portal.container(NAME)["exit_code"] == 0
    holds_no_secret(bench.home)


@pytest.fixture
def agent(tmp_path: Path, portal: FakePortal) -> Iterator[AgentProcess]:
    agent = AgentProcess(tmp_path / "agent", portal)
    yield agent
    if agent.process is not None and agent.process.poll() is None:
        agent.kill()
    for pid in processes.pids_with_mark(f"{tmp_path / 'agent' / 'processes'}/{NAME}"):
        processes.kill(pid)
    if folder := memory_folder(agent.home):
        shutil.rmtree(folder, ignore_errors=True)


def printed(portal: FakePortal) -> bool:
    return PRINTED[0] in portal.log(NAME)


def test_a_job_prints_its_secrets_and_no_one_reads_them(agent: AgentProcess, portal: FakePortal) -> None:
    memory = memory_folder(agent.home)
    assert memory is not None
    portal.secrets = list(GIVEN)
    sha256 = give_code(portal, {"print.py": PRINT, "nosy.py": NOSY})
    portal.want(entry(secret_spec(sha256, command=("python", "print.py"))))
    agent.start()
    portal.until(lambda: printed(portal))
    assert [path.name for path in memory.iterdir()] == [NAME]
    holds_no_secret(agent.home)
    agent.kill()
    agent.start()
    (agent.home / "containers" / NAME / "workspace" / "enough").touch()
    portal.until(lambda: not portal.desired)
    assert portal.container(NAME)["exit_code"] == 0
    assert portal.log(NAME) in (b"".join(PRINTED), b"read-only\n".join(PRINTED))
    assert not list(memory.iterdir())
    holds_no_secret(agent.home)
    portal.want(entry(spec_of(sha256, "sl-2-a1-0", job=2, command=("python", "nosy.py"))))
    portal.until(lambda: not portal.desired)
    assert portal.log("sl-2-a1-0").startswith(b"[]\n"), portal.log("sl-2-a1-0")
    assert agent.end() == 0
    assert not [form for form in FORMS if form in agent.log.read_text()]


def test_a_job_whose_secrets_are_refused_fails_with_the_reason(agent: AgentProcess, portal: FakePortal) -> None:
    portal.want(entry(secret_spec(give_code(portal))))
    agent.start()
    portal.until(lambda: not portal.desired)
    ended = portal.container(NAME)
    assert ended["exit_reason"] == "create_error"
    assert ended["message"]["code"] == "container.secrets_not_fetched"
    assert "The secret HF_TOKEN was deleted." in str(ended["message"])


def test_a_lost_folder_is_filled_again_before_the_start(secrets: JobSecrets, files: NodeFiles) -> None:
    secrets.place(secret_spec())
    shutil.rmtree(files.secrets(NAME).parent)  # the machine was restarted
    secrets.place(secret_spec())
    assert (files.secrets(NAME) / "variables" / "HF_TOKEN").read_text() == TOKEN
