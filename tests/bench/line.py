"""``python -m tests.bench.line``: a line written -> a browser's socket, against a bare tail of the same file."""

import asyncio
import json
import re
import statistics
import struct
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import websockets

from tests.bench.rig import ENVIRONMENT, rig
from tests.system.product import PASSWORD, Product, wait_for

LINES = 200

STAMPED = re.compile(rb"at (\d+\.\d+)\n")
SCRIPT = (
    "import time\nfor _ in range({lines}):\n    print(f'at {{time.time():.6f}}', flush=True)\n    time.sleep({gap})\n"
)


@dataclass(frozen=True)
class Delays:
    """Milliseconds from the timestamp in a line to its arrival."""

    median: float
    p99: float
    lines: int

    @classmethod
    def of(cls, delays: list[float]) -> "Delays":
        ordered = sorted(delays)
        return cls(statistics.median(ordered) * 1e3, ordered[int(len(ordered) * 0.99)] * 1e3, len(ordered))


def session_cookies(product: Product) -> str:
    with httpx.Client(base_url=product.url, trust_env=False) as client:
        client.get("/accounts/sign-in/")
        form = {"username": "ada", "password": PASSWORD, "csrfmiddlewaretoken": client.cookies["csrftoken"]}
        client.post("/accounts/sign-in/", data=form, headers={"Referer": product.url})
        return "; ".join(f"{name}={value}" for name, value in client.cookies.items())


async def watch(product: Product, job: int, lines: int, seconds: float) -> list[float]:
    """Return the delays of ``lines`` lines at a browser's socket, without those printed before it connected."""
    delays: list[float] = []
    received, rest = 0, b""
    uri = f"{product.url.replace('http', 'ws')}/ws/jobs/{job}/log/"
    headers = {"Cookie": session_cookies(product), "Origin": product.url}
    async with asyncio.timeout(seconds), websockets.connect(uri, additional_headers=headers, proxy=None) as socket:
        connected = time.time()
        await socket.send(json.dumps({"type": "read", "cursors": {}}))
        async for message in socket:
            now = time.time()
            if isinstance(message, str):
                if json.loads(message)["type"] == "streams":
                    await socket.send(json.dumps({"type": "read", "cursors": {}}))
                continue
            received += len(message)
            await socket.send(json.dumps({"type": "ack", "bytes": received}))
            (header,) = struct.unpack(">I", message[:4])
            rest += message[4 + header :]
            stamps = [float(stamp) for stamp in STAMPED.findall(rest)]
            rest = rest[rest.rfind(b"\n") + 1 :]
            delays += [now - stamp for stamp in stamps if stamp > connected]
            if len(delays) >= lines:
                return delays[:lines]
    return delays


def tail(path: Path, lines: int, seconds: float) -> list[float]:
    """Return the delays of the floor: a reader of the file itself that polls every 5 ms."""
    delays: list[float] = []
    until = time.monotonic() + seconds
    with path.open("rb") as file:
        file.seek(0, 2)
        rest = b""
        while len(delays) < lines and time.monotonic() < until:
            piece = file.read()
            now = time.time()
            if not piece:
                time.sleep(0.005)
                continue
            rest += piece
            delays += [now - float(stamp) for stamp in STAMPED.findall(rest)]
            rest = rest[rest.rfind(b"\n") + 1 :]
    return delays[:lines]


def line_to_browser(product: Product, code: dict[str, int]) -> tuple[Delays, Delays]:
    """Return the delays at a browser's socket, and at a reader of the file."""
    job = product.submit(code, "python stamps.py", environment=ENVIRONMENT)
    product.wait_for_job(job, "RUNNING", seconds=60)
    files = wait_for(
        "the rank's file",
        lambda: list((product.home / "agent" / "containers").glob(f"sl-{job}-*/scribe/log/0.log")),
        30,
    )
    tailed: list[float] = []
    reader = threading.Thread(target=lambda: tailed.extend(tail(Path(files[0]), LINES, 60)))
    reader.start()
    watched = asyncio.run(watch(product, job, LINES, 60))
    reader.join()
    return Delays.of(watched), Delays.of(tailed)


def main() -> int:
    with rig() as it:
        stamps = it.product.upload("stamps", stamps=SCRIPT.format(lines=LINES * 3, gap=0.05))
        watched, tailed = line_to_browser(it.product, stamps)
    print(
        f"line -> browser: median {watched.median:.0f} ms, p99 {watched.p99:.0f} ms; bare tail: median {tailed.median:.1f} ms, "
        f"p99 {tailed.p99:.1f} ms; ratio of medians {watched.median / tailed.median:.1f} ({watched.lines} lines)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
