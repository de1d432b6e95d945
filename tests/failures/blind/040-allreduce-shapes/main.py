import horovod.torch as hvd
import torch

TEXTS = ["a rose is a rose is a rose", "colourless green ideas sleep furiously tonight"]

hvd.init()
vocabulary = sorted(set(TEXTS[hvd.rank()].split()))
print(f"rank {hvd.rank()}: {len(vocabulary)} words", flush=True)
embedding = torch.nn.Embedding(len(vocabulary), 8)
mean = hvd.allreduce(embedding.weight.data, name="embedding")
print(mean.shape)
