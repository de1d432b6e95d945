"""Jobs of the process runtime inside bubblewrap, of an agent that is root and of one that is not: what they can reach."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runners.host import processes
from runners.messages import message_from
from runners.runtime import Folders
from runners.runtimes import confinement_check
from runners.runtimes.process import ProcessRuntime
from tests.fake_portal import FakePortal

# The same tests as for unconfined jobs, with the fixtures of this module.
from tests.runners.agent.test_job_datasets import (  # noqa: F401
    test_a_program_finds_its_datasets_where_it_expects_them,
    test_the_folder_of_the_lab_is_there_as_well,
)
from tests.runners.agent.test_job_secrets import test_a_job_prints_its_secrets_and_no_one_reads_them  # noqa: F401
from tests.runners.agent.test_process import (  # noqa: F401
    counting,
    enough,
    greeter,
    lines,
    runs,
    test_a_command_runs_and_its_log_and_outputs_arrive,
    test_a_job_reaches_an_allowed_host_also_when_its_agent_was_restarted,
    test_a_stop_ends_the_ranks,
    test_killed_and_started_again_it_adopts_and_loses_no_line,
    test_stop_jobs_on_exit_leaves_no_process,
)
from tests.runners.agent_bench import NAME, AgentProcess
from tests.runners.runtimes import test_process as plain
from tests.runners.runtimes.test_process import (  # noqa: F401
    package,
    test_a_start_that_was_not_written_down_is_not_repeated,
    test_every_verb_may_be_repeated,
    test_it_gives_nothing_of_the_agents_environment,
    test_stop_asks_first_and_kills_after_the_grace,
)

pytestmark = [pytest.mark.bubblewrap, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tests" / "runners" / "scripts" / "confined.py"
NOBODY = 65534
PYTHONS = (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3")
SECRET = "the-secret-of-this-lab"
HOSTILE = """
import json, os, subprocess, sys
home, agent, python = sys.argv[1:]
def opens(path, mode="r"):
    try:
        with open(path, mode):
            return True
    except OSError:
        return False
def finds(path):
    return os.path.exists(path)
def signals(pid):
    try:
        os.kill(int(pid), 0)
        return True
    except OSError:
        return False
def becomes_root():
    try:
        os.setuid(0)
        return True
    except OSError:
        return os.getuid() == 0
environment = os.path.dirname(os.path.dirname(python))
print(json.dumps({
    "database": finds(f"{home}/portal/db.sqlite3"),
    "settings": finds(f"{home}/portal/secret_key"),
    "ssh key": finds(f"{home}/.ssh/id_ed25519"),
    "home": sorted(os.listdir(home)),
    "another job": finds(f"{home}/agent/containers/0/workspace/train.py"),
    "node's token": finds(f"{home}/agent/node.json"),
    "other containers": os.listdir(f"{home}/agent/containers"),
    "shadow": opens("/etc/shadow"),
    "programs": opens("/usr/bin/planted", "w"),
    "environment": opens(f"{environment}/planted", "w"),
    "launch package": opens(f"{os.environ['SCHEDULEARN_WORKSPACE']}/../../../../runners/launch/planted.py", "w"),
    "top folder": opens("/planted", "w"),
    "datasets": opens(f"{home}/datasets/planted", "w"),
    "own control": opens(os.environ["SCHEDULEARN_WORKSPACE"] + "/../control/control.json", "w"),
    "core pattern": opens("/proc/sys/kernel/core_pattern", "r+"),
    "remount": subprocess.run(["mount", "-o", "remount,rw", "/usr"], capture_output=True).returncode == 0,
    "agent": signals(agent),
    "root": becomes_root(),
    "processes": sorted(open(f"/proc/{pid}/comm").read().strip()
                        for pid in os.listdir("/proc") if pid.isdecimal() and "python" not in os.readlink(f"/proc/{pid}/exe")),
    "disks": [name for name in os.listdir("/dev") if name.startswith(("sd", "vd", "nvme", "mem", "kmsg"))],
    "open files": sorted(os.readlink(f"/proc/self/fd/{name}").split(":")[0] for name in ("0", "1", "2")),
    "more files": [name for name in os.listdir("/proc/self/fd") if int(name) > 3],
    "secret": "SECRET" in str(dict(os.environ)),
}))
"""
NOTHING = {
    "database": False, "settings": False, "ssh key": False, "another job": False, "node's token": False, "shadow": False,
    "programs": False, "environment": False, "launch package": False, "top folder": False, "datasets": False,
    "own control": False, "core pattern": False, "remount": False, "agent": False, "root": False, "disks": [],
    "open files": ["/dev/null", "pipe", "pipe"], "more files": [], "secret": False, "processes": [], "other containers": ["1"],
}  # fmt: skip
ONLINE = """
import socket, sys
own = socket.gethostbyname(socket.gethostname())
server = socket.create_server((own, 0))
socket.create_connection(server.getsockname(), 5)
print("own", own)
for host in ("127.0.0.1", sys.argv[1]):
    try:
        socket.create_connection((host, int(sys.argv[2])), 5)
        print("reaches", host)
    except OSError as error:
        print("misses", host)
"""
FRIENDLY = """
import multiprocessing, os, resource, socket, tempfile
from multiprocessing.shared_memory import SharedMemory
def square(number):
    return number * number
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        print("squares", pool.map(square, range(4)))
    shared = SharedMemory(create=True, size=1 << 20)
    shared.close(), shared.unlink()
    server = socket.create_server(("127.0.0.1", 0))
    socket.create_connection(server.getsockname())
    print("largest file", resource.getrlimit(resource.RLIMIT_FSIZE)[0] >> 20)
    print("host", socket.gethostname())
    print("data", open(os.environ["SCHEDULEARN_DATA"] + "/table.csv").read())
    for name in ("OUTPUTS", "CHECKPOINTS"):
        open(os.environ[f"SCHEDULEARN_{name}"] + "/result.txt", "w").write(name)
    for folder in ("/tmp", os.environ["HOME"], os.environ["TMPDIR"], os.getcwd()):
        tempfile.TemporaryFile(dir=folder).write(b"x")
    raise SystemExit(3)
"""
NOSY = """
import os, sys
agent = f"/proc/{sys.argv[1]}"
print("sees", os.path.isdir(agent))
for name, look in {"root": os.listdir, "cwd": os.listdir, "environ": lambda path: open(path).read()}.items():
    try:
        print("reads", look(f"{agent}/{name}"))
    except OSError:
        print("may not read", name)
"""
STOPPED = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("asked", flush=True), sys.exit(5)))
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""


@dataclass(frozen=True)
class Lab:
    """A home with a portal's secrets and an agent of ``uid`` in it."""

    home: Path
    uid: int
    python: str
    environment: str
    """The Python of jobs, a virtual environment in the home."""

    def run(self, *jobs: dict[str, Any], within: tuple[str, ...] = ()) -> dict[str, Any]:
        """Run the jobs with ``scripts/confined.py`` and return its report."""
        run = subprocess.run(
            [*within, *as_user(self.uid), self.python, self.home / "confined.py", self.home, self.environment],
            input=json.dumps(jobs),
            cwd=self.home,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.home),
                "PYTHONPATH": str(self.home / "product"),
                "SECRET_KEY": SECRET,
                "SCHEDULEARN_HOME": str(self.home / "portal"),
            },
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        report: dict[str, Any] = json.loads(run.stdout)
        return report


def as_user(uid: int) -> list[str]:
    if uid == os.geteuid():
        return []
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all", "--"]


def python_for(uid: int) -> str:
    """One that this user may run."""
    enough = (
        "import subprocess, sys; sys.exit(sys.version_info < (3, 11) or subprocess.call([sys.executable, '-c', '']))"
    )
    for python in PYTHONS:
        if not subprocess.run([*as_user(uid), python, "-c", enough], capture_output=True, check=False).returncode:
            return python
    pytest.fail(f"user {uid} can run none of {', '.join(PYTHONS)}")


@pytest.fixture(params=["root", "another user"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Beside pytest's folders, which only their owner may enter."""
    uid = os.geteuid()
    if request.param == "another user" and uid == 0:
        uid = NOBODY
    elif request.param == "root" and uid != 0:
        pytest.skip("only root can run an agent as root")
    home = Path(tempfile.mkdtemp(prefix="schedulearn-confined-"))
    home.chmod(0o755)
    shutil.copytree(ROOT / "runners", home / "product" / "runners", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SCRIPT, home)
    for name in ("portal/db.sqlite3", "portal/secret_key", ".ssh/id_ed25519", "agent/node.json", "datasets/table.csv"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(SECRET)
    other = home / "agent" / "containers" / "0" / "workspace" / "train.py"
    other.parent.mkdir(parents=True)
    other.write_text(SECRET)
    if uid != os.geteuid():
        for path in (home, *home.rglob("*")):
            os.chown(path, uid, uid)
    python = python_for(uid)
    subprocess.run([*as_user(uid), python, "-m", "venv", "--without-pip", home / "env"], check=True, cwd="/")
    yield Lab(home, uid, python, str(home / "env" / "bin" / "python"))
    shutil.rmtree(home)


def test_a_hostile_job_reaches_nothing_of_the_lab_or_the_system(lab: Lab) -> None:
    command = ["python", "main.py", str(lab.home), str(os.getpid()), lab.environment]
    report = lab.run({"command": command, "files": {"main.py": HOSTILE}})
    assert report["confinement"].startswith(
        "bubblewrap: jobs see only their own files and processes, and have no network"
    )
    assert not report["problems"]
    (job,) = report["jobs"]
    assert job["exit"] == {"code": 0, "reason": "exited", "detail": ""}, job
    reached = json.loads(job["log"].splitlines()[-1])
    assert {"agent", "datasets", "env", "product"} >= set(reached.pop("home"))
    assert reached == NOTHING
    assert SECRET not in job["log"]


def test_a_friendly_job_has_what_it_needs(lab: Lab) -> None:
    (job,) = lab.run({"command": ["python", "main.py"], "files": {"main.py": FRIENDLY}})["jobs"]
    assert job["exit"] == {"code": 3, "reason": "exited", "detail": ""}, job
    assert job["code"] == 3
    assert "squares [0, 1, 4, 9]" in job["log"] and f"host {os.uname().nodename}" in job["log"]
    assert f"data {SECRET}" in job["log"] and "largest file 64\n" in job["log"]
    assert job["written"] == {"outputs/result.txt": "OUTPUTS"}


def test_a_job_without_peers_has_a_network_of_its_own(lab: Lab) -> None:
    """One with peers meets them on the machine's loopback."""
    address = socket.gethostbyname(socket.gethostname())
    with socket.create_server(("", 0)) as server:
        command = ["python", "main.py", address, str(server.getsockname()[1])]
        job = {"command": command, "files": {"main.py": ONLINE}}
        alone, peer = lab.run(job, {**job, "peers": True})["jobs"]
    assert "own 127.0.0.1" in alone["log"] and alone["log"].count("misses") == 2, alone
    assert "reaches 127.0.0.1" in peer["log"], peer


CACHING = """
import os, pathlib, sys
cache = pathlib.Path(os.environ["TORCH_HOME"])
cache.mkdir(exist_ok=True)
for name in sorted(os.listdir(cache)):
    print("found", name, (cache / name).read_text())
    (cache / name).write_text("changed")
handle = os.open(cache / sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600)
os.write(handle, b"mine")
"""


def test_jobs_of_a_project_share_a_cache_and_those_of_others_do_not(lab: Lab) -> None:
    """Also files that a program has written for its own user alone; each job of a root agent has another user."""
    mine, other = f"{'a' * 32}-1", f"{'b' * 32}-1"
    jobs = [
        {"command": ["python", "main.py", name], "files": {"main.py": CACHING}, "cache": cache}
        for name, cache in (("one", mine), ("two", mine), ("three", other))
    ]
    first, second, third = lab.run(*jobs)["jobs"]
    assert [job["code"] for job in (first, second, third)] == [0, 0, 0], (first, second, third)
    assert "found one mine" in second["log"] and "found" not in first["log"] + third["log"]
    assert (lab.home / "agent" / "caches" / mine / "files" / "torch" / "one").read_text() == "changed"


def test_ends_are_reported_as_without_confinement(lab: Lab) -> None:
    kill = "import os; os.kill(os.getpid(), {})"
    commands = (["missing"], ["./main.py"], ["python", "-c", kill.format(9)], ["python", "-c", kill.format(15)])
    jobs = lab.run(*({"command": command, "files": {"main.py": "no program"}} for command in commands))["jobs"]
    assert [job["exit"]["code"] for job in jobs] == [job["code"] for job in jobs] == [127, 126, 137, 143]


def test_a_stop_reaches_the_program_and_leaves_nothing_behind(lab: Lab) -> None:
    """Whether by the agent that started it or by the next one."""
    stopped = {"command": ["python", "main.py"], "files": {"main.py": STOPPED}, "stop_at": "up"}
    for job in lab.run(stopped, {**stopped, "by_next_agent": True})["jobs"]:
        assert "asked" in job["log"]
        assert job["exit"]["reason"] == "stopped" and job["exit"]["code"] == job["code"] == 5, job
    assert not processes.pids_with_mark(f"{lab.home}/agent/processes/sl-2-a1-0")
    assert not processes.pids_with_mark(f"{lab.home}/agent/processes/sl-1-a1-0")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a part of /proc read-only")
@pytest.mark.parametrize("lab", ["another user"], indirect=True)
def test_where_a_new_proc_is_refused_files_are_confined_all_the_same(lab: Lab) -> None:
    """As under systemd's ProtectKernelTunables=. The node reports that jobs see other processes."""
    cover = 'mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$@"'
    with subprocess.Popen([*as_user(lab.uid), "sleep", "60"]) as bystander:
        command = ["python", "main.py", str(bystander.pid)]
        nosy = {"command": command, "files": {"main.py": NOSY}}
        stopped = {"command": ["python", "main.py"], "files": {"main.py": STOPPED}, "stop_at": "up"}
        report = lab.run(nosy, stopped, within=("unshare", "--mount", "sh", "-c", cover, "sh"))
        bystander.kill()
    assert "also other processes" in report["confinement"] and report["problems"] == 1
    first, second = report["jobs"]
    assert "sees True" in first["log"] and first["log"].count("may not read") == 3, first
    assert second["exit"]["reason"] == "stopped" and second["code"] == 5
    assert not processes.pids_with_mark(f"{lab.home}/agent/processes/sl-2-a1-0")


# What the tests that are imported above run on.


@pytest.fixture
def runtime(tmp_path: Path, package: None) -> Iterator[ProcessRuntime]:  # noqa: F811
    state = tmp_path / "state"
    made = ProcessRuntime("installation", "node", state, lambda key: sys.executable, confinement_check.find_confinement)
    assert made.confinement.sandbox is not None
    yield made
    for seen in made.list():
        made.remove(seen.name)


@pytest.fixture
def agent(tmp_path: Path, portal: FakePortal) -> Iterator[AgentProcess]:
    made = AgentProcess(tmp_path / "agent", portal, SCHEDULEARN_CONFINE="yes")
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()
    for pid in processes.pids_with_mark(f"{tmp_path / 'agent' / 'processes'}/{NAME}"):
        processes.kill(pid)


def record_of(agent: AgentProcess) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((agent.home / "processes" / f"{NAME}.json").read_text())
    return record


def test_an_agent_without_bubblewrap_finds_what_runs_inside_it(
    runtime: ProcessRuntime, folders: Folders, tmp_path: Path
) -> None:
    script = "import signal, time; signal.signal(15, lambda *_: exit(4)); print('up', flush=True); time.sleep(60)"
    name = plain.run(runtime, folders, script)
    plain.wait(lambda: runtime.logs(name, 10) == b"up\n")
    later = plain.make_runtime(tmp_path)
    assert plain.only(later).state == "running"
    later.start(name)
    later.stop(name, 5)
    assert plain.only(later).state == "exited" and plain.only(later).exit_code is None
    plain.wait(lambda: plain.only(runtime).exit_code == 4)


def test_a_job_outlives_bubblewrap_and_ends_when_asked(runtime: ProcessRuntime, folders: Folders) -> None:
    name = plain.run(runtime, folders, "import time; print('up', flush=True); time.sleep(60)")
    plain.wait(lambda: runtime.logs(name, 10) == b"up\n")
    runtime.children[name].kill()
    runtime.children[name].wait()
    assert plain.only(runtime).state == "running"
    runtime.stop(name, 5)
    assert plain.only(runtime).state == "exited"
    assert not processes.pids_with_mark(f"{runtime.state.resolve()}/{name}")


def test_what_a_job_leaves_behind_ends_with_it(runtime: ProcessRuntime, folders: Folders) -> None:
    script = (
        "import os, subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True, env={})\n"
        "os._exit(0)"
    )
    name = plain.run(runtime, folders, script)
    plain.wait(lambda: plain.only(runtime).state == "exited")
    assert plain.only(runtime).exit_code == 0
    plain.wait(lambda: not processes.pids_with_mark(f"{runtime.state.resolve()}/{name}"))


def test_a_job_of_the_release_before_is_adopted_and_runs_to_its_end(agent: AgentProcess, portal: FakePortal) -> None:
    """It runs unconfined, and its record does not say so."""
    agent.env["SCHEDULEARN_CONFINE"] = "no"
    portal.want(counting(portal))
    agent.start()
    runs(portal)
    agent.kill()
    record = record_of(agent)
    assert record.pop("confined") is False and record["argv"][0].endswith("python")
    (agent.home / "processes" / f"{NAME}.json").write_text(json.dumps(record))
    agent.env["SCHEDULEARN_CONFINE"] = "yes"
    agent.start()
    before = len(portal.log(NAME))
    portal.until(lambda: len(portal.log(NAME)) > before)
    enough(agent, portal)


def test_an_agent_of_this_release_confines_its_jobs(agent: AgentProcess, portal: FakePortal) -> None:
    portal.want(counting(portal))
    agent.start()
    runs(portal)
    assert record_of(agent)["confined"] and record_of(agent)["argv"][0].endswith("bwrap")
    portal.until(lambda: portal.reports[-1]["facts"].get("confinement"), 20)
    facts = portal.reports[-1]["facts"]
    assert facts["confinement"].startswith("bubblewrap: ")
    assert facts["confinement"] == message_from(facts["confinement_message"]).text
    enough(agent, portal)
