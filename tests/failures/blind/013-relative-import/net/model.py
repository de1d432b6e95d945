import torch


class Net(torch.nn.Linear):
    pass
