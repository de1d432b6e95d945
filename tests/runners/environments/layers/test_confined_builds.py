"""Builds in bubblewrap: what code of strangers can reach when an admin allowed it to run, and that none runs otherwise."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from runners.environments.layers import sandbox
from runners.environments.layers.disk_watch import DiskWatch
from runners.environments.layers.sandbox import BUILD_UID_BASE, BUILD_UID_SPAN
from runners.host import processes
from runners.messages import Message
from runners.messages.builds import OverBuildMemory
from runners.messages.environments import InstallingPackages
from runners.messages.layer_failures import (
    HidesBase,
    LayerTooLarge,
    OnlySource,
    SourceBuildFailed,
    TimeLimit,
)
from runners.runtimes.control_groups import ControlGroups
from tests.runners.environments.layers.conftest import Lab
from tests.runners.environments.layers.packages import make_sdist, make_wheel

pytestmark = [pytest.mark.bubblewrap, pytest.mark.timeout(300)]

LOOK = """
import json, os, socket, sys, urllib.request
def attempt(action):
    try:
        return str(action())
    except Exception as error:
        return "refused: " + type(error).__name__
top = os.path.dirname(os.environ["TMPDIR"])
SEEN = {
    "uid": os.getuid(),
    "home": os.environ["HOME"],
    "names": sorted(os.environ),
    "secret": attempt(lambda: open(SECRET).read()),
    "above": attempt(lambda: open(os.path.join(top, "..", "escaped"), "w")),
    "inputs": attempt(lambda: open(os.path.join(top, "..", "inputs", "requirements.in"), "w")),
    "python": attempt(lambda: open(os.path.join(sys.base_prefix, "escaped"), "w")),
    "direct": attempt(lambda: socket.create_connection(("127.0.0.1", PORT), 5)),
    "index": attempt(lambda: urllib.request.urlopen(ADDRESS + "/simple/demo/").status),
    "other": attempt(lambda: urllib.request.urlopen("http://localhost:%d/" % PORT).status),
    "processes": [name for name in os.listdir("/proc") if name.isdigit()],
}
"""
REPORT = """
_write = zipfile.ZipFile.writestr
def writestr(self, name, data):
    _write(self, name, "SEEN = " + repr(SEEN) if name == "demo.py" else data)
zipfile.ZipFile.writestr = writestr
"""


def hostile(lab: Lab, setup: str, *, known: bool = False) -> None:
    make_sdist(lab.files, "demo", setup, known=known)
    lab.publish()


def test_wheels_are_installed_with_the_network_of_the_proxy_alone(confined: Lab) -> None:
    make_wheel(confined.files, "demo", needs=["torchlike"], scripts={"demo-run": "demo:main"})
    confined.publish()
    layer = confined.build("demo")
    assert layer.modules == ("demo",) and not confined.left_over()
    facts = [path.lstat() for path in (layer.folder, *layer.folder.rglob("*"))]
    assert {fact.st_uid for fact in facts} == {os.geteuid()}
    assert all(fact.st_mode & 0o444 == 0o444 and not fact.st_mode & 0o7022 for fact in facts)


def test_nothing_of_a_source_archive_runs_without_permission(confined: Lab) -> None:
    """Neither by its name, nor by what pip is configured with, nor when uv only wants to know what it needs."""
    ran = "import os, sys; open(os.path.join(os.environ.get('HOME', '/tmp'), 'ran'), 'w'); sys.stderr.write('IT RAN')"
    hostile(confined, ran)
    make_wheel(confined.files, "friendly", needs=["demo"])
    confined.publish()
    confined.use_index(no_binary="demo")
    assert confined.failure("demo") == OnlySource("demo==1.0")
    assert confined.failure("friendly") == OnlySource("demo==1.0", "friendly")
    assert "IT RAN" not in confined.log.read_text()
    assert not any("demo-1.0.tar.gz" in path for path in confined.asked)


def test_an_allowed_build_reaches_only_its_folder_and_its_index(confined: Lab, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of this node")
    port = int(confined.address.rpartition(":")[2])
    given = f"SECRET, PORT, ADDRESS = {str(secret)!r}, {port}, {confined.address!r}\n"
    hostile(confined, f"{given}{LOOK}\nimport zipfile\n{REPORT}")
    layer = confined.build("demo", source_builds=True)
    seen = json.loads(subprocess.check_output([
        *(confined.base.python, "-c", "import json, demo; print(json.dumps(demo.SEEN))"),
    ], env={"PYTHONPATH": str(layer.folder)}))  # fmt: skip
    if os.geteuid() == 0:
        assert BUILD_UID_BASE <= seen["uid"] < BUILD_UID_BASE + BUILD_UID_SPAN
    for name in ("secret", "above", "inputs", "python", "direct", "other"):
        assert seen[name].startswith("refused"), name
    assert seen["index"] == "200"
    assert len(seen["processes"]) < 12
    assert not {name for name in seen["names"] if name.startswith(("PIP_", "SCHEDULEARN_", "DJANGO_"))}
    assert "localhost:" in confined.log.read_text() and "refused: this host is not allowed" in confined.log.read_text()


def test_a_build_that_fails_is_quoted(confined: Lab) -> None:
    hostile(confined, "raise RuntimeError('this package cannot be built here')")
    failure = confined.failure("demo", source_builds=True)
    assert isinstance(failure, SourceBuildFailed) and "this package cannot be built here" in failure.text
    assert failure.package == "demo==1.0" and not failure.transient


def test_a_build_that_prints_a_lot_and_fails_is_quoted(confined: Lab) -> None:
    trick = "import sys\nsys.stderr.write('compiling\\n' * 60_000)\nsys.exit('the compiler is missing')\n"
    hostile(confined, trick)
    found = confined.failure("demo", source_builds=True)
    assert isinstance(found, SourceBuildFailed) and found.package.startswith("demo")
    assert found.lines[-1] == "the compiler is missing"


def test_what_a_build_puts_beside_its_package_is_cleaned_away(confined: Lab) -> None:
    tricks = """
import os
site = os.path.join(os.path.dirname(os.environ["TMPDIR"]), "site")
if not os.path.exists(site + "/tool"):  # each call of the backend runs this
    os.symlink("/etc", site + "/etc_link")
    os.symlink("../../../../../etc/passwd", site + "/relative")
    os.mkfifo(site + "/fifo")
    for name, text in (("sitecustomize.py", "raise SystemExit('IT RAN')"), ("x.pth", "import os; print('IT RAN')"), ("tool", "")):
        with open(site + "/" + name, "w") as file:
            file.write(text)
os.chmod(site + "/tool", 0o4777)
"""
    hostile(confined, tricks, known=True)
    layer = confined.build("demo", source_builds=True)
    names = {path.name for path in layer.folder.iterdir()}
    assert {"demo.py", "tool"} <= names
    assert not names & {"etc_link", "relative", "fifo", "sitecustomize.py", "x.pth", ".lock"}
    assert (layer.folder / "tool").stat().st_mode & 0o7777 == 0o755
    assert "IT RAN" not in confined.log.read_text()


def test_a_wheel_runs_nothing_when_python_starts(confined: Lab) -> None:
    """Neither in the build's own checks nor in jobs."""
    evil = {"demo.py": "", "sitecustomize/__init__.py": "print('IT RAN')", "usercustomize.pyc": ""}
    make_wheel(confined.files, "demo", files=evil)
    confined.publish()
    layer = confined.build("demo")
    assert layer.modules == ("demo",) and "IT RAN" not in confined.log.read_text()


def test_what_was_built_from_source_answers_no_other_list(confined: Lab) -> None:
    """Code that ran in a build may have changed all that it left, also what looks like another project's packages."""
    make_wheel(confined.files, "demo")
    confined.publish()
    with_code, without = confined.build("demo", source_builds=True), confined.build("demo")
    assert with_code.lock == without.lock and with_code.digest != without.digest
    assert confined.build("demo", source_builds=True).digest == with_code.digest


def test_a_build_cannot_have_its_files_taken_for_ours(confined: Lab) -> None:
    """It puts links in the place of folders and of reports that we write and read from outside."""
    tricks = """
import os, shutil
top = os.path.dirname(os.environ["TMPDIR"])
for name, target in (("home", "/root"), ("lock.txt", "/etc/shadow"), ("probe.json", "/etc/shadow"), ("stubs.json", "/etc/shadow")):
    path = os.path.join(top, name)
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
    os.symlink(target, path)
"""
    hostile(confined, tricks)
    before = [Path(path).stat() for path in ("/root", "/etc/shadow") if Path(path).exists()]
    try:
        confined.build("demo", source_builds=True)
    except Exception as error:  # noqa: BLE001  it may fail or not, but
        assert "root:" not in str(error)
    after = [Path(path).stat() for path in ("/root", "/etc/shadow") if Path(path).exists()]
    assert [(each.st_uid, each.st_mode) for each in before] == [(each.st_uid, each.st_mode) for each in after]
    assert "root:" not in confined.log.read_text()


def test_a_build_cannot_hide_the_base(confined: Lab) -> None:
    trick = """
import os
site = os.path.join(os.path.dirname(os.environ["TMPDIR"]), "site")
os.makedirs(site + "/torchlike", exist_ok=True)
open(site + "/torchlike/__init__.py", "w").close()
"""
    hostile(confined, trick, known=True)
    assert confined.failure("demo", source_builds=True) == HidesBase(("torchlike",))


def test_what_a_build_made_beforehand_is_removed(confined: Lab) -> None:
    """It runs before there is a folder for the packages."""
    trick = """
import os
site = os.path.join(os.path.dirname(os.environ["TMPDIR"]), "site")
if not os.path.exists(site):
    os.makedirs(site + "/torchlike")
    open(site + "/torchlike/__init__.py", "w").close()
"""
    hostile(confined, trick)
    assert confined.build("demo", source_builds=True).modules == ("demo",)


def test_what_a_build_leaves_running_ends_with_it(confined: Lab) -> None:
    daemon = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.closerange(0, 256)\n    time.sleep(600)\n    os._exit(0)\n"
    hostile(confined, daemon)
    confined.build("demo", source_builds=True)
    assert_no_processes()


def test_a_cancelled_build_ends_all_that_it_started(confined: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile(confined, "import time\ntime.sleep(600)\n")
    began = time.monotonic()

    class CancelledError(Exception):
        pass

    def progress(percent: int, step: Message) -> None:
        if time.monotonic() - began > 4:
            raise CancelledError

    monkeypatch.setattr(confined, "progress", progress)
    with pytest.raises(CancelledError):
        confined.build("demo", source_builds=True)
    assert_no_processes()
    assert not confined.left_over()


def test_a_build_that_fills_the_disk_is_stopped(confined: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "DiskWatch", lambda work, log, _: DiskWatch(work, log, 20 * 2**20, min_free_bytes=0))
    hostile(confined, "import os, time\nopen('big', 'wb').write(os.urandom(2**20) * 40)\ntime.sleep(600)\n")
    assert isinstance(confined.failure("demo", source_builds=True), LayerTooLarge)
    assert_no_processes()


def test_a_build_that_never_ends_is_stopped(confined: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.environments.layers.resolving.RESOLVE_WITH_SOURCE_SECONDS", 3)
    hostile(confined, "import time\nwhile True:\n    print('still here', flush=True)\n    time.sleep(0.1)\n")
    assert isinstance(confined.failure("demo", source_builds=True), TimeLimit)
    assert_no_processes()


def test_a_build_cannot_start_more_processes_than_its_limit(confined: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("without an own user id, processes are not counted")
    monkeypatch.setattr(sandbox, "MAX_PROCESSES", 40)
    bomb = """
import os, time
try:
    for _ in range(100):
        if os.fork() == 0:
            time.sleep(3)
            os._exit(0)
except BlockingIOError:
    raise SystemExit("no more processes")
"""
    hostile(confined, bomb)
    failure = confined.failure("demo", source_builds=True)
    assert "no more processes" in failure.text
    assert_no_processes()


HUNGRY = """
import time
held = bytearray(700 * 2**20)
held[::4096] = b"x" * len(held[::4096])
time.sleep(600)
"""


def test_a_build_that_needs_too_much_memory_is_ended_and_explained(
    confined: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = needed_groups()
    monkeypatch.setattr(sandbox, "memory_mib", lambda: 384)
    hostile(confined, HUNGRY)
    failure = confined.failure("demo", source_builds=True)
    assert failure == OverBuildMemory(384) and failure.transient
    assert not [path for path in groups.parents["memory"].iterdir() if path.name.startswith(f"{os.getpid()}-")]
    assert_no_processes()


def test_a_build_within_its_memory_succeeds(confined: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    needed_groups()
    monkeypatch.setattr(sandbox, "memory_mib", lambda: 384)
    hostile(confined, "held = bytearray(50 * 2**20)\n")
    assert confined.build("demo", source_builds=True).modules == ("demo",)


def test_a_build_yields_to_jobs_and_is_the_first_to_be_killed(confined: Lab) -> None:
    """In its sandbox, which is a session with a group of its own."""
    show = """
def read(path):
    try:
        return open(path).read().split()[-1]
    except OSError:
        return "none"
raise RuntimeError("SEEN nice %d, group %s, badness %s" % (
    __import__("os").nice(0), read("/proc/self/autogroup"), read("/proc/self/oom_score_adj")))
"""
    hostile(confined, show)
    failure = confined.failure("demo", source_builds=True)
    group = sandbox.NICENESS if Path("/proc/self/autogroup").exists() else "none"
    assert f"SEEN nice {sandbox.NICENESS}, group {group}, badness 500" in failure.text


def needed_groups() -> ControlGroups:
    """Return the control groups of builds; skip the test where there are none."""
    groups = sandbox.build_groups()
    if groups is None:
        pytest.skip("control groups cannot be used here")
    return groups


def test_the_step_in_which_a_source_build_runs_is_shown(confined: Lab) -> None:
    hostile(confined, "")
    assert confined.build("demo", source_builds=True).modules == ("demo",)
    assert any(isinstance(step, InstallingPackages) for step in confined.steps)


def assert_no_processes() -> None:
    """No process of a build is left; the kernel ends those of a namespace within moments."""
    until = time.monotonic() + 10
    while left := build_processes():
        assert time.monotonic() < until, left
        time.sleep(0.05)


def build_processes() -> list[int]:
    found = []
    for pid in processes.all_pids():
        try:
            uid = Path(f"/proc/{pid}").stat().st_uid
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if BUILD_UID_BASE <= uid < BUILD_UID_BASE + BUILD_UID_SPAN or b"layers/inside.py" in command:
            found.append(pid)
    return found
