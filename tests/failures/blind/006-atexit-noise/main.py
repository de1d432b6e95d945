import atexit
import socket

import torch


@atexit.register
def flush_metrics():
    with socket.create_connection(("127.0.0.1", 9), timeout=2) as server:
        server.sendall(b"bye")


def weights_of(labels):
    weights = torch.linspace(0.5, 1.5, 10)
    return [weights[label].item() for label in labels]


torch.manual_seed(1)
for step, labels in enumerate(([3, 1, 4], [1, 5, 9], [2, 6, 10])):
    print(f"step {step} mean weight {sum(weights_of(labels)) / 3:.3f}", flush=True)
