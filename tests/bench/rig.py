"""Shared parts of the benches that measure jobs: a product on a real engine, targets, and readings of jobs."""

import json
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker

from tests import engine
from tests.run.packages import MissingError, Need, provide
from tests.system.product import Product, running

ENVIRONMENT = "pytorch-horovod"
SLOTS = 2
START_SECONDS = 120
"""The time limit for ranks that import torch on a busy machine."""


def seconds(values: Iterable[float]) -> str:
    """Return the median and the range as text."""
    some = sorted(values)
    return f"{statistics.median(some):.2f} s ({some[0]:.2f} to {some[-1]:.2f}, {len(some)} times)"


def p95(values: Iterable[float]) -> float:
    """Return the 95th percentile: the smallest value that at least 95 % of the values do not exceed."""
    some = sorted(values)
    return some[-(-len(some) * 95 // 100) - 1]


@dataclass
class Rig:
    product: Product
    client: Any
    """The client of the engine."""
    image: str

    def host(self, job: int) -> Any:
        """Return the container of the first host of the job; None while none runs."""
        found = self.client.containers.list(filters={"label": f"sl.job={job}"}, ignore_removed=True)
        hosts = [each for each in found if each.attrs["Config"]["Hostname"] != "driver"]
        return hosts[0] if hosts else None

    def limits(self, job: int) -> dict[str, Any]:
        """Return the limits of the first host of the job as options of ``docker run``; empty while none runs."""
        container = self.host(job)
        if container is None:
            return {}
        host = container.attrs["HostConfig"]
        return {
            "nano_cpus": host["NanoCpus"],
            "mem_limit": host["Memory"],
            "memswap_limit": host["MemorySwap"],
            "shm_size": host["ShmSize"],
            "pids_limit": host["PidsLimit"],
            "tmpfs": host["Tmpfs"],
        }

    def engine_moments(self, job: int) -> dict[str, float]:
        """Return when the engine created and started the containers of a job that has just ended, in Unix seconds."""
        events = self.client.api.events(
            since=int(time.time()) - 600,
            until=int(time.time()) + 1,
            filters={"type": "container", "label": f"sl.job={job}", "event": ["create", "start"]},
            decode=True,
        )
        return {
            f"{event['Actor']['Attributes']['sl.name'].rpartition('-')[2]} {event['Action']}": event["timeNano"] / 1e9
            for event in events
        }

    @contextmanager
    def container(self, command: Sequence[str], **options: Any) -> Iterator[Any]:
        """Run a bare container, like ``docker run``."""
        made = self.client.containers.run(self.image, list(command), detach=True, **options)
        try:
            yield made
        finally:
            made.remove(force=True)

    def rows(self, function: str) -> Any:
        """Return the result of a function of ``tests.bench.rows`` on the database of the portal."""
        printed = self.product.shell(f"from tests.bench import rows; rows.{function}()")
        return json.loads(printed.splitlines()[-1])


@contextmanager
def rig(policy: str = "fifo", params: Mapping[str, Any] | None = None) -> Iterator[Rig]:
    """Start a small portal with an agent, whose node has ``SLOTS`` CPU slots and a ready environment."""
    try:
        provide({Need.ENGINE})
    except MissingError as problem:
        raise SystemExit(f"The bench needs a Docker Engine: {problem}") from None
    with engine.docker_engine(), tempfile.TemporaryDirectory(prefix="sl-bench-") as folder:
        image = engine.job_environment_image(ENVIRONMENT)
        options = {"SCHEDULEARN_BASE_IMAGE": engine.base_image(), "SCHEDULEARN_CPU_SLOTS": str(SLOTS)}
        product = Product.make(Path(folder), "docker", **options)
        with running(product):
            product.start_all()
            product.wait_for_environment(ENVIRONMENT)
            answer = product.api("PUT", "policy/", json={"policy": policy, "params": dict(params or {})})
            assert answer.status_code == 200, answer.text
            yield Rig(product, docker.from_env(), image)
