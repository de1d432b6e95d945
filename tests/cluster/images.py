"""One store of images for all machines of tests: filled once from the engine that tests share, then linked.

A machine's engine starts with hard links to the layers of this store and a copy of what names them. Layers are never
written again (containers write to layers of their own), so links are safe, and a machine with 1.5 GB of images is made
in seconds.
"""

import fcntl
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from runners.environments.builds import LAUNCH_PATHS, LOCAL_BASE, PUBLIC_BASE, DockerEnvironments
from runners.environments.docker_images import DockerImages
from runners.environments.preparing import cache_home, content_key
from tests import engine
from tests.system.own_engine import OwnEngine

STORE = "machine-images"
"""Below the cache folder."""


@contextmanager
def store() -> Iterator[Path]:
    """The store's folder, held alone."""
    folder = cache_home() / STORE
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def stocked(environments: Sequence[str]) -> list[str]:
    """Makes sure that the store has the images of these environments, as an agent looks for them. Their names."""
    with engine_first(environments), store() as folder:
        note = folder / f"stocked-{recipe_key(environments)}.json"
        if note.exists() and set(names := json.loads(note.read_text())) <= set(names_in(folder)):
            return list(names)
        base = base_in(folder) if has_all(folder, environments) else fetch(folder, environments)
        with running(folder) as own:  # a change of ours since then costs one small layer
            maker = DockerEnvironments(DockerImages(own.url), base_image=base)
            names = [base, *(engine.prepared(maker, key) for key in environments)]
        note.write_text(json.dumps(names))
        return names


@contextmanager
def engine_first(environments: Sequence[str]) -> Iterator[None]:
    """The engine that tests share, if the store will need it: a run that has that engine may be waiting for the store."""
    if has_all(cache_home() / STORE, environments):
        yield
        return
    with engine.docker_engine():
        yield


def has_all(folder: Path, environments: Sequence[str]) -> bool:
    """A base and the packages of these environments."""
    names = names_in(folder)
    return bool(base_in(folder)) and all(any(named(name, key) for name in names) for key in environments)


def base_in(folder: Path) -> str:
    names = names_in(folder)
    return next((name for name in (PUBLIC_BASE, LOCAL_BASE) if name in names), "")


def recipe_key(environments: Sequence[str]) -> str:
    """Changes with anything of ours that goes into the images."""
    runners = engine.ROOT / "runners"
    makers = ("images", "environments.py", "docker_images.py", "wheels.py", "horovod_wheel.py")
    tops = [runners / name for name in (*makers, *LAUNCH_PATHS)]
    files = sorted(file for top in tops for file in (top.rglob("*") if top.is_dir() else [top]) if file.is_file())
    ours = [file for file in files if "__pycache__" not in file.parts]
    return content_key(*environments, *(part for file in ours for part in (str(file), file.read_bytes())))[:12]


def named(image: str, environment: str) -> bool:
    return image.startswith(f"schedulearn-packages:{environment}-")


def fetch(folder: Path, environments: Sequence[str]) -> str:
    """Copies them from the engine that tests share, where they are made when they are not there. The base's name."""
    with engine.docker_engine(), running(folder) as own:
        jobs = [engine.job_environment_image(key) for key in environments]
        listed = subprocess.run(
            ["docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        packages = [name for name in listed if any(named(name, key) for key in environments)]
        own.take_over([engine.base_image(), *packages, *jobs])
        return engine.base_image()


@contextmanager
def running(folder: Path) -> Iterator[OwnEngine]:
    own = OwnEngine(folder)
    own.start()
    try:
        yield own
    finally:
        own.stop()


def names_in(folder: Path) -> dict[str, str]:
    """Name -> digest, as the engine of this store wrote it down."""
    try:
        kept = json.loads((folder / "data" / "image" / "overlay2" / "repositories.json").read_text())["Repositories"]
    except (OSError, ValueError, KeyError):
        return {}
    return {name: digest for tags in kept.values() for name, digest in tags.items()}


def give_images(names: Sequence[str], data: Path) -> None:
    """A data folder for a new engine that has all the store has."""
    with store() as folder:
        known = names_in(folder)
        assert all(name in known for name in names), f"the store lacks {set(names) - set(known)}"
        data.mkdir(mode=0o710)
        shutil.copytree(folder / "data" / "image", data / "image", symlinks=True)
        layers = folder / "data" / "overlay2"
        subprocess.run(["cp", "-al", layers, data / "overlay2"], check=True, timeout=300)
