"""What keeps ``make run`` from starting is reported before anything is installed, with the command that fixes it."""

import errno
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from portal.ops import prerequisites
from portal.ops.prerequisites import Fault, Finding, Plan, findings
from tests.servers import free_port

SCRIPT = Path(prerequisites.__file__)
KNOWN = prerequisites.FAULTS


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    env = {"SCHEDULEARN_HOME": str(tmp_path / "home"), "SCHEDULEARN_CACHE": str(tmp_path / "cache")}
    return Plan.read({**env, "PORT": str(free_port())}, str(tmp_path / "venv"))


@pytest.fixture(autouse=True)
def complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that lacks nothing; each test removes one thing."""
    monkeypatch.setattr(prerequisites, "FAULTS", ())
    monkeypatch.setattr(prerequisites, "missing_tools", list)
    monkeypatch.setattr(prerequisites, "is_docker_running", lambda address: False)
    monkeypatch.setattr(prerequisites, "has_bubblewrap", lambda: True)
    monkeypatch.setattr(prerequisites, "free_mib", lambda folder: 100_000)


def the_only(found: Iterator[Finding]) -> Finding:
    (finding,) = found
    return finding


def test_a_complete_machine_has_nothing_to_report(plan: Plan) -> None:
    assert list(findings(plan)) == []


def fault(name: str, patch: int, is_fixed: bool) -> Fault:
    return Fault(name, f"{name} happens", {(3, 11): patch}, lambda: is_fixed)


def test_a_python_with_known_faults_is_reported_with_the_release_that_has_none_of_them(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = (fault("slow headers", 10, False), fault("no end", 14, False), fault("patched here", 20, True))
    monkeypatch.setattr(prerequisites, "FAULTS", faults)
    finding = the_only(prerequisites.python_findings((3, 11, 7)))
    assert not finding.fatal and "Python 3.11.7" in finding.text
    assert "slow headers" in finding.text and "no end" in finding.text and "patched here" not in finding.text
    assert "Install Python 3.11.14 or newer" in finding.fix
    assert [each.name for each in prerequisites.faults_of((3, 11, 10))] == ["no end"]
    for version in ((3, 11, 14), (3, 12, 0), (3, 14, 0)):
        assert list(prerequisites.python_findings(version)) == []


def test_a_fault_that_the_distribution_has_fixed_is_found_in_the_module_and_not_by_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The real checks, on modules with and without the fixes."""
    slow_headers, endless, overlapping = KNOWN

    class Patched(tarfile.TarInfo):
        def _block(self, count: int) -> int:
            raise tarfile.HeaderError("invalid offset")

    class Unpatched(tarfile.TarInfo):
        def _block(self, count: int) -> int:
            return 0

    monkeypatch.setattr(tarfile, "_header_length_prefix_re", None, raising=False)
    monkeypatch.setattr(tarfile, "TarInfo", Patched)
    monkeypatch.setattr(zipfile.ZipInfo, "__slots__", ("filename", "_end_offset"))
    assert slow_headers.is_fixed() and endless.is_fixed() and overlapping.is_fixed()
    monkeypatch.delattr(tarfile, "_header_length_prefix_re")
    monkeypatch.setattr(tarfile, "TarInfo", Unpatched)
    monkeypatch.setattr(zipfile.ZipInfo, "__slots__", ("filename",))
    assert not (slow_headers.is_fixed() or endless.is_fixed() or overlapping.is_fixed())


def test_defaults_are_those_of_the_settings() -> None:
    plan = Plan.read({"HOME": "/home/ada", "XDG_CACHE_HOME": "/caches"}, ".venv")
    assert (plan.home, plan.venv) == (prerequisites.ROOT / "var", prerequisites.ROOT / ".venv")
    assert (plan.cache, plan.host, plan.port) == (Path("/caches/schedulearn"), "127.0.0.1", "8000")


def test_a_port_in_use_is_reported_with_another(plan: Plan) -> None:
    with socket.socket() as taken:
        taken.bind((plan.host, int(plan.port)))
        finding = the_only(findings(plan))
    assert finding.fatal and "Address already in use" in finding.text
    assert f"make run PORT={int(plan.port) + 1}" in finding.fix


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1"])
def test_a_port_that_is_none_is_reported(port: str) -> None:
    finding = the_only(prerequisites.port_findings("127.0.0.1", port))
    assert finding.fatal and repr(port) in finding.text


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1", "a..b", "x" * 100])
def test_an_address_that_is_not_of_this_machine_is_no_matter_of_the_port(host: str) -> None:
    finding = the_only(prerequisites.port_findings(host, str(free_port())))
    assert finding.fatal and host in finding.text and "HOST=127.0.0.1" in finding.fix and "PORT" not in finding.fix


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])  # noqa: S104
def test_an_address_of_this_machine_can_be_used(host: str) -> None:
    assert list(prerequisites.port_findings(host, str(free_port()))) == []


@pytest.mark.parametrize("port", ["80", "1023"])
def test_a_port_that_takes_root_is_reported_with_one_that_does_not(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    finding = the_only(prerequisites.port_findings("127.0.0.1", port))
    assert "Permission denied" in finding.text and "PORT=8000" in finding.fix


def test_a_file_in_place_of_the_data_folder_is_no_running_portal(plan: Plan) -> None:
    plan.home.write_text("")
    finding = the_only(findings(plan))
    assert finding.fatal and "is a file" in finding.text


def test_a_second_start_is_distinguished_from_a_foreign_program_on_the_port(plan: Plan) -> None:
    plan.home.mkdir()
    with socket.socket() as taken, (plan.home / "up.lock").open("w") as lock:
        taken.bind((plan.host, int(plan.port)))
        fcntl.flock(lock, fcntl.LOCK_EX)
        finding = the_only(findings(plan))
    assert finding.fatal and "already running" in finding.text and "SCHEDULEARN_HOME" in finding.fix


def test_too_little_space_is_reported_with_the_folder_it_is_for(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prerequisites, "free_mib", lambda folder: 100 if folder == plan.home else 100_000)
    finding = the_only(findings(plan))
    assert finding.fatal and "Only 100 MiB are free" in finding.text and "SCHEDULEARN_HOME=" in finding.fix
    monkeypatch.setattr(prerequisites, "free_mib", lambda folder: 550 if folder == plan.venv else 100_000)
    assert "VENV=FOLDER" in the_only(findings(plan)).fix


def test_too_little_space_for_environments_is_a_note_until_one_is_prepared(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prerequisites, "free_mib", lambda folder: 2048)
    note = the_only(findings(plan))
    assert not note.fatal and "2.0 GiB" in note.text and "SCHEDULEARN_CACHE=" in note.fix
    (plan.cache / "envs" / "pytorch-1").mkdir(parents=True)
    (plan.cache / "envs" / "pytorch-1" / ".complete").touch()
    assert list(findings(plan)) == []


def test_pythons_venv_module_is_missing_on_debian(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    real = prerequisites.importlib.util.find_spec
    monkeypatch.setattr(
        prerequisites.importlib.util, "find_spec", lambda name: None if name == "ensurepip" else real(name)
    )
    finding = the_only(findings(plan))
    assert finding.fatal and f"apt-get install python3.{sys.version_info.minor}-venv" in finding.fix
    (plan.venv / "bin").mkdir(parents=True)
    (plan.venv / "bin" / "python").touch()  # one that is made already needs no module
    assert list(findings(plan)) == []


def test_packages_of_another_python_are_reported_with_how_to_replace_them(plan: Plan) -> None:
    other = plan.venv / "lib" / "python3.99" / "site-packages" / "django"
    other.mkdir(parents=True)
    (plan.venv / "installed").touch()
    finding = the_only(findings(plan))
    assert finding.fatal and "another Python" in finding.text and f"rm -r {plan.venv}" in finding.fix
    other.parents[1].rename(plan.venv / "lib" / f"python3.{sys.version_info.minor}")
    (plan.venv / "bin").mkdir()
    (plan.venv / "bin" / "python").touch()
    assert list(findings(plan)) == []


def test_a_folder_that_may_not_be_entered_is_reported(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = plan.home.parent / "closed"
    closed.mkdir()
    real = Path.exists

    def exists(path: Path) -> bool:
        if closed in path.parents:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path)

    def no_file(dir: Path) -> None:  # noqa: A002
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "exists", exists)
    monkeypatch.setattr(prerequisites.tempfile, "TemporaryFile", no_file)
    finding = the_only(
        prerequisites.folder_findings(closed / "x" / "y", "Schedulearn's data", "SCHEDULEARN_HOME=FOLDER")
    )
    assert finding.fatal and "Permission denied" in finding.text


@pytest.mark.parametrize(
    ("name", "variable"), [("home", "SCHEDULEARN_HOME"), ("cache", "SCHEDULEARN_CACHE"), ("venv", "VENV")]
)
def test_a_folder_that_cannot_be_written_is_reported(
    name: str, variable: str, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when root runs it, whom permissions do not stop: a read-only file system does."""
    forbidden: Path = getattr(plan, name)
    forbidden.mkdir()
    real = prerequisites.tempfile.TemporaryFile

    def temporary(dir: Path) -> Any:
        if dir == forbidden:
            raise OSError(30, "Read-only file system")
        return real(dir=dir)

    monkeypatch.setattr(prerequisites.tempfile, "TemporaryFile", temporary)
    finding = the_only(findings(plan))
    assert finding.fatal and "Read-only file system" in finding.text and f"{variable}=FOLDER" in finding.fix


def test_a_file_in_the_place_of_a_folder_is_reported(plan: Plan) -> None:
    plan.home.touch()
    finding = next(findings(plan))
    assert finding.fatal and "is a file" in finding.text


def test_without_a_compiler_it_reports_what_to_install_unless_an_engine_brings_one(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prerequisites, "missing_tools", lambda: ["a C++ compiler", "make"])
    note = the_only(findings(plan))
    assert not note.fatal and "lacks a C++ compiler, make" in note.text and "apt-get install g++" in note.fix
    monkeypatch.setattr(prerequisites, "is_docker_running", lambda address: True)
    assert list(findings(plan)) == []


def test_without_an_engine_it_advises_to_install_bubblewrap(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prerequisites, "has_bubblewrap", lambda: False)
    note = the_only(findings(plan))
    assert not note.fatal and "all of your files" in note.text and "sudo apt install bubblewrap" in note.fix
    monkeypatch.setattr(prerequisites, "is_docker_running", lambda address: True)
    assert list(findings(plan)) == []


def test_it_asks_the_engine_by_its_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert not prerequisites.is_docker_running(f"unix://{tmp_path}/none.sock")
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(tmp_path / "engine.sock"))
        engine.listen()
        assert prerequisites.is_docker_running(f"unix://{tmp_path}/engine.sock")


def start(tmp_path: Path, command: str = "run", **env: str) -> "subprocess.CompletedProcess[str]":
    """As the Makefile does, from another folder and without any package."""
    return subprocess.run(
        [sys.executable, "-I", "-S", SCRIPT, str(tmp_path / "venv"), command],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SCHEDULEARN_HOME": str(tmp_path / "home"), **env},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )


def test_it_runs_without_any_package_and_ends_with_1_when_nothing_can_start(tmp_path: Path) -> None:
    assert start(tmp_path, PORT=str(free_port())).returncode == 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        refused = start(tmp_path, PORT=str(port))
        demo = start(tmp_path, "demo", PORT=str(port))
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[0].startswith(f"Cannot start: Port {port}")
    assert refused.stderr.splitlines()[1].strip() == f"Use another port: make run PORT={port + 1}"
    assert demo.returncode == 1 and f"Use another port: make demo PORT={port + 1}" in demo.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_run_stops_before_it_installs_anything(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        command = ["make", "run", f"PYTHON={sys.executable}", f"VENV={tmp_path / 'venv'}", f"PORT={port}"]
        env = {**os.environ, "SCHEDULEARN_HOME": str(tmp_path / "home")}
        made = subprocess.run(command, cwd=prerequisites.ROOT, env=env, capture_output=True, text=True, check=False)
    assert made.returncode != 0 and f"make run PORT={port + 1}" in made.stderr
    assert not (tmp_path / "venv").exists() and not (tmp_path / "home").exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_an_old_python_is_reported_with_what_to_do(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    command = ["make", "run", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}"]
    made = subprocess.run(command, cwd=prerequisites.ROOT, capture_output=True, text=True, check=False)
    assert made.returncode != 0 and "needs Python 3.11 or newer" in made.stdout and "PYTHON=" in made.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_a_virtual_environment_that_cannot_be_made_costs_nothing_that_was_there(tmp_path: Path) -> None:
    """A python that cannot make one, and a folder with files of a person."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *venv*) echo broken >&2; exit 1;; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    for folder in ("mine", "new"):
        command = ["make", "lint", f"PYTHON={python}", f"VENV={tmp_path / folder}"]
        made = subprocess.run(command, cwd=prerequisites.ROOT, capture_output=True, text=True, check=False)
        assert made.returncode != 0 and "could not be made" in made.stdout
    assert (tmp_path / "mine" / "thesis.txt").exists()
