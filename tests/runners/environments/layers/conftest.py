"""A lab of one node for builds of layers: an index of its own, a base environment, and what pip is configured with."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from runners.environments.installing import uv_program
from runners.environments.layers.base import Base
from runners.environments.layers.build import build_layer
from runners.environments.layers.recipe import Recipe
from runners.environments.layers.sandbox import PlainSandbox, process_sandbox
from runners.environments.layers.store import BuiltLayer
from runners.environments.preparing import PrepareError
from runners.environments.targets import this_machine
from runners.messages import Message
from runners.messages.environment_failures import Failure
from tests.runners.environments.layers.packages import make_index, make_wheel, serving

BASE_PACKAGES = ("baselib==2.0", "torchlike==2.13.0+cpu")


@dataclass
class Lab:
    """One node with a base, whose pip is configured with an index that the test fills."""

    top: Path
    base: Base
    patch: pytest.MonkeyPatch
    address: str = ""
    asked: list[str] = field(default_factory=list)
    """What the index was asked for."""
    steps: list[Message] = field(default_factory=list)

    @property
    def files(self) -> Path:
        return self.top / "index" / "files"

    @property
    def log(self) -> Path:
        return self.top / "logs" / "build.log"

    def publish(self, hashes: dict[str, str] | None = None) -> None:
        make_index(self.top / "index", hashes)

    def configure(self, **settings: str) -> None:
        """Have pip use these settings and no others of this machine."""
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            self.patch.delenv(name)
        for name, value in {"retries": "0", "config_file": os.devnull, **settings}.items():
            self.patch.setenv(f"PIP_{name.upper()}", value)

    def use_index(self, **settings: str) -> None:
        self.configure(index_url=f"{self.address}/simple", **settings)

    def progress(self, percent: int, step: Message) -> None:
        assert 0 <= percent <= 100
        self.steps.append(step)

    def build(self, *lines: str, fresh: bool = False, at: Base | None = None, **options: Any) -> BuiltLayer:
        recipe = Recipe(**{"base": "curated", "lines": lines, **options})
        return build_layer(recipe, at or self.base, self.log, self.progress, fresh=fresh)

    def failure(self, *lines: str, **options: Any) -> Failure:
        """Return why a build fails."""
        with pytest.raises(PrepareError) as error:
            self.build(*lines, **options)
        return error.value.failure

    def left_over(self) -> list[str]:
        """Return what a build has left in the store that is not a layer."""
        return [path.name for path in (self.top / "cache" / "layers").glob(".*")]


@pytest.fixture(scope="session")
def base_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An environment with two packages, one of them with a local version, as PyTorch for CPUs has."""
    top = tmp_path_factory.mktemp("base")
    for folder in (top, *top.parents[:2]):
        folder.chmod(0o755)
    make_wheel(top / "wheels", "baselib", "2.0")
    torchlike = {"torchlike/__init__.py": "VERSION = '2.13.0+cpu'\n"}
    make_wheel(top / "wheels", "torchlike", "2.13.0+cpu", torchlike, needs=["baselib>=1"])
    uv = uv_program()
    assert uv is not None
    env = {**os.environ, "UV_CACHE_DIR": str(top / "cache")}
    run = {"check": True, "capture_output": True, "env": env}
    python = str(top / "env" / "bin" / "python")
    subprocess.run([uv, "venv", "--no-project", "--no-config", "-p", sys.executable, top / "env"], **run)  # type: ignore[call-overload]
    where = ["--no-config", "--no-index", "--find-links", str(top / "wheels"), "-p", python]
    subprocess.run([uv, "pip", "install", *where, *BASE_PACKAGES], **run)  # type: ignore[call-overload]
    return python


@pytest.fixture
def lab(tmp_path: Path, base_python: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A node that can confine nothing: wheels are unpacked by a plain process."""
    for name in list(os.environ):
        if name.startswith("UV_") or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    monkeypatch.delenv("SCHEDULEARN_TORCH_INDEX", raising=False)
    monkeypatch.setenv("SCHEDULEARN_CACHE", str(tmp_path / "cache"))
    made = Lab(tmp_path, Base(base_python, this_machine(False), BASE_PACKAGES, PlainSandbox(base_python)), monkeypatch)
    made.files.mkdir(parents=True)
    with serving(tmp_path / "index") as (made.address, made.asked):
        made.use_index()
        yield made


@pytest.fixture
def confined(lab: Lab, base_python: str) -> Lab:
    """The same node with bubblewrap."""
    sandbox = process_sandbox(base_python)
    assert sandbox.confined
    lab.base = replace(lab.base, sandbox=sandbox)
    return lab
