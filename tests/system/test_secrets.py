"""A planted secret reaches its job and nothing else: not the logs, tables, events, answers, engine, nodes, or a backup."""

import base64
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import docker
import pytest

from tests.contents import contents_below
from tests.system.docker_lab import docker_lab, engine
from tests.system.own_engine import OwnEngine
from tests.system.product import Product, wait_for

pytestmark = [pytest.mark.system, pytest.mark.thorough, pytest.mark.timeout(900)]

PRINTS = """
import base64, os, sys, time, urllib.parse
token = os.environ["PLANTED"]
kept = open(os.path.join(os.environ["SCHEDULEARN_SECRETS"], "planted.json")).read()
assert len(token) == len(kept) == 40
print("plain", token, flush=True)
for piece in (token[:7], token[7:20], token[20:]):
    sys.stdout.write(piece)
    sys.stdout.flush()
    time.sleep(0.2)
print()
for offset in range(3):
    print("base64", base64.b64encode(b"x" * offset + token.encode() + b"yz").decode(), flush=True)
print("url", urllib.parse.quote(token, safe=""), flush=True)
print("file", kept, flush=True)
print("before the end", flush=True)
time.sleep(float(os.environ.get("SECONDS", "8")))
raise RuntimeError(f"401 for {token} and {kept}")
"""
LOOKS = """
import os, pathlib
found = [name for name in os.environ if "PLANTED" in name]
for path in ("/run/secrets", "/dev/shm"):
    if os.path.isdir(path):
        found += [str(each) for each in pathlib.Path(path).rglob("*")]
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        if b"PLANTED=" in (process / "environ").read_bytes():
            found.append(str(process))
    except OSError:
        pass
print("found", found, flush=True)
"""
"""What another job of the same user and project sees."""


class Planted:
    """Two values, and every form in which they might have left their place."""

    def __init__(self) -> None:
        self.values = [f"{name}-{secrets.token_urlsafe(40)}"[:38] + "/+" for name in ("token", "file")]

    @property
    def forms(self) -> list[bytes]:
        found = []
        for value in self.values:
            raw = value.encode()
            found += [raw, quote(value, safe="").encode(), raw.hex().encode()]
            for skipped in range(3):  # the middle of its base64, wherever it stands in a longer text
                text = base64.b64encode(b"x" * skipped + raw)
                found += [text[4:-8], text[4:-8].replace(b"+", b"-").replace(b"/", b"_")]
        return found

    def found_in(self, content: bytes) -> list[bytes]:
        return [form for form in self.forms if form in content]

    def found_beneath(self, folder: Path) -> list[str]:
        return [str(path) for path, content in contents_below(folder) if self.found_in(content)]


@pytest.fixture(scope="module")
def own_engine() -> Iterator[OwnEngine]:
    with engine() as own:
        yield own


@pytest.fixture
def lab(own_engine: OwnEngine, tmp_path: Path) -> Iterator[Product]:
    with docker_lab(own_engine, tmp_path) as product:
        yield product


def backup(lab: Product, to: Path) -> None:
    """Make the backup of docs/operations/backup.md: a dump, and the data folder without the key of secrets."""
    to.mkdir()
    dump = subprocess.run(["pg_dump", lab.env["DATABASE_URL"]], check=True, capture_output=True, timeout=60)
    (to / "database.sql").write_bytes(dump.stdout)
    subprocess.run(
        [
            "tar",
            "-C",
            str(lab.home),
            "--exclude=./secrets_key",
            "--exclude=./incoming",
            "-cf",
            str(to / "home.tar"),
            ".",
        ],
        check=False,  # 1: a file changed while it was read
        capture_output=True,
        timeout=120,
    )


def recorded(lab: Product) -> bytes:
    """Return the recorded decisions, unpacked."""
    code = (
        "import zlib, sys\n"
        "from portal.scheduler.models import Recording\n"
        "for row in Recording.objects.all(): print(zlib.decompress(row.content).decode())\n"
    )
    return lab.shell(code).encode()


def test_a_planted_secret_reaches_its_job_and_nothing_else(own_engine: OwnEngine, lab: Product, tmp_path: Path) -> None:
    planted = Planted()
    code = lab.upload("planted", prints=PRINTS, looks=LOOKS)
    token, file = planted.values
    answers = [
        lab.api("POST", "secrets/", json={"name": "PLANTED", "kind": "variable", "value": token}),
        lab.api(
            "POST",
            f"projects/{code['project']}/secrets/",
            json={"name": "planted.json", "kind": "file", "value": file},
        ),
    ]
    assert [answer.status_code for answer in answers] == [201, 201], [answer.text for answer in answers]
    job = lab.submit(code, "python prints.py", secrets=["PLANTED", "project/planted.json"])
    wait_for("it has printed", lambda: b"before the end" in lab.log(job), 120)
    other = lab.submit(code, "python looks.py")
    client = docker.DockerClient(base_url=own_engine.url)
    running = client.containers.list(all=True)
    assert running, "its container is there"
    for container in running:
        inspected = client.api.inspect_container(str(container.id))
        assert not planted.found_in(str(inspected).encode()), "docker inspect shows it"
        assert not planted.found_in(container.logs()), "docker logs show it"
    assert not planted.found_beneath(lab.home), "a file of the node has it while the job runs"
    lab.succeeds(other)
    assert b"found []" in lab.log(other)
    lab.wait_for_job(job, "FAILED", seconds=120)

    log = wait_for("the end of its log has arrived", lambda: b"RuntimeError" in lab.log(job) and lab.log(job), 60)
    lines = log.decode().splitlines()
    assert lines[:2] == ["plain ***", "***"] and "url ***" in lines and "file ***" in lines
    assert any("401 for *** and ***" in line for line in lines)
    for stream in lab.get(f"jobs/{job}/streams/"):
        content = lab.api("GET", f"jobs/{job}/log/", params={"stream": stream["id"]}).content
        assert not planted.found_in(content), stream["label"]
    for path in (
        f"jobs/{job}/",
        "jobs/",
        f"jobs/{job}/events/",
        f"jobs/{job}/attempts/",
        "secrets/",
        "audit/",
        "nodes/",
    ):
        answer = lab.api("GET", path)
        assert not planted.found_in(answer.content), path
    assert not planted.found_in(recorded(lab))
    assert "PLANTED" in lab.api("GET", f"jobs/{job}/").text, "its name is in the specification"

    backup(lab, tmp_path / "backup")
    assert not planted.found_beneath(tmp_path / "backup")
    assert (lab.home / "secrets_key").read_bytes().strip() not in (tmp_path / "backup" / "home.tar").read_bytes()
    assert not planted.found_beneath(lab.home), "a file of the portal or the node has it"
    assert not list(Path("/dev/shm").glob("schedulearn-*/*")), "the node's memory has it after the end"  # noqa: S108
