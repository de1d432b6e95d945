"""What fault tests run as a ring over machines: each rank reports to the judge, and one can be made to fail.

Ends when /data has a file ``enough-<job>``. A ring that is not elastic begins with step 1 in each attempt.
"""

import argparse
import fcntl
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

with open("/run/schedulearn/control/job.json") as file:
    spec = json.load(file)
judge = socket.socket(socket.AF_UNIX)
judge.connect("/data/judge.sock")
gpu = spec["gpus"][int(os.environ["HOROVOD_LOCAL_RANK"])]
lock = open(f"/data/locks/{gpu}")  # noqa: SIM115  held until this process ends
word = {"job": spec["job"], "number": spec["number"], "gpus": [gpu], "ring": True}
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    judge.sendall(json.dumps({**word, "taken": gpu}).encode() + b"\n")
    sys.exit(96)
judge.sendall(json.dumps(word).encode() + b"\n")

import horovod.torch as hvd  # noqa: E402  the judge is to know of this rank before it meets the others
import torch  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--elastic", action="store_true")
parser.add_argument(
    "--fail", choices=("exception", "kill", "hang", "stop", "exit"), help="what the last rank does at step 5"
)
parser.add_argument("--ranks", type=int, default=1, help="how many there are when it fails")
given = parser.parse_args()
enough = Path(f"/data/enough-{spec['job']}")
hvd.init()


def step(number: int) -> bool:
    """Whether it was the last."""
    time.sleep(0.1)
    done = hvd.allreduce(torch.tensor(float(enough.exists())), name="done", op=hvd.Sum).item()
    ranks = int(hvd.allreduce(torch.ones(1), name="ranks", op=hvd.Sum).item())
    if hvd.rank() == 0:
        print(f"step {number} of {ranks} ranks")
    return bool(done)


def is_time(number: int) -> bool:
    return given.fail is not None and number >= 5 and hvd.size() >= given.ranks


def fail() -> None:
    if hvd.rank() != hvd.size() - 1:
        return
    print(f"fails now: {given.fail}")
    match given.fail:
        case "exception":
            raise RuntimeError("on purpose")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(86_400)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "exit":
            sys.exit(0)


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    while True:
        over = step(state.step + 1)
        state.step += 1
        failing = is_time(state.step) and not state.failed
        state.failed = state.failed or failing
        if over:
            return
        state.commit()
        if failing:
            fail()


if given.elastic:
    train(hvd.elastic.TorchState(step=0, failed=False))
else:
    number, over = 1, step(1)
    while not over:
        if number == 5 and is_time(number):
            fail()
        number += 1
        over = step(number)
