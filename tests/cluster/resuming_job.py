"""A training job without libraries: gradient descent on noisy data, with a checkpoint when it is asked to stop.

Each step prints its loss as exactly as a float can be printed, so that a run that continued elsewhere can be compared
with an undisturbed one. It ends when /data has a file called "enough".
"""

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path


def losses(state: dict) -> Iterator[float]:
    """Goes on from ``state``, which it changes; one loss for each step."""
    chance = random.Random()
    if state["chance"]:
        version, numbers, gauss = state["chance"]
        chance.setstate((version, tuple(numbers), gauss))
    else:
        chance.seed(7)
    while True:
        x = [chance.gauss(0, 1) for _ in state["weights"]]
        error = sum(w * v for w, v in zip(state["weights"], x, strict=True)) - sum(x) - chance.gauss(0, 0.1)
        state["weights"] = [w - 0.01 * error * v for w, v in zip(state["weights"], x, strict=True)]
        state["step"] += 1
        state["chance"] = chance.getstate()
        yield error * error


def fresh() -> dict:
    return {"step": 0, "weights": [0.0] * 8, "chance": None}


def main() -> None:
    kept = Path(os.environ["SCHEDULEARN_CHECKPOINTS"]) / "deep" / "state.json"
    enough = Path(os.environ["SCHEDULEARN_DATA"]) / "enough"
    signals = []
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    state = json.loads(kept.read_text()) if kept.exists() else fresh()
    print(f"begins after step {state['step']} with {os.listdir(kept.parent.parent)}", flush=True)
    for loss in losses(state):
        print(f"step {state['step']} loss {loss!r}", flush=True)
        if signals or enough.exists():
            break
        time.sleep(0.1)
    if signals:
        reason = json.loads(Path(os.environ["SCHEDULEARN_NOTICE"]).read_text())["reason"]
        kept.parent.mkdir(exist_ok=True)
        kept.with_suffix(".new").write_text(json.dumps(state))
        kept.with_suffix(".new").rename(kept)
        (kept.parent.parent / "large.bin").write_bytes(os.urandom(20 << 20))
        raise SystemExit(f"stopped after step {state['step']}: {reason}")
    print(f"done at step {state['step']}", flush=True)


if __name__ == "__main__":
    main()
