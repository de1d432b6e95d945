import argparse

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--points", type=int, default=1000)
n = parser.parse_args().points
points = np.random.default_rng(0).random((n, 2), dtype=np.float32)
print(f"{n} points, computing all distances", flush=True)
distances = np.zeros((n, n))
for i in range(n):
    distances[i] = np.hypot(points[:, 0] - points[i, 0], points[:, 1] - points[i, 1])
print(distances.mean())
