"""What fault tests run as a user's job: it reports to the judge, not to the portal, what it does (judge.py).

The judge listens on a socket in /data, which no cut cable reaches. The connection lives exactly as long as this process:
when it is killed, the kernel closes it. Standard library only; uploaded as code and run in a job's container.
"""

import argparse
import fcntl
import json
import os
import socket
import sys
import time

TICK_SECONDS = 0.1


def lines(job: int, number: int, start: int, end: int) -> bytes:
    """The same in the judge: what the log of one attempt must be."""
    return b"".join(b"job %d attempt %d line %08d\n" % (job, number, i) for i in range(start, end))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rate", type=int, default=50, help="lines a second")
    parser.add_argument("--code", type=int, default=0)
    parser.add_argument("--mib", type=int, default=0, help="memory to take after half of the time")
    parser.add_argument("--wait", action="store_true", help="end only once the judge allows it")
    given = parser.parse_args()

    with open("/run/schedulearn/control/job.json") as file:
        spec = json.load(file)
    judge = socket.socket(socket.AF_UNIX)
    judge.connect("/data/judge.sock")

    def report(**what: object) -> None:
        judge.sendall(json.dumps(what).encode() + b"\n")

    job, number = spec["job"], spec["number"]
    held = []
    for gpu in spec["gpus"]:
        lock = open(f"/data/locks/{gpu}")  # noqa: SIM115  held until this process ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            report(job=job, number=number, gpus=spec["gpus"], taken=gpu)
            return 96
        held.append(lock)
    report(job=job, number=number, gpus=spec["gpus"])

    began, written, hoard = time.monotonic(), 0, b""
    while (passed := time.monotonic() - began) < given.seconds:
        if (due := int(passed * given.rate)) > written:
            rest = lines(job, number, written, due)
            while rest:
                rest = rest[os.write(1, rest) :]
            written = due
            report(wrote=written)
        if given.mib and not hoard and passed > given.seconds / 2:
            hoard = b"x" * (given.mib * 2**20)
        time.sleep(TICK_SECONDS)
    if given.wait:
        judge.recv(1)
    report(end=given.code)
    return given.code


if __name__ == "__main__":
    sys.exit(main())
