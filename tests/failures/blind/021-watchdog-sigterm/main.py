import contextlib
import os
import signal
import sys
import threading

import torch
import torch.distributed as dist

cache_lock = threading.Lock()


@contextlib.contextmanager
def watched(name, seconds):
    def end():
        print(f"watchdog: {name} took longer than {seconds} s on rank {dist.get_rank()}, ending it", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()


def augment(step):
    with cache_lock:
        if dist.get_rank() == 1 and step == 4:
            return augment(step + 1)            # needs the lock once more
        return torch.full((4,), float(step))


dist.init_process_group("gloo")
for step in range(20):
    with watched("augment", 5):
        x = augment(step)
    dist.all_reduce(x)
    print(f"step {step} sum {x.sum().item():.0f}", flush=True)
dist.destroy_process_group()
