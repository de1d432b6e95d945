"""Kinds of nodes, interpreters of full environments, and how a node confines builds."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runners.environments import builds
from runners.environments.builds import PreparedEnvironment, ProcessEnvironments
from runners.environments.layers import base as bases
from runners.environments.layers import disk_watch, sandbox
from runners.environments.layers.base import Base, describe_kind, find_python, kind_of
from runners.environments.layers.disk_watch import DiskWatch, measure
from runners.environments.layers.sandbox import BubblewrapSandbox, PlainSandbox, process_sandbox
from runners.environments.preparing import PrepareError
from runners.environments.targets import Target
from runners.messages.confinement import FilesAndProcesses, FilesOnly
from runners.messages.layer_failures import NeedsPython, NoUv, TooManyFiles, TooMuchOutput
from runners.runtimes.confinement import Sandbox
from runners.runtimes.confinement_check import Confinement

BOOKWORM = Target("3.11", (2, 36), "x86_64")
BASE = Base("/env/bin/python", BOOKWORM, ("numpy==2.4.6", "torch==2.13.0+cpu"), PlainSandbox("/env/bin/python"))


def test_the_kind_names_what_makes_nodes_equal() -> None:
    kind = kind_of(BASE)
    assert kind.startswith("cp311-linux_x86_64-glibc2.36-cpu-") and len(kind.rpartition("-")[2]) == 12
    assert kind_of(replace(BASE, packages=BASE.packages[::-1], python="/other")) == kind
    others = [
        replace(BASE, packages=("numpy==2.4.6", "torch==2.12.0+cpu")),
        replace(BASE, packages=()),
        *(replace(BASE, target=each) for each in (replace(BOOKWORM, cuda=True), replace(BOOKWORM, python="3.12"))),
        *(
            replace(BASE, target=each)
            for each in (replace(BOOKWORM, glibc=(2, 41)), replace(BOOKWORM, machine="aarch64"))
        ),
    ]
    assert len({kind, *map(kind_of, others)}) == 7


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (BOOKWORM, "Python 3.11, x86_64, CPU"),
        (Target("3.12", (2, 41), "aarch64", cuda=True), "Python 3.12, aarch64, GPU (CUDA)"),
    ],
)
def test_a_kind_is_described_for_people(target: Target, text: str) -> None:
    assert describe_kind(kind_of(replace(BASE, target=target))) == text
    assert describe_kind(kind_of(replace(BASE, target=target, packages=()))) == text


def test_a_kind_of_another_release_is_shown_as_it_is() -> None:
    assert describe_kind("cp4-moon") == "cp4-moon"


def test_a_full_environment_has_an_interpreter_without_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEDULEARN_CACHE", str(tmp_path))
    python = find_python("")
    assert find_python(f"{sys.version_info.major}.{sys.version_info.minor}") == python == find_python("")
    listed = "import importlib.metadata as m; print(len(list(m.distributions())))"
    assert subprocess.check_output([python, "-I", "-c", listed], text=True) == "0\n"


def test_a_python_that_this_machine_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEDULEARN_CACHE", str(tmp_path))
    with pytest.raises(PrepareError) as error:
        find_python("3.99")
    assert isinstance(error.value.failure, NeedsPython) and "3.99" in error.value.failure.text
    assert error.value.failure.transient, "another node may have it"
    monkeypatch.setattr(bases, "uv_program", lambda: None)
    with pytest.raises(PrepareError) as error:
        find_python("")
    assert error.value.failure == NoUv()


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


SHIMS = {
    "not chosen": 'echo "asdf: No version is set for command python3.97" >&2; exit 126',
    "of another version": "echo 3.96 /opt/python3.96/bin/python",
    "silent": "true",
    "never ends": "exec sleep 60",
}


@pytest.mark.parametrize("shim", SHIMS)
def test_a_shim_without_its_python_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shim: str) -> None:
    monkeypatch.setattr(bases, "LOOK_SECONDS", 0.5)
    monkeypatch.setenv("SCHEDULEARN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}/shims:/usr/bin:/bin")
    program(tmp_path / "shims" / "python3.97", SHIMS[shim])
    with pytest.raises(PrepareError) as error:
        find_python("3.97")
    assert isinstance(error.value.failure, NeedsPython)


def test_an_interpreter_behind_a_shim_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}/shims:{tmp_path}/gone:{tmp_path}/opt:/usr/bin:/bin")
    program(tmp_path / "shims" / "python3.97", SHIMS["not chosen"])
    program(tmp_path / "opt" / "python3.97", "echo 3.97 /opt/with space/python3.97")
    assert bases.installed_python("3.97") == "/opt/with space/python3.97"


@pytest.mark.parametrize("network", [True, False])
@pytest.mark.parametrize("processes", [True, False])
def test_without_full_confinement_only_wheels_are_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: bool, processes: bool
) -> None:
    monkeypatch.setenv("SCHEDULEARN_CACHE", str(tmp_path))
    confinement = Confinement(
        Sandbox("bwrap", own_processes=processes, own_network=network),
        FilesAndProcesses() if processes else FilesOnly(),
        None,
    )
    monkeypatch.setattr(sandbox.confinement_check, "find_confinement", lambda state: confinement)
    found = process_sandbox("/python")
    assert found.confined is (network and processes)
    assert isinstance(found, BubblewrapSandbox if network and processes else PlainSandbox)


def test_a_folder_is_measured_without_following_links_or_counting_twice(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x" * 100_000)
    once, files = measure(tmp_path)
    assert 100_000 <= once < 200_000 and files == 3
    (tmp_path / "a" / "hard").hardlink_to(tmp_path / "a" / "b" / "file")
    (tmp_path / "root").symlink_to("/")
    (tmp_path / "again").symlink_to(tmp_path / "a")
    twice, files = measure(tmp_path)
    assert twice < once + 20_000 and files == 6
    assert measure(tmp_path / "gone") == (0, 0)


def test_many_files_and_long_logs_end_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    log = tmp_path / "log"
    DiskWatch(tmp_path / "work", log, min_free_bytes=0).check()
    for number in range(5):
        (tmp_path / "work" / str(number)).touch()
    monkeypatch.setattr(disk_watch, "MAX_FILES", 4)
    with pytest.raises(PrepareError) as error:
        DiskWatch(tmp_path / "work", log, min_free_bytes=0).check()
    assert error.value.failure == TooManyFiles(4)
    log.write_bytes(b"x" * 2000)
    monkeypatch.setattr(disk_watch, "MAX_LOG_BYTES", 1000)
    with pytest.raises(PrepareError) as error:
        DiskWatch(tmp_path / "work", log, min_free_bytes=0).check()
    assert isinstance(error.value.failure, TooMuchOutput)


def test_the_folder_is_measured_rarely_and_the_disk_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Path] = []

    def note(folder: Path) -> tuple[int, int]:
        measured.append(folder)
        return (0, 0)

    monkeypatch.setattr(disk_watch, "measure", note)
    watch = DiskWatch(tmp_path, tmp_path / "log", min_free_bytes=0)
    for _ in range(5):
        watch.check()
    assert measured == [tmp_path]
    watch.min_free_bytes = 2**60
    with pytest.raises(PrepareError, match="MiB left"):
        watch.check()


def test_a_sandbox_is_looked_for_until_one_confines(monkeypatch: pytest.MonkeyPatch) -> None:
    bubblewrap = BubblewrapSandbox(Sandbox("bwrap"), "/python")
    found = [PlainSandbox("/python"), bubblewrap]
    monkeypatch.setattr(builds, "process_sandbox", lambda python: found.pop(0))
    environments = ProcessEnvironments()
    monkeypatch.setattr(environments, "_exists", lambda prepared: True)
    environments._prepared["bare"] = PreparedEnvironment("d", "/python", target=BOOKWORM)
    bases = [environments.base_of("bare") for _ in range(3)]
    assert [base.sandbox for base in bases if base] == [PlainSandbox("/python"), bubblewrap, bubblewrap]
