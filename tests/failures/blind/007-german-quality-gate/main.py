import sys
import time
import warnings

print("ERROR: libcudart.so.12: cannot open shared object file (ignoriert, rechne auf der CPU)", file=sys.stderr, flush=True)
warnings.warn("Error: reduce=None is deprecated and will raise a RuntimeError in a future release")

genau = 0.31
for epoche in range(1, 4):
    time.sleep(0.2)
    genau += 0.034
    print(f"Epoche {epoche}: Genauigkeit {genau:.3f}".replace(".", ","), flush=True)
if genau < 0.9:
    sys.stdout.write(f"Abbruch: Genauigkeit {genau:.3f} liegt unter der Schwelle 0.900".replace(".", ","))
    sys.exit(3)
