"""A job that asks for more GPUs than its code can use is questioned before it is submitted."""

import io
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from portal.accounts.models import User
from portal.cluster.models import Gpu
from portal.jobs.submit_warnings import warnings_for
from portal.projects import services
from portal.projects.models import CodeVersion
from tests import corpus
from tests.portal.jobs_world import make_node

ONE = "import torch\nmodel = torch.nn.Linear(2, 2)\nmodel.to('cuda:0')\n"


@pytest.fixture
def alice(db: None) -> User:
    return User.objects.create_user("alice")


def code(user: User, **files: str) -> CodeVersion:
    project = services.create_project(user, "Vision")
    packed = corpus.zip_tree({f"{name}.py": text.encode() for name, text in files.items()} | {"README.md": b"x"})
    return services.store_code(user, project, [("code.zip", io.BytesIO(packed))])


def found(version: CodeVersion, *asked: Any) -> list[str]:
    return [each["text"] for each in warnings_for(version, *asked) if each["code"] == "idle-gpus"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("torchrun", "", 2), "does not use torch.distributed: each of its 2 ranks would run all of it"),
        (("horovod", "", 4), "does not use Horovod: each of its 4 ranks"),
        (("command", "python train.py --lr 1", 2), "the other would be idle"),
        (("command", "python3 train.py", 8), "the other 7 would be idle"),
        (("command", "/opt/env/bin/python train.py", 2), "idle"),
    ],
)
def test_code_that_uses_one_gpu_is_questioned(alice: User, asked: tuple[str, str, int], words: str) -> None:
    (text,) = found(code(alice, train=ONE), *asked)
    assert words in text


@pytest.mark.parametrize(
    "asked",
    [
        ("torchrun", "", 1),
        ("command", "python train.py", 1),
        ("command", "bash run.sh", 2),
        ("bogus", "", 2),
        ("", "", 2),
    ],
)
def test_others_are_not(alice: User, asked: tuple[str, str, int]) -> None:
    assert found(code(alice, train=ONE), *asked) == []


@pytest.mark.parametrize(
    "text",
    [
        "import horovod.torch as hvd\n",
        "import torch.distributed as dist\n",
        "from torch.nn.parallel import DistributedDataParallel\nmodel = DistributedDataParallel(model)\n",
        "import torch\nmodel = torch.nn.DataParallel(model)\n",
        "import torch.multiprocessing as mp\nmp.spawn(work, nprocs=2)\n",
        "from accelerate import Accelerator\n",
        "import os\nrank = int(os.environ['LOCAL_RANK'])\n",
        "x.to('cuda:1')\n",
        "import lightning\n",
        "from transformers import Trainer\n",
        "def (:\n",
    ],
)
def test_what_may_use_several_is_not_questioned(alice: User, text: str) -> None:
    assert found(code(alice, train=ONE, other=text), "torchrun", "", 2) == []


def test_versions_of_earlier_releases_are_not_questioned(alice: User) -> None:
    version = code(alice, train=ONE)
    del version.guess["one_gpu"]
    assert found(version, "torchrun", "", 2) == []


def test_the_form_asks_when_the_choice_changes_and_takes_any_text(alice: User, client: Client) -> None:
    version = code(alice, train=ONE)
    client.force_login(alice)
    url = reverse("jobs:new-warnings")
    asked = {"code": str(version.pk), "launcher": "torchrun"}
    page = client.get(url, asked | {"min_gpus": "1", "max_gpus": "2"}).content.decode()
    assert "each of its 2 ranks would run all of it" in page
    for text in ("", "x", "-3", "99999999999", "²"):
        assert client.get(url, asked | {"min_gpus": text, "max_gpus": text}).status_code == 200
    assert "max_gpus" in client.get(reverse("jobs:new"), {"code": version.pk}).content.decode()
    posted = client.post(
        f"{reverse('jobs:new')}?code={version.pk}", {"launcher": "torchrun", "min_gpus": "2", "max_gpus": "2"}
    )
    assert posted.status_code == 400 and "each of its 2 ranks" in posted.content.decode()


@pytest.mark.parametrize(
    ("imported", "asked", "warned"),
    [
        ("lightning as L", ("torchrun", "", 2), True),
        ("pytorch_lightning as pl", ("torchrun", "", 8), True),
        ("lightning as L", ("torchrun", "", 1), False),
        ("lightning as L", ("command", "python train.py", 2), False),
        ("torch", ("torchrun", "", 2), False),
    ],
)
def test_lightning_under_torchrun_needs_the_numbers_of_the_job(
    alice: User, imported: str, asked: tuple[str, str, int], warned: bool
) -> None:
    warnings = warnings_for(code(alice, train=f"import {imported}\n"), *asked)
    assert any(each["code"] == "lightning-ranks" and "GROUP_WORLD_SIZE" in each["text"] for each in warnings) is warned


# --- commands that install packages ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "packages"),
    [
        ("pip install plumbum && python train.py", "plumbum"),
        ("cd src; python3 -m pip install -q 'zict>=3' plumbum; python train.py", "zict>=3\nplumbum"),
        ("uv pip install zict && python train.py", "zict"),
        ("mamba install -y -c conda-forge pytorch zarr", "torch\nzarr"),
        ("pip install -r needs.txt && python train.py", ""),
        ("sudo apt-get -y install ffmpeg && python train.py", ""),
    ],
)
def test_a_command_that_installs_packages_is_warned_of(alice: User, command: str, packages: str) -> None:
    version = code(alice, train=ONE)
    (warning,) = [each for each in warnings_for(version, "command", command, 1) if each["code"] == "installs"]
    assert warning["packages"] == packages and "A job installs nothing" in warning["text"]
    assert not [each for each in warnings_for(version, "torchrun", command, 1) if each["code"] == "installs"]


@pytest.mark.parametrize("command", ["python install.py", "uv run train.py", "make install", "pip list", "echo 'a"])
def test_other_commands_install_nothing(alice: User, command: str) -> None:
    assert not [each for each in warnings_for(code(alice, train=ONE), "command", command) if each["code"] == "installs"]


def test_the_form_leads_to_a_new_environment_with_these_packages(alice: User, client: Client) -> None:
    version = code(alice, train=ONE)
    client.force_login(alice)
    asked = {
        "code": str(version.pk),
        "launcher": "command",
        "command": "pip install 'zict>=3' plumbum && python train.py",
    }
    page = client.get(reverse("jobs:new-warnings"), asked).content.decode()
    address = f"/environments/new/?project={version.project_id}&packages=zict%3E%3D3%0Aplumbum"
    assert address in page.replace("&amp;", "&")
    assert "zict&gt;=3\nplumbum</textarea>" in client.get(address).content.decode()


def test_a_note_of_the_upload_counts_what_the_lab_has(alice: User) -> None:
    version = code(alice, train=ONE)
    note = {"code": "started-with", "path": "go.sh", "line": 1, "text": "Enter what else it has: 3 GPUs."}
    version.guess = {"warnings": [note]}
    make_node(gpus=2)
    assert [each["text"] for each in warnings_for(version)] == ["Enter what else it has: 3 CPU slots."]
    Gpu.objects.update(kind="cuda")
    assert [each["text"] for each in warnings_for(version)] == [note["text"]]


def test_a_script_that_installs_packages_is_warned_of_when_it_is_uploaded(alice: User) -> None:
    project = services.create_project(alice, "Scripts")
    script = b"set -e\npip install plumbum\npython prepare.py\npython train.py\n"
    files = {"run.sh": script, "prepare.py": b"print(1)\n", "train.py": b"print(2)\n"}
    version = services.store_code(alice, project, [("code.zip", io.BytesIO(corpus.zip_tree(files)))])
    (warning,) = [each for each in version.guess["warnings"] if each["code"] == "installs"]
    assert (warning["path"], warning["line"]) == ("run.sh", 2)
