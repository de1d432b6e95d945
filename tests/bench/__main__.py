"""``make bench``: each number beside its floor, measured in the same run; medians of several.

1. submit -> first log line stored, beside a bare ``docker run`` of the same image and command;
2. a line written -> a browser's socket, beside a bare tail of the same file;
3. one scheduling cycle at 1,000 jobs (its floor is nothing);
4. one decision of every policy at three sizes of labs, and how that grows;
5. the agent API with 500 nodes (its floor is nothing).
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import docker

from tests import engine
from tests.bench import line
from tests.run import install, missing_packages
from tests.system.product import Product, running, wait_for

RUNS = 5
LINES = 200
FIRST = "print('first line', flush=True)\n"


def submit_to_first_line(product: Product, code: dict[str, int]) -> float:
    started = time.monotonic()
    job = product.submit(code, "python first.py")
    wait_for("the first line", lambda: b"first line" in product.log(job), 60, every=0.02)
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


def line_to_browser(product: Product, code: dict[str, int]) -> tuple[line.Delays, line.Delays]:
    job = product.submit(code, "python stamps.py")
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
    with engine.docker_engine(), tempfile.TemporaryDirectory(prefix="sl-bench-") as folder:
        image = engine.job_environment_image("python")
        product = Product.make(Path(folder), "docker", SCHEDULEARN_BASE_IMAGE=engine.base_image())
        with running(product):
            product.start_all()
            product.wait_for_environment("python")
            client = docker.from_env()
            first = product.upload("first", first=FIRST)
            pairs = [(submit_to_first_line(product, first), bare_docker_run(client, image)) for _ in range(RUNS)]
            ours, bare = (statistics.median(column) for column in zip(*pairs, strict=True))
            print(
                f"submit -> first log line: {ours:.2f} s; bare docker run: {bare:.2f} s; ratio {ours / bare:.2f}, overhead {ours - bare:.2f} s"
            )
            stamps = product.upload("stamps", stamps=line.SCRIPT.format(lines=LINES * 3, gap=0.05))
            watched, tailed = line_to_browser(product, stamps)
            print(
                f"line -> browser: median {watched.median:.0f} ms, p99 {watched.p99:.0f} ms; bare tail: median {tailed.median:.1f} ms, "
                f"p99 {tailed.p99:.1f} ms; ratio of medians {watched.median / tailed.median:.1f} ({watched.lines} lines)"
            )
    # In processes of their own: the first sets Django up, and the second wants nothing else in the way.
    parts = [
        subprocess.run([sys.executable, "-m", f"tests.bench.{part}"], check=False)
        for part in ("cycle", "decisions", "nodes")
    ]
    return max(part.returncode for part in parts)


if __name__ == "__main__":
    sys.exit(main())
