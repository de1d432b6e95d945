import horovod.torch as hvd
import torch


def log(text):
    if hvd.rank() == 0:
        print(text, flush=True)


log("starting")
hvd.init()
log(hvd.allreduce(torch.ones(1)))
