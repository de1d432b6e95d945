"""Where a job's Python finds modules: an upload's own ones, and installed packages in place of their mere source."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runners.launch.files import ContainerPaths
from runners.launch.ranks import SHIM, rank_env
from runners.spec import LAYER_VARIABLE
from tests.runners.conftest import make_spec

INSTALLED = ("__init__.py", "api.py", "codec.py", "core/__init__.py", "core/native.so")
SOURCE = ("__init__.py", "api.py", "codec.py", "core/__init__.py", "core/native.cc", "newer.py")


def package(folder: Path, files: tuple[str, ...], origin: str) -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"ORIGIN = {origin!r}\n" if name.endswith(".py") else "")


def origin_of(tmp_path: Path, *arguments: str) -> str:
    """Run Python in the upload of a job, with one installed package, and return what it prints."""
    packages = tmp_path / "lib" / "site-packages"
    package(packages / "fast", INSTALLED, "installed")
    workspace = tmp_path / "workspace"
    env = {**os.environ, "PYTHONPATH": f"{SHIM}:{packages}", "SCHEDULEARN_WORKSPACE": str(workspace)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=workspace, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert not done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("folder", ["fast", "src/fast"])
@pytest.mark.parametrize("arguments", [("examples/run.py",), ("run.py",), ("-m", "examples.run"), ("-c", "import run")])
def test_an_installed_package_is_used_in_place_of_its_mere_source(
    tmp_path: Path, folder: str, arguments: tuple[str, ...]
) -> None:
    """As in the repository of a package with examples, wherever these are."""
    workspace = tmp_path / "workspace"
    package(workspace / folder, SOURCE, "uploaded")
    (workspace / "examples").mkdir()
    for script in ("run.py", "examples/run.py"):
        (workspace / script).write_text("import fast.api, fast.core\nprint(fast.api.ORIGIN, fast.core.ORIGIN)\n")
    assert origin_of(tmp_path, *arguments) == "installed installed"


@pytest.mark.parametrize(
    "files",
    [
        (*SOURCE, "core/native.so"),
        ("__init__.py", "api.py", "model.py", "data.py"),
    ],
    ids=["its own compiled parts", "another package of the same name"],
)
def test_a_package_of_the_upload_that_can_work_is_used(tmp_path: Path, files: tuple[str, ...]) -> None:
    workspace = tmp_path / "workspace"
    package(workspace / "fast", files, "uploaded")
    (workspace / "scripts").mkdir()
    (workspace / "scripts" / "run.py").write_text("import fast.api\nprint(fast.api.ORIGIN)\n")
    assert origin_of(tmp_path, "scripts/run.py") == "uploaded"


def test_packages_of_the_layer_follow_those_of_the_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer adds packages and never replaces one of the base, or a module of the upload."""
    layer, workspace = tmp_path / "layer", tmp_path / "workspace"
    for folder, files in ((layer / "fast", INSTALLED), (layer / "added", INSTALLED), (layer / "mine", INSTALLED)):
        package(folder, files, "layer")
    package(workspace / "mine", SOURCE[:2], "uploaded")
    (workspace / "run.py").write_text(
        "import added, fast, mine, subprocess, sys\nprint(added.ORIGIN, fast.ORIGIN, mine.ORIGIN, flush=True)\n"
        "subprocess.run([sys.executable, '-c', 'import added; print(added.ORIGIN)'], check=True)\n"
    )
    monkeypatch.setenv("SCHEDULEARN_LAYER", str(layer))
    assert origin_of(tmp_path, "run.py").split("\n") == ["layer installed uploaded", "layer"]


def test_programs_of_the_layer_come_after_those_of_the_base(tmp_path: Path) -> None:
    inherited = {"PATH": "/opt/env/bin:/usr/bin", LAYER_VARIABLE: "/opt/layer"}
    env = rank_env(make_spec(), ContainerPaths.from_env({}), inherited)
    assert env["PATH"] == "/opt/env/bin:/opt/layer/bin:/usr/bin"
