"""A lab on PostgreSQL and Redis whose jobs are containers of a Docker Engine of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import servers
from tests.cluster import images
from tests.cluster.machines import claimed
from tests.system.own_engine import OwnEngine
from tests.system.product import Product, running
from tests.watch import watching

ENVIRONMENTS = ("python", "pytorch-horovod")
"""An agent makes these; here they are made already."""


@contextmanager
def engine() -> Iterator[OwnEngine]:
    names = images.stocked(ENVIRONMENTS)
    with claimed() as (_, folder):
        images.give_images(names, folder / "data")
        with images.running(folder) as own:
            with watching(own.url) as watch:
                yield own
            assert watch.seen and not watch.broken


@contextmanager
def docker_lab(docker: OwnEngine, home: Path, **env: str) -> Iterator[Product]:
    """Start web, scheduler, worker and agent; ``env`` is added to the environment of these programs."""
    with servers.postgres() as database, servers.redis() as broker:
        product = Product.make(
            home,
            "docker",
            DATABASE_URL=database,
            REDIS_URL=broker,
            SECRET_KEY="only-for-tests-and-longer-than-thirty-two-characters",
            DOCKER_HOST=docker.url,
            SCHEDULEARN_BASE_IMAGE=images.stocked(ENVIRONMENTS)[0],
            **env,
        )
        with running(product):
            product.start_all()
            product.wait_for_environment("python")
            yield product
