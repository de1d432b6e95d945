import torch.distributed as dist


def evaluate(model):
    dist.init_process_group("gloo")
    return sum(float(p.sum()) for p in model.parameters())
