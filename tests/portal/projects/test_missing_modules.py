"""Which imports an environment lacks, and how much that matters by where they stand."""

import io
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from portal.projects import inspection
from portal.projects.inspecting.program import inspect
from portal.projects.package_lists.imports import RENAMED

IMAGES = Path(__file__).resolve().parents[3] / "runners/environments/images"
MODULES = {package: module for module, package in RENAMED.items()} | {
    "flatbuffers": "flatbuffers",
    "google-auth": "google",
    "google-pasta": "pasta",
    "grpcio": "grpc",
    "libclang": "clang",
    "protobuf": "google",
    "setuptools": "setuptools",
    "tensorflow-cpu": "tensorflow",
}


def guess_of(files: dict[str, str] | str) -> dict[str, Any]:
    files = {"train.py": files} if isinstance(files, str) else files
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, text in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    out.seek(0)
    return inspect(out)


def missing(files: dict[str, str] | str, packages: tuple[str, ...] = ()) -> list[tuple[str, str, int]]:
    found = inspection.missing_modules(guess_of(files), packages)
    return [(each["code"], each["module"], each["line"]) for each in found]


@pytest.mark.parametrize(
    "text",
    [
        "import wandb\n",
        "class A:\n  import wandb\n",
        "if __name__ == '__main__':\n  import wandb\n",
        "try:\n  import wandb\nexcept ValueError:\n  pass\n",
        "try:\n  import wandb\nfinally:\n  pass\n",
        "with open('x'):\n  import wandb\n",
        "with suppress(OSError):\n  import wandb\n",
        "if TYPE_CHECKING:\n  import os\nelse:\n  import wandb\n",
        "def f():\n  import wandb\nimport wandb\n",
    ],
)
def test_an_import_that_always_happens_is_missing(text: str) -> None:
    assert [each[:2] for each in missing(text)] == [("missing-module", "wandb")]


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n  import wandb\n",
        "async def f():\n  if x:\n    from wandb import log\n",
        "class A:\n  def f(self):\n    import wandb.sdk\n",
        "def f():\n  class A:\n    import wandb\n",
        "def f():\n  try:\n    import wandb\n  except ValueError:\n    pass\n",
    ],
)
def test_an_import_inside_a_function_gets_a_milder_warning(text: str) -> None:
    guess = guess_of(text)
    assert guess["in_functions"] == ["wandb"] and set(guess["imports"]) == {"wandb"}
    (warning,) = inspection.missing_modules(guess, ["torch"])
    assert (warning["code"], warning["module"]) == ("missing-in-function", "wandb")
    assert "only inside a function" in warning["text"]
    assert inspection.missing_modules(guess, ["wandb"]) == []


@pytest.mark.parametrize(
    "text",
    [
        "try:\n  import wandb\nexcept ImportError:\n  wandb = None\n",
        "try:\n  import wandb\nexcept (OSError, ModuleNotFoundError):\n  pass\n",
        "try:\n  import wandb\nexcept:\n  pass\n",
        "try:\n  import wandb\nexcept BaseException:\n  raise SystemExit('no')\n",
        "try:\n  import tomllib\nexcept ImportError:\n  import wandb as tomllib\n",
        "def f():\n  try:\n    import wandb\n  except ImportError:\n    return\n",
        "try:\n  def f():\n    import wandb\nexcept ImportError:\n  pass\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  import wandb\n",
        "import typing\nif typing.TYPE_CHECKING:\n  from wandb import run\n",
        "import contextlib\nwith contextlib.suppress(ImportError):\n  import wandb\n",
        "from importlib.util import find_spec\nif find_spec('wandb'):\n  import wandb\n",
        "import importlib.util\nif importlib.util.find_spec('wandb') is not None:\n  import wandb\n",
    ],
)
def test_an_import_whose_failure_is_handled_gets_no_warning(text: str) -> None:
    assert missing(text) == []


def test_the_place_where_a_module_is_always_imported_has_precedence() -> None:
    files = {
        "train.py": "import lib\ndef f():\n  import wandb\n",
        "lib.py": "def g():\n  import rich\n\nimport wandb\n",
    }
    assert missing(files) == [("missing-in-function", "rich", 2), ("missing-module", "wandb", 4)]


def test_a_function_that_imports_a_file_of_the_upload_leads_to_its_imports() -> None:
    files = {"train.py": "def f():\n  from lib import g\n  from . import h\n", "lib.py": "import wandb\n"}
    assert missing(files) == [("missing-module", "wandb", 1)]


def test_versions_of_earlier_releases_warn_as_before() -> None:
    guess = {"imports": {"wandb": ["train.py", 3]}}
    (warning,) = inspection.missing_modules(guess, [])
    assert (warning["code"], warning["module"], warning["line"]) == ("missing-module", "wandb", 3)


@pytest.mark.parametrize("path", sorted(IMAGES.glob("*/requirements.txt")), ids=lambda path: path.parent.name)
def test_no_package_that_an_environment_installs_is_missed(path: Path) -> None:
    offered = tomllib.loads((path.parent / "environment.toml").read_text())["packages"]
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    names = [canonicalize_name(Requirement(line).name) for line in lines]
    modules = [MODULES.get(name, name.replace("-", "_")) for name in names]
    text = "".join(f"import {module}\n" for module in modules)
    assert missing(text, tuple(offered)) == []
