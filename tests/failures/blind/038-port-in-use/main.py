import os
import socket

import torch
import torch.distributed as dist


def dashboard():
    """Listens on a free port, for both kinds of addresses where the machine has them."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


server = dashboard()
port = server.getsockname()[1]
print(f"dashboard on port {port}", flush=True)
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
print(x.item())
