"""The output of programs in a demo lab: a training's lines, its metrics, and its failures. Pure.

Shared by the demo lab's history (``portal.ops.demo``) and its nodes (``runners.demo.nodes``), so that a job of last week and
one of today look alike. Failures print what real ones print, because the portal finds their causes in the log.
"""

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from math import exp
from typing import Literal

FailureKind = Literal[
    "import_error",
    "arguments",
    "file_not_found",
    "shapes",
    "exception",
    "no_internet",
    "gpu_memory",
    "shared_memory",
    "host_memory",
    "disk_full",
    "nan",
    "lost_each_other",
]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a failed program ends."""

    text: str
    """The last lines of its first rank."""
    exit_code: int = 1
    exit_reason: str = "exited"
    detail: str = ""
    """The sentence of the agent."""


def _traceback(entry: str, line: int, code: str, error: str, inner: tuple[str, int, str] | None = None) -> str:
    """Build a traceback. ``inner``: a call below, with its file, its line, and ``function|code``."""
    calls = [f'  File "/workspace/{entry}", line {line}, in <module>\n    {code}\n']
    if inner is not None:
        where, number, source = inner
        function, _, code = source.partition("|")
        calls.append(f'  File "{where}", line {number}, in {function}\n    {code}\n')
    return f"Traceback (most recent call last):\n{''.join(calls)}{error}\n"


TORCH = "/opt/environment/lib/python3.11/site-packages/torch"
ENDINGS: Mapping[str, Ending] = {
    "import_error": Ending(
        _traceback(
            "train.py", 88, "main()", "ModuleNotFoundError: No module named 'albumentations'",
            ("/workspace/train.py", 37, "main|transforms = import_module(options.transforms)"),
        )
    ),
    "arguments": Ending(
        "usage: train.py [-h] [--epochs EPOCHS] [--lr LR] [--seed SEED]\n"
        "train.py: error: unrecognized arguments: --learning-rate 0.1\n",
        exit_code=2,
    ),
    "file_not_found": Ending(
        _traceback(
            "train.py", 91, "main()",
            "FileNotFoundError: [Errno 2] No such file or directory: 'data/labels_v2.csv'",
            ("/workspace/data/load.py", 23, "labels|with open(path, newline='') as file:"),
        )
    ),
    "shapes": Ending(
        _traceback(
            "train.py", 104, "main()",
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x512 and 1024x10)",
            (f"{TORCH}/nn/modules/linear.py", 117, "forward|return F.linear(input, self.weight, self.bias)"),
        )
    ),
    "exception": Ending(
        _traceback(
            "train.py", 88, "main()", "KeyError: 'validation'",
            ("/workspace/train.py", 41, "main|loader = loaders['validation']"),
        )
    ),
    "no_internet": Ending(
        _traceback(
            "train.py", 33, "weights = download(URL)",
            "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
            ("/workspace/models/pretrained.py", 19, "download|with urllib.request.urlopen(url) as answer:"),
        )
    ),
    "gpu_memory": Ending(
        _traceback(
            "train.py", 127, "main()",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of "
            "39.39 GiB of which 912.00 MiB is free. Of the allocated memory 37.02 GiB is allocated by PyTorch.",
            (f"{TORCH}/nn/functional.py", 2822, "batch_norm|return torch.batch_norm("),
        )
    ),
    "shared_memory": Ending(
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"
        + _traceback(
            "train.py", 64, "for images, labels in loader:",
            "RuntimeError: DataLoader worker (pid 311) is killed by signal: Bus error. "
            "It is possible that dataloader's workers are out of shared memory.",
        )
    ),
    "host_memory": Ending(
        "", exit_code=137, exit_reason="oom", detail="The kernel ended a process of it: the memory limit was reached."
    ),
    "disk_full": Ending(
        _traceback(
            "train.py", 142, "torch.save(state, path)", "OSError: [Errno 28] No space left on device",
            (f"{TORCH}/serialization.py", 944, "save|_save(obj, opened_zipfile, pickle_module, pickle_protocol)"),
        )
    ),
    "nan": Ending(
        _traceback(
            "train.py", 119, "main()", "FloatingPointError: the loss is NaN",
            ("/workspace/train.py", 76, "main|raise FloatingPointError('the loss is NaN')"),
        )
    ),
    "lost_each_other": Ending(
        _traceback(
            "train.py", 133, "main()",
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited or "
            "there was a network error, NCCL version 2.21.5",
            (f"{TORCH}/distributed/distributed_c10d.py", 2501, "all_reduce|work = group.allreduce([tensor], opts)"),
        )
    ),
}  # fmt: skip
SILENT_BEFORE_TRAINING: frozenset[str | None] = frozenset({"import_error", "arguments"})
"""Programs that fail in these ways print nothing before."""


def _uniform(*seeds: int) -> float:
    """Return a number from 0 to 1 that depends only on these: a seeded generator would take ten times as long."""
    mixed = 0x9E3779B97F4A7C15
    for number in seeds:
        mixed = (mixed ^ (number + 0x7F4A7C15)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 29
    return (mixed * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF) / 2**64


def _gauss(*seeds: int) -> float:
    """Return a number that depends only on these, around 0 with a standard deviation of 1."""
    return (_uniform(1, *seeds) + _uniform(2, *seeds) + _uniform(3, *seeds) - 1.5) * 2


@dataclass(frozen=True, slots=True)
class Training:
    """A simulated training and the course of its numbers. Equal trainings give equal numbers."""

    seed: int
    steps: int
    batch: int
    best: float
    """The accuracy that it reaches in the end."""
    fall: float
    """The rate at which its loss falls."""
    diverges: bool = False
    """It ends with a loss that is NaN."""

    @classmethod
    def for_job(cls, seed: int, seconds: float, gpus: int, *, diverges: bool = False) -> "Training":
        """Return the training of the job with this number, with as many steps as it makes in that time on so many GPUs."""
        batch = (64, 128, 256)[int(3 * _uniform(seed, 1))]
        best, fall = 0.72 + 0.25 * _uniform(seed, 2), 3.5 + 3.5 * _uniform(seed, 3)
        training = cls(seed, 1, batch, best, fall, diverges)
        return replace(training, steps=max(20, round(seconds / training.mean_step_seconds(gpus))))

    def loss(self, step: int) -> float:
        part = step / self.steps
        left = exp(-self.fall * part)
        noise = 0.05 * _gauss(self.seed, step, 4) * (0.25 + left)
        return max(0.01, 0.12 + (1 - self.best) + 2.1 * left + noise + self._climb(part))

    def _climb(self, part: float) -> float:
        return 0.02 * exp(9 * part) if self.diverges else 0.0

    def accuracy(self, step: int) -> float:
        grown = 1 - exp(-4.5 * step / self.steps)
        noise = 0.006 * _gauss(self.seed, step, 5)
        kept = 1 / (1 + self._climb(step / self.steps))
        return min(0.995, max(0.02, 0.1 + (self.best - 0.1) * grown * kept + noise))

    def mean_step_seconds(self, gpus: int) -> float:
        one_gpu = self.batch / 600
        seconds: float = one_gpu / max(1, gpus) ** 0.85
        return 0.09 + seconds

    def step_seconds(self, step: int, gpus: int) -> float:
        return self.mean_step_seconds(gpus) * (0.95 + 0.1 * _uniform(self.seed, step, 6))

    def progress_line(self, step: int, gpus: int) -> str:
        """Return the line that its first rank prints now and then."""
        epoch, rate = min(20, 1 + 20 * step // self.steps), self.batch / self.step_seconds(step, gpus)
        return (
            f"epoch {epoch:>2}  step {step:>6}  loss {self.loss(step):.4f}  accuracy {self.accuracy(step):.3f}"
            f"  {rate:,.0f} samples/s\n"
        )

    def waiting_line(self, step: int, rank: int) -> str:
        """Return the line that any other rank prints."""
        waited = 4 + 26 * _uniform(self.seed, step, rank, 7)
        return f"step {step:>6}, waited {waited:.0f} ms for the gradients of the others\n"


def first_lines(samples: int, seed: int) -> str:
    """Return the first lines of a training that starts."""
    parameters = (11.2, 23.5, 44.5, 86.6)[int(4 * _uniform(seed, 8))]
    return f"Loading {samples:,} samples from /data ...\nModel with {parameters} million parameters on cuda:0\n"


def last_lines(training: Training) -> str:
    """Return the last lines of a training that succeeds."""
    return (
        f"Finished after {training.steps:,} steps: accuracy {training.accuracy(training.steps):.3f}\n"
        "Saved model.pt, metrics.json and plots/loss.png to /outputs\n"
    )


def output_files(training: Training) -> dict[str, bytes]:
    """Return the output files of a training that succeeds, by path."""
    summary = {"accuracy": round(training.accuracy(training.steps), 4), "steps": training.steps}
    return {
        "metrics.json": f"{json.dumps(summary, indent=2)}\n".encode(),
        "plots/loss.png": draw_png([training.loss(training.steps * n // 239) for n in range(240)]),
        "model.pt": sha256(str(training.seed).encode()).digest() * 512,
    }


def draw_png(values: Sequence[float], height: int = 150) -> bytes:
    """Draw a curve as a PNG with one column for each value."""
    top, width = max(values), 3 * len(values)
    canvas = bytearray((b"\0" + b"\xf6\xf7\xf9" * len(values)) * height)
    for x, value in enumerate(values):
        for y in range(max(0, round((height - 1) * (1 - value / top)) - 1), height)[:3]:
            place = y * (width + 1) + 1 + 3 * x
            canvas[place : place + 3] = b"\x0f\x76\x6e"

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", len(values), height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(canvas))) + chunk(b"IEND", b"")
    )
