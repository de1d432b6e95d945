"""Programs that fail, by kinds of failure, under launchers and with noise around them: the corpus that grows with the product."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from textwrap import dedent, indent

CONSEQUENCES = (
    "ChildFailedError",
    "HorovodInternalError",
    "has been shut down",
    "Connection closed by peer",
    "Connection reset by peer",
    "harmless",
)
"""What no cause of these programs may name."""
PRELUDES = {
    "command": "",
    "bash": "",
    "horovod": "import horovod.torch as hvd\nhvd.init()\nrank = hvd.rank()\n",
    "torchrun": "import torch.distributed as dist\ndist.init_process_group('gloo')\nrank = dist.get_rank()\n",
    "own-torchrun": "import torch.distributed as dist\ndist.init_process_group('gloo')\nrank = dist.get_rank()\n",
}
COLLECTIVE = {
    "horovod": "import torch\nfor step in range(10**6):\n    hvd.allreduce(torch.ones(8), name=f'step{step}')\n",
    "torchrun": "import torch\nfor step in range(10**6):\n    dist.all_reduce(torch.ones(8))\n",
}
COLLECTIVE["own-torchrun"] = COLLECTIVE["torchrun"]
NOISE_BEFORE = """
import logging, sys, traceback, warnings
logging.basicConfig(level=logging.INFO)
warnings.warn("Error: harmless deprecation, will raise a RuntimeError later")
def load_state():
    try:
        open("harmless/state.bin")
    except FileNotFoundError:
        logging.exception("no harmless state yet, starting from scratch")
load_state()
logging.info("starts")
"""
NOISE_AFTER = """
import atexit
class Harmless:
    def __del__(self):
        raise OSError("harmless: could not tidy up")
kept = Harmless()
def report():
    print("wandb: harmless run is synced", flush=True)
    raise ConnectionError("harmless server is away")
atexit.register(report)
"""
BARS = """
import sys
for step in range(120):
    sys.stderr.write(f"\\rEpoch 0: {step}%|{'#' * (step // 12)}| {step}/120 [00:0{step % 9}<00:02, 99.1it/s]")
"""
NOISES = {"": "", "before": NOISE_BEFORE, "after": NOISE_AFTER, "both": NOISE_BEFORE + NOISE_AFTER, "bars": BARS}


@dataclass(frozen=True)
class Failure:
    """A kind of failure."""

    name: str
    body: str
    contains: tuple[str, ...]
    alternatives: tuple[tuple[str, ...], ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    arguments: str = ""
    advice: str = ""
    """Words of the advice that fixes it."""
    launchers: tuple[str, ...] = ("command", "horovod", "torchrun")
    noises: tuple[str, ...] = ("", "before", "after")
    one_rank: bool = False
    """Only rank 1 fails, while the others wait for it."""


NATIVE = "import ctypes\nctypes.string_at(0)\n"
FAILURES = (
    Failure("value-error", "def check(rate):\n    raise ValueError(f'bad learning rate {rate}')\ncheck(-0.1)\n", ("ValueError", "bad learning rate -0.1")),
    Failure("own-exception", "class Bang(Exception):\n    pass\ndef play():\n    raise Bang('too loud: 11')\nplay()\n", ("Bang", "too loud: 11"), noises=("both", "bars", "")),
    Failure("lower-case-exception", "import struct\ndef unpack():\n    struct.unpack('<I', b'ab')\nunpack()\n", ("struct.error", "requires a buffer of 4 bytes")),
    Failure("raised-from", "def read(values):\n    try:\n        return values['lr']\n    except KeyError as error:\n        raise RuntimeError('the config has no lr') from error\nread({})\n", ("the config has no lr",)),
    Failure("translated", "class ConfigProblem(Exception):\n    pass\ndef read(values):\n    try:\n        return float(values['lr'])\n    except ValueError:\n        raise ConfigProblem('lr must be a number')\nread({'lr': 'high'})\n", ("ConfigProblem", "lr must be a number"), noises=("after", "", "both")),
    Failure("fails-in-fallback", "def load():\n    try:\n        return open('harmless.bin')\n    except FileNotFoundError:\n        return int('fresh')\nload()\n", ("ValueError", "invalid literal for int"), noises=("", "after", "")),
    Failure("clean-up-fails", "def train():\n    log = None\n    try:\n        raise ArithmeticError('loss exploded at step 7')\n    finally:\n        log.close()\ntrain()\n", ("loss exploded at step 7",)),
    Failure("exit-text", "import sys\nprint('loading')\nsys.exit('no GPU kind fits this model')\n", ("no GPU kind fits this model",), noises=("", "before", "bars")),
    Failure("exit-number", "import sys, time\nprint('epoch 1 accuracy 0.2', flush=True)\ntime.sleep(0.3)\nprint('accuracy 0.2 is below the target 0.9')\nsys.exit(5)\n", ("exit code 5", "below the target 0.9"), noises=("", "before", "")),
    Failure("missing-package", "import polars\n", ("polars",), advice="offers to install polars", noises=("", "bars", "after")),
    Failure("missing-package-other-name", "def run():\n    import skimage.io\nrun()\n", ("skimage",), advice="scikit-image", launchers=("command", "torchrun")),
    Failure("file-elsewhere", "def read():\n    return open('train.csv').read()\nread()\n", ("train.csv", "was not there"), files={"data/train.csv": "1,2\n"}, advice="data/train.csv"),
    Failure("file-of-another-computer", "def read():\n    return open('/home/mia/photos/labels.json').read()\nread()\n", ("/home/mia/photos/labels.json",), advice="another computer", launchers=("command", "horovod")),
    Failure("thread", "import sys, threading\ndef work():\n    return 1 // 0\nthread = threading.Thread(target=work)\nthread.start()\nthread.join()\nsys.exit(1)\n", ("ZeroDivisionError",), noises=("", "before", "")),
    Failure("pool", "from multiprocessing import Pool\ndef sample(n):\n    if n == 7:\n        raise ValueError(f'sample {n} is broken')\n    return n\nif __name__ == '__main__':\n    with Pool(2) as pool:\n        pool.map(sample, range(20))\n", ("ValueError", "sample 7 is broken"), launchers=("command", "bash"), noises=("", "after", "")),
    Failure("data-loader", "import torch\nfrom torch.utils.data import DataLoader, Dataset\nclass Rows(Dataset):\n    def __len__(self):\n        return 20\n    def __getitem__(self, n):\n        if n == 13:\n            raise KeyError('column 13')\n        return torch.ones(3)\nfor batch in DataLoader(Rows(), 4, num_workers=2):\n    pass\n", ("KeyError", "column 13")),
    Failure("group", "def both():\n    raise ExceptionGroup('two loaders failed', [ValueError('left shard is empty'), OSError('right')])\nboth()\n", ("left shard is empty",), noises=("", "after", "both")),
    Failure("segfault", NATIVE, ("SIGSEGV",), noises=("", "before", "")),
    Failure("segfault-with-handler", "import faulthandler\nfaulthandler.enable()\n" + NATIVE, ("SIGSEGV",), alternatives=(("Segmentation fault",),), launchers=("command", "torchrun")),
    Failure("abort", "import os\nprint('solver: matrix is singular', flush=True)\nos.abort()\n", ("SIGABRT",)),
    Failure("killed", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", ("killed",), noises=("", "bars", "")),
    Failure("os-exit", "import os\nos._exit(9)\n", ("exit code 9",)),
    Failure("bare-assertion", "def check(batch):\n    assert len(batch) % 2 == 0\ncheck([1, 2, 3])\n", ("AssertionError", "assert len(batch) % 2 == 0")),
    Failure("nan", "loss = float('nan')\nfor step in range(3):\n    assert loss == loss, f'loss is nan at step {step}'\n", ("loss is nan at step 0",), noises=("bars", "bars", "bars")),
    Failure("recursion", "def down(n):\n    return down(n + 1)\ndown(0)\n", ("RecursionError",), noises=("before", "", "")),
    Failure("arguments", "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--epochs', type=int)\nparser.parse_args()\n", ("--epoch-count",), arguments="--epoch-count 3", advice="arguments of the job", noises=("", "before", "")),
    Failure("argument-type", "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--epochs', type=int)\nparser.parse_args()\n", ("argument --epochs: invalid int value",), arguments="--epochs ten", launchers=("command", "torchrun")),
    Failure("hidden-standard-module", "import statistics\n", ("statistics",), files={"statistics.py": "import statistics\nprint(statistics.mean([1, 2]))\n"}, advice="Rename statistics.py", noises=("", "", "")),
    Failure("syntax-in-module", "import model\n", ("SyntaxError",), files={"model.py": "class Net:\n    def forward(self, x)\n        return x\n"}, alternatives=(("could not read",),), advice="Correct the line"),
    Failure("encoding", "def read():\n    return open('names.txt', encoding='utf-8').read()\nopen('names.txt', 'wb').write('Jürgen'.encode('latin-1'))\nread()\n", ("UnicodeDecodeError",), advice="latin-1"),
    Failure("sizes", "import torch\ndef forward():\n    return torch.ones(4, 3) @ torch.ones(5, 2)\nforward()\n", ("shapes cannot be multiplied", "4x3"), noises=("", "both", "bars")),
    Failure("no-gpu", "import torch\ndef forward():\n    return torch.ones(4, device='cuda')\nforward()\n", ("CUDA",), advice="torch.cuda.is_available()"),
    Failure("no-internet", "import urllib.request\ndef download():\n    urllib.request.urlopen('http://data.example.invalid/mnist.npz')\ndownload()\n", ("tried to reach the Internet",), advice="/data"),
    Failure("huge-array", "import numpy\ndef distances():\n    return numpy.ones((10**8, 10**8))\ndistances()\n", ("Unable to allocate",), launchers=("command", "torchrun")),
    Failure("truncated-checkpoint", "import torch\nopen('last.pt', 'wb').write(b'PK\\x03\\x04 cut off')\ndef load():\n    return torch.load('last.pt')\nload()\n", ("PytorchStreamReader failed",), launchers=("command", "horovod")),
    Failure("logged-and-left", "import logging, sys\ndef main():\n    raise TimeoutError('loader gave nothing for 30 s')\ntry:\n    main()\nexcept Exception:\n    logging.exception('training failed')\n    sys.exit(1)\n", ("TimeoutError", "loader gave nothing for 30 s"), noises=("", "", "before")),
    Failure("spawned", "import torch.multiprocessing as mp\ndef work(index):\n    if index == 1:\n        raise ValueError(f'worker {index} has no shard')\nif __name__ == '__main__':\n    mp.spawn(work, nprocs=2)\n", ("ValueError", "worker 1 has no shard"), launchers=("command", "bash")),
    Failure("called-program", "import subprocess, sys\nsubprocess.run([sys.executable, 'prepare.py'], check=True)\n", ("LookupError", "no split called val"), files={"prepare.py": "def split():\n    raise LookupError('no split called val')\nsplit()\n"}, noises=("", "", "after")),
    Failure("interrupted", "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)\n", ("SIGINT",), launchers=("command", "torchrun")),
    Failure("process-group-missing", "import torch, torch.distributed as dist\ndef share():\n    dist.all_reduce(torch.ones(3))\nshare()\n", ("Default process group has not been initialized",), launchers=("command", "bash"), advice="init_process_group"),
    Failure("rank1-value-error", "def check():\n    raise ValueError('shard of rank 1 is empty')\ncheck()\n", ("shard of rank 1 is empty",), one_rank=True, launchers=("horovod", "torchrun", "own-torchrun"), noises=("", "before", "")),
    Failure("rank1-exit-text", "import sys\nsys.exit('rank 1 cannot see its data')\n", ("rank 1 cannot see its data",), one_rank=True, launchers=("horovod", "torchrun")),
    Failure("rank1-exit-number", "import sys\nsys.exit(4)\n", ("exit code 4",), alternatives=(("A rank left", "rank 1"),), one_rank=True, launchers=("horovod", "torchrun")),
    Failure("rank1-killed", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", ("killed",), one_rank=True, launchers=("horovod", "torchrun")),
    Failure("rank1-segfault", NATIVE, ("SIGSEGV",), one_rank=True, launchers=("horovod", "torchrun")),
    Failure("rank1-memory", "def load():\n    raise MemoryError('batch of rank 1')\nload()\n", ("MemoryError",), one_rank=True, launchers=("horovod", "torchrun"), noises=("after", "both")),
    Failure("rank1-file", "def read():\n    return open('shard-1.bin')\nread()\n", ("shard-1.bin",), one_rank=True, launchers=("horovod", "torchrun"), noises=("bars", "before")),
)  # fmt: skip
SHELL_FAILURES = (
    (
        "not-there",
        "bash",
        "set -e\nacceleratee launch main.py\n",
        ("acceleratee", "not found"),
        "make an environment with that package",
    ),
    ("in-a-pipe", "bash", "python first.py | python second.py\n", ("KeyError", "'train'"), ""),
    ("second-of-two", "bash", "python ok.py\npython second.py\n", ("second program has no input",), ""),
    ("windows-lines", "bash", "echo ready\r\npython main.py\r\n", ("line endings",), "LF"),
    ("no-such-entry", "bash", "python trian.py\n", ("trian.py", "was not there"), ""),
)


def cases() -> Iterator[tuple[str, dict[str, object], dict[str, str]]]:
    """Yield the name of each case, its ``case.json`` and its files."""
    for failure in FAILURES:
        for launcher, noise in zip(failure.launchers, failure.noises, strict=False):
            yield _case(failure, launcher, noise)
    for name, launcher, script, contains, advice in SHELL_FAILURES:
        files = {
            "run.sh": script,
            "main.py": "print('main')\n",
            "ok.py": "print('ok')\n",
            "first.py": "def split():\n    return {}['train']\nsplit()\n",
            "second.py": "import sys\nif not sys.stdin.read():\n    raise SystemExit('second program has no input')\n",
        }
        yield f"shell-{name}", _facts(launcher, 1, "bash run.sh", contains, (), advice), files


def _case(failure: Failure, launcher: str, noise: str) -> tuple[str, dict[str, object], dict[str, str]]:
    ranks = 2 if failure.one_rank or launcher == "horovod" else 2 if launcher.endswith("torchrun") else 1
    body = dedent(failure.body)
    if failure.one_rank:
        body = f"if rank == 1:\n    import time; time.sleep(0.5)\n{indent(body, '    ')}{COLLECTIVE[launcher]}"
    files = {"main.py": NOISES[noise] + PRELUDES[launcher] + body} | failure.files
    entry = f"main.py {failure.arguments}".strip()
    if launcher == "command":
        entry = f"python {entry}"
    elif launcher == "bash":
        files["run.sh"] = f"export OMP_NUM_THREADS=1\npython {entry}\n"
        entry = "bash run.sh"
    elif launcher == "own-torchrun":
        entry, ranks = f"torchrun --standalone --nproc-per-node 2 {entry}", 1
    name = f"{failure.name}-{launcher}{f'-{noise}' if noise else ''}"
    return name, _facts(launcher, ranks, entry, failure.contains, failure.alternatives, failure.advice), files


def _facts(
    launcher: str,
    ranks: int,
    entry: str,
    contains: tuple[str, ...],
    alternatives: tuple[tuple[str, ...], ...],
    advice: str,
) -> dict[str, object]:
    return {
        "launcher": launcher if launcher in ("horovod", "torchrun") else "command",
        "ranks": ranks,
        "entry": entry,
        "real": True,
        "cause": {"contains": list(contains), "or": [list(each) for each in alternatives]},
        "not": list(CONSEQUENCES),
        "advice_has": advice,
    }
