"""A training that only counts its steps, on whatever ranks it has. It ends when /data has a file called "enough"."""

import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch

enough = Path(os.environ["SCHEDULEARN_DATA"]) / "enough"
hvd.init()


@hvd.elastic.run
def count(state: hvd.elastic.TorchState) -> None:
    print(f"pid {os.getpid()} of {os.uname().nodename} is rank {hvd.rank()} of {hvd.size()} at step {state.step}")
    while True:
        time.sleep(0.1)
        done = hvd.allreduce(torch.tensor(float(enough.exists())), name="done", op=hvd.Sum).item()
        ranks = int(hvd.allreduce(torch.ones(1), name="ranks", op=hvd.Sum).item())
        state.step += 1
        if hvd.rank() == 0:
            print(f"step {state.step} of {ranks} ranks at {time.time():.3f}")
        if done:
            return
        state.commit()


state = hvd.elastic.TorchState(step=0)
count(state)
print(f"done at step {state.step}")
