"""A layer with pandas, rich and torchvision over the real environment with PyTorch for CPUs."""

import subprocess
from pathlib import Path

import pytest

from runners.environments.layers import store
from runners.environments.layers.base import Base
from runners.environments.layers.sandbox import process_sandbox
from runners.environments.targets import this_machine
from runners.messages.layer_failures import CannotImport, ContradictsBase
from tests import engine as engines
from tests.runners.environments.layers.conftest import Lab
from tests.runners.environments.layers.packages import make_wheel

pytestmark = [pytest.mark.horovod, pytest.mark.bubblewrap, pytest.mark.thorough, pytest.mark.timeout(600)]

PROGRAM = """
import pandas, numpy, rich, torch, torchvision
from pathlib import Path
from PIL import Image
assert pandas.Series([1, 2]).sum() == 3
assert "site-packages" in numpy.__file__ and not Path(numpy.__file__).is_relative_to(Path(pandas.__file__).parents[1])
assert torchvision.extension._has_ops()
boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]])
assert torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8]), 0.5).tolist() == [0]
assert torchvision.models.resnet18()(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)
Image.new("RGB", (4, 3)).save("picture.png")
assert torchvision.io.read_image("picture.png").shape == (3, 3, 4)
print("all work")
"""


@pytest.fixture(scope="session")
def wheels() -> Path:
    return engines.layer_wheels()


@pytest.fixture
def node(lab: Lab, plain_python: str, wheels: Path) -> Lab:
    """A node whose pip finds wheels in a folder."""
    listed = [plain_python, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"]
    packages = tuple(subprocess.check_output(listed, text=True).split())
    lab.base = Base(plain_python, this_machine(False), packages, process_sandbox(plain_python))
    assert lab.base.sandbox.confined
    lab.configure(no_index="true", find_links=str(wheels))
    return lab


def run(node: Lab, folder: Path, cwd: Path) -> str:
    """Run the program as a job does."""
    env = {"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [node.base.python, "-c", PROGRAM], env=env, cwd=cwd, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_what_beginners_import_works_on_this_node_and_on_the_next(
    node: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = node.build("pandas", "rich", "torchvision")
    assert {"pandas", "rich", "torchvision", "PIL"} <= set(layer.modules)
    assert not {"torch", "numpy"} & set(layer.modules)
    assert "torchvision was made for CUDA; its libraries load without." in node.log.read_text()
    assert run(node, layer.folder, tmp_path) == "all work\n"
    packed = store.pack(layer.digest, tmp_path / "layer.tar")
    monkeypatch.setenv("SCHEDULEARN_CACHE", str(tmp_path / "next"))
    folder = store.unpack(packed.path, layer.digest, packed.sha256)
    layer.folder.rename(tmp_path / "gone")
    assert run(node, folder, tmp_path) == "all work\n"


def test_another_torch_is_refused_by_name(node: Lab) -> None:
    version = dict(each.split("==") for each in node.base.packages)["torch"]
    assert node.failure("rich", "torch==2.9.1") == ContradictsBase("torch==2.9.1", "torch", version)


def test_a_torchvision_that_does_not_load_is_found_before_a_job_does(node: Lab) -> None:
    wrong = {"torchvision/__init__.py": "raise ImportError('undefined symbol: of another torch')\n"}
    make_wheel(node.top / "wrong", "torchvision", "9.0", files=wrong)
    node.configure(no_index="true", find_links=str(node.top / "wrong"))
    failure = node.failure("torchvision")
    assert isinstance(failure, CannotImport) and failure.module == "torchvision"
    assert "undefined symbol: of another torch" in failure.text
