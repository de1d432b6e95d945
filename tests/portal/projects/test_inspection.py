"""What inspection finds in code before it runs: how to start it, and each of the common mistakes."""

import io
import tarfile
from typing import Any

import pytest

from portal.projects import inspection
from portal.projects.inspecting.entries import entry_of
from portal.projects.inspecting.program import inspect
from portal.projects.inspecting.source import read

HVD = "import horovod.torch as hvd\nimport torch\n"
GOOD = HVD + "hvd.init()\ntorch.manual_seed(0)\n"
LIBRARY = "from schedulearn_train import Run\nimport torch\nrun = Run(m, torch.optim.SGD(m.parameters()), d, batch=8)"
ELASTIC = GOOD + (
    "@hvd.elastic.run\ndef train(state):\n    state.commit()\n    torch.save(model, checkpoint)\n"
    "train(hvd.elastic.TorchState(model))\n"
)
DDP = (
    "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
    "dist.init_process_group('gloo')\n"
)


def look(files: dict[str, str] | str) -> dict[str, Any]:
    files = {"train.py": files} if isinstance(files, str) else files
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, text in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    out.seek(0)
    return inspect(out)


def codes(files: dict[str, str] | str) -> dict[str, int]:
    return {warning["code"]: warning["line"] for warning in look(files)["warnings"]}


def test_a_condition_nested_deeper_than_python_recurses_is_read() -> None:
    assert look(f"if {' + '.join('a' * 1500)}:\n    import torch\n")["imports"] == {"torch": ["train.py", 2]}


# Entry, launcher, imports


@pytest.mark.parametrize(
    ("files", "entry"),
    [
        ({"train.py": "", "model.py": ""}, "train.py"),
        ({"main.py": "import model", "model.py": "import torch"}, "main.py"),
        ({"mnist.py": "if __name__ == '__main__': pass", "data.py": ""}, "mnist.py"),
        ({"src/train.py": "import torch", "setup.py": "import setuptools"}, "src/train.py"),
        ({"a.py": "import b", "b.py": "import torch\nif __name__ == '__main__': b()"}, "a.py"),
        ({"tests/test_train.py": "import torch", "experiment.py": ""}, "experiment.py"),
        (
            {
                "lib/nn/run_task.py": "import torch\nif __name__ == '__main__': pass",
                "lib/nn/__init__.py": "",
                "examples/nn/digits.py": "import torch\nif __name__ == '__main__': pass",
            },
            "examples/nn/digits.py",
        ),
        ({"lib/train.py": "import torch", "lib/__init__.py": "", "tools/clean.py": "import torch"}, "lib/train.py"),
        ({"train_horovod.py": HVD, "train_single.py": "import torch"}, "train_horovod.py"),
    ],
)
def test_the_file_to_run_is_guessed(files: dict[str, str], entry: str) -> None:
    assert look(files)["entry"] == entry


@pytest.mark.parametrize(
    ("text", "launcher", "elastic"),
    [
        ("print(1)", "command", False),
        ("import torch", "command", False),
        ("import horovod.torch as hvd\nhvd.init()", "horovod", False),
        ("from horovod import torch as hvd\nhvd.init()", "horovod", False),
        ("import horovod.tensorflow.keras as hvd\nhvd.init()", "horovod", False),
        (ELASTIC, "horovod", True),
        ("import horovod\nimport horovod.torch as hvd\nrun = hvd.elastic.run(f)", "horovod", True),
        ("from horovod.torch.elastic import run\n@run\ndef f(state): state.commit()", "horovod", True),
        (DDP, "torchrun", False),
        (DDP + "\ntorch.save(1, 'x'), torch.load('x')", "torchrun", False),
        (DDP + "\nimport signal\ntorch.save(1, 'x'), torch.load('x'), signal.SIGTERM", "torchrun", True),
        ("from torch.distributed import init_process_group\ninit_process_group()", "torchrun", False),
        ("import torch\ntorch.distributed.init_process_group()", "torchrun", False),
        (DDP + "import torch.multiprocessing as mp\nmp.spawn(main, nprocs=2)", "command", False),
        (DDP + "from torch.multiprocessing import spawn\nspawn(main)", "command", False),
        (
            DDP + "import os, torch.multiprocessing as mp\nif 'LOCAL_RANK' not in os.environ: mp.spawn(main)",
            "torchrun",
            False,
        ),
        (DDP + "import multiprocessing\nmultiprocessing.get_context('spawn')", "torchrun", False),
        ("# import horovod\nx = 'import horovod'", "command", False),
        (LIBRARY, "horovod", False),
        (LIBRARY + "\n@run.elastic\ndef f(): pass", "horovod", True),
        (LIBRARY.replace("8)", "8, mode='asp')"), "torchrun", False),
        ("import schedulearn_train\nschedulearn_train.log_metric('x', 1)", "command", False),
    ],
)
def test_the_launcher_is_guessed(text: str, launcher: str, elastic: bool) -> None:
    guess = look(text)
    assert (guess["launcher"], guess["elastic"]) == (launcher, elastic)


def test_the_launcher_is_seen_through_imports_of_the_upload() -> None:
    files = {"train.py": "from lib.dist import setup", "lib/__init__.py": "", "lib/dist.py": ELASTIC, "old.py": DDP}
    assert look(files)["launcher"] == "horovod" and look(files)["elastic"]


def test_the_training_library_is_in_every_job_and_does_what_a_script_would_have_to() -> None:
    guess = look({"train.py": LIBRARY})
    assert "schedulearn_train" not in guess["imports"] and "torch" in guess["imports"]
    assert not {"optimizer-alone", "no-device"} & {each["code"] for each in guess["warnings"]}


def test_imports_are_what_an_environment_has_to_offer() -> None:
    files = {
        "train.py": "import os, torch.nn\nimport numpy as np\nfrom lib import net\nfrom . import x\n"
        "try:\n    import apex\nexcept ImportError:\n    apex = None\n"
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas\n",
        "lib/net.py": "import einops\nimport train\n",
        "unused.py": "import keras\n",
    }
    guess = look(files)
    assert guess["imports"] == {"torch": ["train.py", 1], "numpy": ["train.py", 2], "einops": ["lib/net.py", 1]}
    missing = inspection.missing_modules(guess, ["torch", "numpy"])
    assert [(w["code"], w["path"], w["line"]) for w in missing] == [("missing-module", "lib/net.py", 1)]
    assert "einops" in missing[0]["text"]


def test_modules_are_found_where_a_job_finds_them() -> None:
    """Beside the file, at the top of the upload, and in src (runners/launch/shim)."""
    files = {
        "scripts/train.py": "import beside\nimport lib.model\nimport package.data\nimport elsewhere\n",
        "scripts/beside.py": "",
        "lib/model.py": "import einops",
        "src/package/data.py": "import pandas",
        "other/elsewhere.py": "",
    }
    guess = look(files)
    assert guess["entry"] == "scripts/train.py"
    assert sorted(guess["imports"]) == ["einops", "elsewhere", "pandas"]


def test_the_source_of_a_package_that_has_to_be_compiled_is_no_part_of_what_runs() -> None:
    """The repository of Horovod has it at the top; a job gets the installed one (runners/launch/shim)."""
    files = {
        "examples/digits.py": GOOD + "opt = hvd.DistributedOptimizer(opt)\n",
        "horovod/__init__.py": "",
        "horovod/torch/__init__.py": "import requests\nrequests.get(address)\n",
    }
    guess = look(files)
    assert (guess["entry"], guess["launcher"], guess["warnings"]) == ("examples/digits.py", "horovod", [])
    assert sorted(guess["imports"]) == ["horovod", "torch"]


@pytest.mark.parametrize(
    ("entry", "elastic", "found"),
    [("examples/digits.py", False, {"lost-file"}), ("digits.py", True, {"lost-file", "input"})],
)
def test_a_library_is_not_judged_by_its_examples(entry: str, elastic: bool, found: set[str]) -> None:
    """What it may do in other cases is neither a mistake of the example nor something that the example does."""
    library = "import signal, torch\nsignal.SIGTERM, torch.save(x, place), torch.load(x)\ninput('Configure: ')\n"
    files = {
        entry: DDP + "import lib\ntorch.save(model, 'model.pt')\n",
        "src/lib/__init__.py": library,
    }
    guess = look(files)
    assert (guess["entry"], guess["launcher"], guess["elastic"]) == (entry, "torchrun", elastic)
    assert {each["code"] for each in guess["warnings"]} == found


@pytest.mark.parametrize(
    ("files", "module"),
    [
        ({"pkg/train.py": "from .core import run", "pkg/core.py": "", "pkg/__init__.py": ""}, "pkg.train"),
        ({"src/pkg/train.py": "from . import core", "src/pkg/core.py": ""}, "pkg.train"),
        ({"pkg/__main__.py": "from .core import run", "pkg/core.py": "run = 1"}, "pkg"),
        ({"pkg/train.py": "from core import run", "pkg/core.py": ""}, None),
        ({"my-pkg/train.py": "from .core import run", "my-pkg/core.py": ""}, None),
    ],
)
def test_a_file_with_relative_imports_runs_as_a_module(files: dict[str, str], module: str | None) -> None:
    guess = look(files)
    assert guess["module"] == module
    assert entry_of(guess) == (f"-m {module}" if module else guess["entry"])


def test_requirements_are_read_as_names() -> None:
    text = (
        "torch==2.1\n# comment\nscikit_learn>=1 ; python_version > '3'\n-r other.txt\ngit+https://x/y\n\nnumpy[extra]\n"
    )
    assert look({"train.py": "", "requirements.txt": text})["requirements"] == ["git", "numpy", "scikit-learn", "torch"]


# Mistakes: each caught, on its line


@pytest.mark.parametrize(
    ("code", "line", "text"),
    [
        ("syntax", 2, "x = 1\nprint 'hello'\n"),
        ("relative-import", 2, "import os\nfrom .model import Net\n"),
        ("no-init", 1, HVD + "print(hvd.rank())\n"),
        ("no-process-group", 3, "import torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\nm = DDP(net)\n"),
        ("elastic-not-run", 5, GOOD + "state = hvd.elastic.TorchState(model)\n"),
        ("optimizer-alone", 5, GOOD + "opt = torch.optim.SGD(p, 0.1)\nhvd.rank()\n"),
        ("different-beginnings", 4, HVD + "hvd.init()\nopt = hvd.DistributedOptimizer(opt)\n"),
        ("all-data-on-each-rank", 5, GOOD + "loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)\n"),
        ("all-data-on-each-rank", 6, DDP + "from torch.utils.data import DataLoader\nDataLoader(data, shuffle=True)\n"),
        ("fixed-device", 5, GOOD + "device = torch.device('cuda:0')\n"),
        ("fixed-device", 5, GOOD + "model.cuda(0)\n"),
        ("fixed-device", 5, DDP + "torch.cuda.set_device(1)\n"),
        ("no-device", 5, GOOD + "model.to('cuda')\n"),
        ("own-places", 2, "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0,1'\n"),
        ("own-places", 6, DDP + "import os\nos.environ['MASTER_ADDR'] = 'localhost'\n"),
        ("spawns-ranks", 6, GOOD + "import torch.multiprocessing as mp\nmp.spawn(main, nprocs=4)\n"),
        ("spawns-ranks", 6, DDP + "import torch.multiprocessing as mp\nmp.spawn(main, os.environ['LOCAL_RANK'])\n"),
        ("data-parallel", 5, DDP + "model = torch.nn.DataParallel(model)\n"),
        ("elastic-no-commit", 1, ELASTIC.replace("state.commit()", "pass")),
        ("elastic-no-checkpoint", 1, ELASTIC.replace("torch.save(model, checkpoint)", "pass")),
        ("foreign-path", 1, "data = open('/home/alice/data.csv')\n"),
        ("foreign-path", 1, "root = 'C:\\\\Users\\\\alice'\n"),
        ("foreign-path", 1, "root = '~/datasets'\n"),
        ("lost-file", 2, "import torch\ntorch.save(model.state_dict(), 'model.pt')\n"),
        ("lost-file", 1, "with open('log.txt', 'w') as f: pass\n"),
        ("lost-file", 2, "import matplotlib.pyplot as plt\nplt.savefig('loss.png')\n"),
        ("internet", 2, "from torchvision import datasets\ndatasets.MNIST('data', download=True)\n"),
        ("internet", 2, "import requests\nrequests.get(url)\n"),
        ("installs", 2, "import os\nos.system('pip install einops')\n"),
        ("installs", 2, "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'pip', 'install', 'x'])\n"),
        ("input", 1, "name = input('Name? ')\n"),
        ("window", 2, "import matplotlib.pyplot as plt\nplt.show()\n"),
        ("jupyter", 1, "get_ipython().run_line_magic('matplotlib', 'inline')\n"),
    ],
)  # fmt: skip
def test_a_mistake_is_caught_on_its_line(code: str, line: int, text: str) -> None:
    assert codes(text).get(code) == line


@pytest.mark.parametrize(
    "text",
    [
        GOOD + "torch.cuda.set_device(hvd.local_rank())\nmodel.cuda()\n",
        GOOD + "device = torch.device('cuda', hvd.local_rank())\nmodel.to('cuda')\n",
        ELASTIC + "loader = torch.utils.data.DataLoader(d, sampler=hvd.elastic.ElasticSampler(d))\n",
        GOOD + "loader = torch.utils.data.DataLoader(d, shuffle=False)\n",
        GOOD + "opt = hvd.DistributedOptimizer(torch.optim.SGD(p))\nhvd.broadcast_parameters(p)\n",
        DDP + "import os\nos.environ.setdefault('MASTER_ADDR', 'localhost')\nmodel = DDP(model)\n",
        "import torch\ndevice = torch.device('cuda:0')\nmodel = torch.nn.DataParallel(model)\n",
        "import os, torch\ntorch.save(m, os.path.join(os.environ['SCHEDULEARN_OUTPUTS'], 'model.pt'))\n",
        "import torch\ntorch.save(m, '/outputs/model.pt')\nopen('config.yaml')\nopen('/data/x.csv')\n",
        "from torchvision import datasets\ndatasets.MNIST('/data', download=False)\n",
        '"""Run with: python /home/me/train.py"""\nurl = "https://home/x"\n',
        "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nos.environ['CUDA_VISIBLE_DEVICES'] = ''\n",
        GOOD + "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '-1'\n",
        "def f(input):\n    return input.show()\n",
        "class A:\n    def input(self): pass\nA().input()\n",
        "import pickle\npickle.dump(x, file)\n",
        "import matplotlib.pyplot as plt\nplt.savefig('/outputs/a.png')\nplt.show()\n",
        "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nfig.savefig(name)\nplt.show()\n",
    ],
)
def test_code_that_is_right_raises_no_alarm(text: str) -> None:
    assert codes(text) == {}


def test_files_that_are_not_run_are_not_judged() -> None:
    files = {"train.py": "print(1)", "old/broken.py": "print 'x'", "notes.py": "input()"}
    assert look(files)["warnings"] == []


@pytest.mark.parametrize(
    ("files", "word"),
    [
        ({"a.ipynb": "{}"}, "notebook"),
        ({"README.md": "x"}, "no Python file"),
        ({"b.sh": "echo 1", "a.sh": "echo 2"}, "such as bash a.sh."),
        ({"fit it.sh": "#!/bin/sh\n#SBATCH -n 4\nsrun fit\n"}, "such as bash 'fit it.sh'."),
        ({"scripts/a.sh": "echo 1", "scripts/b.sh": "echo 2"}, "no Python file, shell script or Makefile at the top"),
    ],
)
def test_an_upload_without_python_is_reported(files: dict[str, str], word: str) -> None:
    warnings = look(files)["warnings"]
    assert [w["code"] for w in warnings] == ["nothing-to-run"] and word in warnings[0]["text"]


@pytest.mark.parametrize(
    "text",
    [
        "(" * 50_000,
        "-" * 200_000 + "1",
        "x" + ".a" * 100_000,
        "x" + "()" * 100_000,
        "x = " + "[" * 190 + "]" * 190,
        "\0",
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
        "if x:\n" + " pass\n" * 20_000,
        "input()\n" * 20_000,
        "from " + "." * 5000 + " import a\n",
        "# coding: nothing\n",
        "f'{" * 500,
        "a = '" + "/home/x " * 60_000 + "'",
    ],
    ids=range(13),
)
def test_hostile_code_is_looked_at_in_bounds(text: str) -> None:
    guess = look({"train.py": text, "b.py": "import train"})
    assert guess["entry"] in ("train.py", "b.py") and len(guess["warnings"]) <= 40


def test_modules_that_import_each_other_come_to_an_end() -> None:
    files = {f"m{n}.py": f"import m{(n + 1) % 300}\nimport m{(n * 7) % 300}\n" for n in range(300)}
    assert look(files)["entry"]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"x = 1\n# caf\xe9\n", 2),
        (b"x = 'caf\xe9'\n", 1),
        ("# -*- coding: latin-1 -*-\nx = 'caf\xe9'\n".encode("latin-1"), None),
        ("x = 'café'\n".encode(), None),
        (b"\xef\xbb\xbfx = 1\n", None),
    ],
    ids=["in a comment", "in a text", "declared", "as UTF-8", "with a mark"],
)
def test_a_file_in_another_encoding_is_reported_before_it_runs(content: bytes, line: int | None) -> None:
    source = read("train.py", content)
    assert (source.error[1] if source.error else None) == line
    assert source.error is None or "not UTF-8" in source.error[0]


def test_warnings_are_true_on_every_page_that_shows_them() -> None:
    """The version's page and the API show them, too; and admins may allow hosts."""
    code = "import os, urllib.request\nurllib.request.urlopen('https://example.org')\nos.system('pip install rich')\n"
    texts = {each["code"]: each["text"] for each in look(code)["warnings"]}
    assert "only hosts that an admin has allowed" in texts["internet"]
    assert "the form for a new job offers to install them" in texts["installs"]


def test_a_file_that_a_cell_writes_and_the_version_has_is_not_lost() -> None:
    """The line is what ``%%writefile`` became (``unpacking/notebooks.py``)."""
    code = "with open('helper.py', 'w') as _file:\n    _file.write('x = 1')\nopen('log.txt', 'w')\n"
    assert codes({"fit.py": code, "helper.py": "x = 1"}) == {"lost-file": 3}
    assert codes({"nb/fit.py": code, "nb/helper.py": "x = 1"}) == {"lost-file": 3}
    assert codes({"fit.py": code})["lost-file"] == 3
    warnings = look({"fit.py": code})["warnings"]
    assert [each["line"] for each in warnings if each["code"] == "lost-file"] == [1, 3]
