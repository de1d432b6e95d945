"""Which files of an upload are lists of packages, and which packages imports stand for."""

import pytest

from portal.projects.package_lists.finding import find_lists, may_be_included
from portal.projects.package_lists.imports import NOT_PROPOSED, ProposedPackage, packages_for_imports
from portal.projects.package_lists.model import as_json, from_json
from portal.projects.package_lists.reading import read_lists


def test_lists_are_offered_nearest_to_the_top_first() -> None:
    paths = [
        "a/b/requirements.txt", "docs/requirements.txt", "environment.yml", "pyproject.toml", "requirements-dev.txt", "requirements.txt",
        "requirements/base.txt", "requirements_gpu.txt", "environment.yaml", "train.py", "data/words.txt", "src/pyproject.toml",
        ".github/requirements.txt", "venv/lib/requirements.txt", "node_modules/x/requirements.txt", "requirements.in", "my-environment.yml",
    ]  # fmt: skip
    assert find_lists(paths) == [
        "requirements.txt", "pyproject.toml", "environment.yaml", "environment.yml", "requirements-dev.txt", "requirements_gpu.txt",
        "docs/requirements.txt", "src/pyproject.toml", "requirements/base.txt", "a/b/requirements.txt",
    ]  # fmt: skip
    assert find_lists(reversed(paths)) == find_lists(paths)
    assert len(find_lists(f"p{i}/requirements.txt" for i in range(100))) == 10


@pytest.mark.parametrize(
    ("path", "is_kept"),
    [("base.txt", True), ("deps/all/x.txt", True), ("a/b/c.txt", False), ("a.py", False), ("x.in", True)],
)
def test_files_that_a_list_may_include(path: str, is_kept: bool) -> None:
    assert may_be_included(path) == is_kept


def test_lists_without_anything_are_left_out_and_others_survive_storage() -> None:
    contents = {
        "requirements.txt": b"six\n-e .\n",
        "pyproject.toml": b"[tool.ruff]\n",
        "environment.yml": b"dependencies: [gdal]",
    }
    found = read_lists(contents, contents)
    assert [each.path for each in found] == ["requirements.txt", "environment.yml"]
    assert [from_json(as_json(each)) for each in found] == found


@pytest.mark.parametrize(
    ("module", "package"),
    [("cv2", "opencv-python-headless"), ("PIL", "pillow"), ("PIL.Image", "pillow"), ("sklearn", "scikit-learn"), ("yaml", "pyyaml"),
     ("skimage", "scikit-image"), ("bs4", "beautifulsoup4"), ("dateutil", "python-dateutil"), ("pytorch_lightning", "pytorch-lightning"),
     ("pandas", "pandas"), ("huggingface_hub", "huggingface-hub"), ("torch", "torch"), ("hydra", "hydra-core")],
)  # fmt: skip
def test_a_known_module_has_its_package(module: str, package: str) -> None:
    assert packages_for_imports([module]) == (ProposedPackage(module.split(".")[0], package, False),)


def test_an_unknown_module_is_guessed_by_its_name() -> None:
    assert packages_for_imports(["reqeusts", "torch_helpers"]) == (
        ProposedPackage("reqeusts", "reqeusts", True),
        ProposedPackage("torch_helpers", "torch-helpers", True),
    )


@pytest.mark.parametrize(
    "module",
    ["utils", "config", "models", "_private", "x", "apex", "google.cloud", "größe", "a" * 80, "", ".model", "a-b"],
)
def test_no_package_is_proposed_for_what_is_not_one(module: str) -> None:
    assert packages_for_imports([module]) == ()


def test_no_package_is_proposed_twice() -> None:
    assert [each.package for each in packages_for_imports(["matplotlib", "pylab", "mpl_toolkits", "cv2"])] == [
        "matplotlib",
        "opencv-python-headless",
    ]
    assert "datasets" not in NOT_PROPOSED and "evaluate" not in NOT_PROPOSED
