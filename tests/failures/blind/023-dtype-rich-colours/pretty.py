"""Tracebacks in a box, like rich's."""
import sys
import traceback

RED, BOLD, DIM, OFF = "\x1b[31m", "\x1b[1;91m", "\x1b[2m", "\x1b[0m"


def hook(kind, error, trace):
    width = 92
    title = " Traceback (most recent call last) "
    write = sys.stderr.write
    write(f"{RED}\u256d\u2500{title.center(width - 4, chr(0x2500))}\u2500\u256e{OFF}\n")
    for frame in traceback.extract_tb(trace):
        for text in (f"{frame.filename}:{frame.lineno} in {frame.name}", f"\u2771 {frame.lineno} {frame.line}"):
            write(f"{RED}\u2502{OFF} {text[:width - 4]:<{width - 4}} {RED}\u2502{OFF}\n")
    write(f"{RED}\u2570{chr(0x2500) * (width - 2)}\u256f{OFF}\n")
    write(f"{BOLD}{kind.__name__}: {OFF}{error}\n")


sys.excepthook = hook
