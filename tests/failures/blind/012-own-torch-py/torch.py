# does torch work here?
import torch

x = torch.rand(2, 3)
print(x)
