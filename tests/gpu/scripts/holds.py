"""Holds memory of a GPU until its input ends, by the driver alone: python holds.py INDEX MEBIBYTES"""

import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")


def must(code: int) -> None:
    if code:
        raise SystemExit(f"the driver returned {code}")


index, size = int(sys.argv[1]), int(sys.argv[2]) << 20
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
must(cuda.cuInit(0))
must(cuda.cuDeviceGet(ctypes.byref(device), index))
must(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
must(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)))
print("holds it", flush=True)
sys.stdin.read()
