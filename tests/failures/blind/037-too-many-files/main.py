import os
import resource

import numpy as np

resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))               # as on a busy login node
os.makedirs("shards", exist_ok=True)
for number in range(64):
    with open(f"shards/part-{number:04d}.bin", "wb") as file:
        file.write(bytes(64))

handles = []
for number in range(64):
    handles.append(open(f"shards/part-{number:04d}.bin", "rb"))
print(np.mean([handle.read(1)[0] for handle in handles]))
