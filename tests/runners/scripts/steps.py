"""An elastic training of numbered steps that counts without a model. Ends when a file called "enough" appears."""

import os
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch

enough = Path(os.environ["SCHEDULEARN_OUTPUTS"]) / "enough"
hvd.init()


@hvd.elastic.run
def count(state):
    print(f"size {hvd.size()} rank {hvd.rank()} step {state.step} pid {os.getpid()}", flush=True)
    while True:
        time.sleep(0.1)
        done = hvd.allreduce(torch.tensor(float(enough.exists())), name="done", op=hvd.Max)
        total = hvd.allreduce(torch.ones(1), name="total", op=hvd.Sum).item()
        state.step += 1
        if state.step % 10 == 0 and hvd.rank() == 0:
            print(f"step {state.step} of {int(total)} ranks", flush=True)
        if done.item():
            return
        state.commit()


state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0) if False else None
state = hvd.elastic.TorchState(model=None, optimizer=None, step=0)
count(state)
print(f"done at step {state.step}", flush=True)
sys.exit(int(os.environ.get("EXIT_WITH", "0")))
