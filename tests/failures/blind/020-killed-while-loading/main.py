import os
import signal
import time

for part in range(1, 7):
    print(f"loading features into memory: {part * 8} of 96 GiB", flush=True)
    time.sleep(0.3)
os.kill(os.getpid(), signal.SIGKILL)        # what the kernel's out-of-memory killer does
