"""One worker in its container: python worker.py RANK RANKS FOLDER

It loads torch and the data once, and trains in a separate child for each order that appears in the folder.
"""

import gc
import json
import os
import sys
import time
import traceback
from pathlib import Path

import torch
from learn import learn, prepare


def main(rank: int, ranks: int, folder: Path) -> None:
    torch.set_num_threads(1)
    done = 0
    prepare()
    gc.freeze()  # else a child's first collection copies all that was loaded, in the midst of a step
    (folder / f"ready-{rank}").touch()
    while True:
        try:
            order = json.loads((folder / "order.json").read_text())
        except (FileNotFoundError, ValueError):
            order = {"number": 0}
        if order["number"] <= done:
            time.sleep(0.02)
            continue
        done = order["number"]
        child = os.fork()
        if child == 0:
            os._exit(run_order(order, rank, ranks, folder))
        os.waitpid(child, 0)


def run_order(order: dict, rank: int, ranks: int, folder: Path) -> int:
    number = order["number"]
    env = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": order["port"]}
    os.environ.update({name: str(value) for name, value in env.items()})
    if rank == 0:
        (folder / f"metrics-{number}").touch()
        os.environ["SCHEDULEARN_METRICS"] = str(folder / f"metrics-{number}")
    try:
        found, code = learn(**order["options"]), 0
    except Exception:
        found, code = {"error": traceback.format_exc()}, 1
    beside = folder / f".result-{number}-{rank}"
    beside.write_text(json.dumps(found))
    beside.rename(folder / f"result-{number}-{rank}.json")
    return code


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
