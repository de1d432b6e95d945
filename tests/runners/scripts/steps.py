"""An elastic training that only counts its steps. It ends when a file called "enough" appears in its outputs."""

import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch

enough = Path(os.environ["SCHEDULEARN_OUTPUTS"]) / "enough"
hvd.init()


@hvd.elastic.run
def count(state: hvd.elastic.TorchState) -> None:
    print(f"size {hvd.size()} rank {hvd.rank()} step {state.step} pid {os.getpid()}")
    while True:
        time.sleep(0.1)
        done = hvd.allreduce(torch.tensor(float(enough.exists())), name="done", op=hvd.Sum).item()
        ranks = int(hvd.allreduce(torch.ones(1), name="ranks", op=hvd.Sum).item())
        state.step += 1
        if hvd.rank() == 0:
            print(f"step {state.step} of {ranks} ranks")
        if done:
            return
        state.commit()


state = hvd.elastic.TorchState(step=0)
count(state)
print(f"done at step {state.step}")
