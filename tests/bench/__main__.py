"""``make bench``: each number beside its floor, measured in the same run; medians of several.

1. submit -> first log line stored, beside a bare ``docker run`` of the same image and command;
2. a line written -> a browser's socket, beside a bare tail of the same file;
3. one scheduling cycle at 1,000 jobs (its floor is nothing).
"""

import asyncio
import io
import os
import statistics
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

from tests import engine
from tests.bench import line
from tests.run import install, missing_packages
from tests.system.product import Product, running, wait_for

RUNS = 5
LINES = 200
FIRST = "print('first line', flush=True)\n"


def upload(product: Product, name: str, script: str) -> int:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        zipped.writestr(f"{name}.py", script)
    project = product.post("projects/", json={"name": name})["id"]
    return int(product.post(f"projects/{project}/code/", files={"files": (f"{name}.zip", buffer.getvalue())})["id"])


def submit(product: Product, code: int, entry: str) -> int:
    spec = {"code": code, "entry": f"python {entry}", "launcher": "command", "environment": "python"}
    return int(product.post("jobs/", json={**spec, "min_gpus": 1, "max_gpus": 1, "time_limit_seconds": 600})["id"])


def stored(product: Product, job: int) -> bytes:
    answer = product.api("GET", f"jobs/{job}/log/", params={"stream": "0"})
    return bytes(answer.content) if answer.status_code in (200, 206) else b""


def submit_to_first_line(product: Product, code: int) -> float:
    started = time.monotonic()
    job = submit(product, code, "first.py")
    wait_for("the first line", lambda: b"first line" in stored(product, job), 60, every=0.02)
    seconds = time.monotonic() - started
    product.wait_for_job(job, "SUCCEEDED", seconds=60)
    return seconds


def bare_docker_run(client: Any, image: str) -> float:
    started = time.monotonic()
    container = client.containers.run(image, ["python", "-u", "-c", FIRST], detach=True, network_mode="none")
    wait_for("docker's first line", lambda: b"first line" in container.logs(), 60, every=0.02)
    seconds = time.monotonic() - started
    container.wait()
    container.remove(force=True)
    return seconds


def line_to_browser(product: Product, code: int) -> tuple[line.Delays, line.Delays]:
    job = submit(product, code, "stamps.py")
    product.wait_for_job(job, "RUNNING", seconds=60)
    files = wait_for(
        "the rank's file",
        lambda: list((product.home / "agent" / "containers").glob(f"sl-{job}-*/scribe/log/0.log")),
        30,
    )
    tailed: list[float] = []
    reader = threading.Thread(target=lambda: tailed.extend(line.tail(Path(files[0]), LINES, 60)))
    reader.start()
    watched = asyncio.run(line.watch(product, job, LINES, 60))
    reader.join()
    return line.Delays.of(watched), line.Delays.of(tailed)


def main() -> int:
    if (missing := missing_packages(frozenset({"engine"}))) and (problem := install(missing)):
        print(f"The bench needs a Docker Engine: {problem}")
        return 1
    with engine.job_engine() as host, tempfile.TemporaryDirectory(prefix="sl-bench-") as folder:
        product = Product.make(Path(folder), "docker", DOCKER_HOST=host.url, SCHEDULEARN_BASE_IMAGE=host.base_image)
        with running(product):
            product.start_all()
            product.wait_for_environment("python")
            client = host.client()
            image = host.image_of("python")
            first = upload(product, "first", FIRST)
            pairs = [(submit_to_first_line(product, first), bare_docker_run(client, image)) for _ in range(RUNS)]
            ours, bare = (statistics.median(column) for column in zip(*pairs, strict=True))
            print(
                f"submit -> first log line: {ours:.2f} s; bare docker run: {bare:.2f} s; ratio {ours / bare:.2f}, overhead {ours - bare:.2f} s"
            )
            stamps = upload(product, "stamps", line.SCRIPT.format(lines=LINES * 3, gap=0.05))
            watched, tailed = line_to_browser(product, stamps)
            print(
                f"line -> browser: median {watched.median:.0f} ms, p99 {watched.p99:.0f} ms; bare tail: median {tailed.median:.1f} ms, "
                f"p99 {tailed.p99:.1f} ms; ratio of medians {watched.median / tailed.median:.1f} ({watched.lines} lines)"
            )
    return os.system(f"{sys.executable} -m tests.bench.cycle") >> 8  # noqa: S605 - in a process of its own: it sets Django up


if __name__ == "__main__":
    sys.exit(main())
