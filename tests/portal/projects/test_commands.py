"""The command line that a page proposes for code, from inspection to the line that a shell reads."""

import io
import shlex
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from portal.jobs.services import command_for
from portal.projects.inspecting.entries import entry_of
from portal.projects.inspecting.program import inspect


def guess_for(files: dict[str, str]) -> dict[str, Any]:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, text in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    out.seek(0)
    return inspect(out)


def proposed(files: dict[str, str]) -> str:
    return command_for(guess_for(files))


@pytest.mark.parametrize(
    "name",
    [
        "Copy of Lab3.py",
        "analysis final (2).py",
        "it's $HOME.py",
        "a&b;c.py",
        "wörter zählen.py",
        "50% *.py",
        "plain.py",
    ],
)
def test_a_shell_runs_the_file_whatever_its_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("print('it ran')\n")
    command = proposed({name: "print('it ran')\n"})
    assert shlex.split(command) == ["python", name]
    run = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", command.replace("python", sys.executable, 1)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.stdout == "it ran\n", run.stderr


def test_nothing_is_proposed_where_nothing_can_be_run() -> None:
    assert proposed({"notes.txt": "x"}) == ""


STEPS = "#!/bin/bash\nset -e\npython steps/01_read.py > reads.txt\npython3 steps/02_count.py reads.txt\n"
PARTS = {"steps/01_read.py": "print(1)", "steps/02_count.py": "print(2)"}
READS = "open('config.ini')\nopen('../../data/rain.csv')\n"
DEEP = {"chapters/four/fit.py": READS, "chapters/four/config.ini": "", "data/rain.csv": ""}


@pytest.mark.parametrize(
    ("files", "command"),
    [
        # shell scripts that run several steps
        (PARTS | {"run_all.sh": STEPS}, "bash run_all.sh"),
        (PARTS | {"my steps.sh": STEPS}, "bash 'my steps.sh'"),
        (PARTS | {"install.sh": "pip install x\n", "go.sh": STEPS}, "bash go.sh"),
        ({"simulate.sh": "awk 'BEGIN { print 1 }'\n"}, "bash simulate.sh"),
        # but not those for another scheduler, of one step, further down, or of which none is likelier
        (PARTS | {"job.sh": f"#SBATCH --gres=gpu:1\n{STEPS}"}, "python steps/01_read.py"),
        (PARTS | {"job.sh": STEPS.replace("python ", "srun python ")}, "python steps/01_read.py"),
        (PARTS | {"one.sh": "python steps/01_read.py\n"}, "python steps/01_read.py"),
        (PARTS | {"old/run_all.sh": STEPS}, "python steps/01_read.py"),
        (PARTS | {"a.sh": STEPS, "b.sh": STEPS}, "python steps/01_read.py"),
        # nor those that prepare something, or clean up
        (PARTS | {"download_data.sh": STEPS}, "python steps/01_read.py"),
        (PARTS | {"test.sh": STEPS}, "python steps/01_read.py"),
        (PARTS | {"prepare.sh": STEPS, "train.py": "import torch\nif __name__ == '__main__':\n    1"}, "python train.py"),
        (PARTS | {"run_all.sh": STEPS, "main.py": "import torch\nif __name__ == '__main__':\n    1"}, "bash run_all.sh"),
        (PARTS | {"run.sh": "# python steps/01_read.py\n  # python steps/02_count.py\n"}, "python steps/01_read.py"),
        ({"clean.sh": "rm -rf out\n"}, ""),
        ({"tester.sh": "./tester\n"}, "bash tester.sh"),
        ({"-x.sh": "true\n"}, "bash ./-x.sh"),
        # Makefiles
        ({"Makefile": "CC := gcc\nrun : ising\n\t./ising\n", "ising.c": ""}, "make run"),
        ({"makefile": "all: a.c\n\tcc a.c\nrun := yes\n", "a.c": ""}, "make"),
        ({"Makefile": "run:\n\tpython train.py\n", "train.py": ""}, "python train.py"),
        # files beside a script in a folder
        (DEEP, "cd chapters/four && python fit.py"),
        ({"my work/a b.py": "open('in.txt')", "my work/in.txt": ""}, "cd 'my work' && python 'a b.py'"),
        ({"notebooks/look.py": "import os\nos.listdir('../data')", "data/x.csv": ""}, "cd notebooks && python look.py"),
        # but not where the code finds them from anywhere, or from the top
        (DEEP | {"chapters/four/fit.py": f"import os\nos.chdir(os.path.dirname(__file__))\n{READS}"},
         "python chapters/four/fit.py"),
        ({"src/train.py": "open('data/x.csv')", "data/x.csv": ""}, "python src/train.py"),
        ({"src/train.py": "open('x.csv')", "src/x.csv": "", "x.csv": ""}, "python src/train.py"),
        ({"src/train.py": "open('x.csv')\nopen('y.csv')", "src/x.csv": "", "y.csv": ""}, "python src/train.py"),
        ({"src/train.py": "log = {'data': 1}", "src/data/x.csv": ""}, "python src/train.py"),
        ({"src/train.py": "open('../../../etc/passwd')\nopen('/etc/passwd')"}, "python src/train.py"),
    ],
)  # fmt: skip
def test_the_command_starts_the_program_as_its_owner_does(files: dict[str, str], command: str) -> None:
    assert proposed(files) == command


def test_a_launcher_keeps_its_file_beside_a_script_of_steps() -> None:
    torch = "import torch.distributed as dist\ndist.init_process_group()\n"
    guess = guess_for({"train.py": torch, "data.py": "", "run.sh": "python data.py\npython train.py\n"})
    assert (guess["launcher"], guess["entry"], guess["command"]) == ("torchrun", "train.py", "")


ACCELERATE = "from accelerate import Accelerator\naccelerator = Accelerator()\n"
LINE = "accelerate launch --num_processes 4 --mixed_precision bf16 train.py --lr 0.1"


@pytest.mark.parametrize(
    ("files", "launcher", "entry"),
    [
        ({"train.py": ACCELERATE, "run.sh": f"set -e\n{LINE}\n"}, "torchrun", "train.py"),
        ({"train.py": ACCELERATE, "README.md": f"Train with:\n\n```sh\n$ {LINE}\n```\n"}, "torchrun", "train.py"),
        ({"train.py": ACCELERATE, "readme.rst": f"Start `{LINE}` and wait.\n"}, "torchrun", "train.py"),
        ({"train.py": ACCELERATE, "scripts/go.sh": "accelerate launch \\\n  --multi_gpu \\\n  train.py\n"}, "torchrun", "train.py"),
        ({"train.py": ACCELERATE, "fit.py": ACCELERATE, "run.sh": "accelerate launch fit.py\n"}, "torchrun", "fit.py"),
        ({"pkg/__init__.py": "", "pkg/fit.py": ACCELERATE, "run.sh": "torchrun -m pkg.fit\n"}, "torchrun", "-m pkg.fit"),
        ({"train.py": "import horovod.torch", "run.sh": "horovodrun -np 2 python train.py\n"}, "horovod", "train.py"),
        # but not of another program, of several, of a line that means something else, or against the code
        ({"train.py": ACCELERATE, "run.sh": "accelerate launch other.py\n"}, "command", "train.py"),
        ({"train.py": ACCELERATE, "a.py": "", "b.py": "", "run.sh": "torchrun a.py\ntorchrun b.py\n"}, "command", "train.py"),
        ({"train.py": ACCELERATE, "run.sh": "accelerate launch train.py $ARGS\n"}, "command", "train.py"),
        ({"train.py": ACCELERATE, "README.md": "We use torchrun train.py.\n"}, "command", "train.py"),
        ({"train.py": "import horovod.torch", "run.sh": "torchrun train.py\n"}, "horovod", "train.py"),
        ({"train.py": "import torch\ntorch.multiprocessing.spawn(f)", "run.sh": "torchrun train.py\n"}, "command", "train.py"),
    ],
)  # fmt: skip
def test_a_script_or_readme_shows_the_launcher(files: dict[str, str], launcher: str, entry: str) -> None:
    guess = guess_for(files)
    assert (guess["launcher"], entry_of(guess)) == (launcher, entry)


def test_what_else_a_line_has_is_named_with_its_place() -> None:
    (warning,) = guess_for({"train.py": ACCELERATE, "run.sh": f"set -e\n{LINE}\n"})["warnings"]
    assert (warning["code"], warning["path"], warning["line"]) == ("started-with", "run.sh", 2)
    assert warning["text"] == (
        "The launcher and the file are those of this line of accelerate launch. Enter what else it has: the arguments --lr 0.1, "
        "the environment variable ACCELERATE_MIXED_PRECISION=bf16, 4 GPUs. If you type the line as a plain command, the form for a "
        "new job offers all its values."
    )


def test_a_program_without_python_raises_no_alarm() -> None:
    for files in ({"Makefile": "all:\n\ttrue\n"}, {"run.sh": "true\n"}):
        assert guess_for(files)["warnings"] == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("source venv/bin/activate", True),
        (". ~/env/bin/activate", True),
        ("  conda activate bio", True),
        ("module load cuda/12.1", True),
        ("# source venv/bin/activate", False),
        ("source settings.sh", False),
        ("echo conda activate", False),
    ],
)
def test_a_script_that_activates_packages_is_reported(line: str, found: bool) -> None:
    warnings = guess_for(PARTS | {"run_all.sh": f"set -e\n{line}\n{STEPS}"})["warnings"]
    assert [(one["code"], one["path"], one["line"]) for one in warnings] == [("activates", "run_all.sh", 2)] * found


def test_a_version_of_an_earlier_release_has_its_entry_proposed() -> None:
    assert command_for({"entry": "a b.py", "launcher": "command", "candidates": ["a b.py"]}) == "python 'a b.py'"
    assert command_for({"entry": "pkg/train.py", "module": "pkg.train", "launcher": "command"}) == "python -m pkg.train"


@pytest.mark.parametrize(
    "data", ["0123456789abcdef" * 30_000, "." * 500_000, "a-b." * 120_000, "x" * 500_000, "\n" * 500_000, " " * 500_000]
)
def test_data_in_a_script_takes_no_time(data: str) -> None:
    began = time.process_time()
    assert proposed({"run.sh": f"python a.py\n: {data}\npython b.py", "a.py": "", "b.py": ""}) == "bash run.sh"
    assert time.process_time() - began < 5
