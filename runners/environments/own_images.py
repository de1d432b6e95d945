"""Images that projects name, on this node: kept under tags of ours, checked, and with what starts jobs on top.

    schedulearn-image:<digest>            the image itself, as pulled or loaded
    schedulearn-job:image-<digest>-<ours>  the same with the launch package: what a job's container is created from

The digest is that of the lock: 24 of its digits. Nothing of the image runs before it is checked, and the check is confined
like a job.
"""

import io
import json
import os
import re
import tarfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from runners.environments import registry_images
from runners.environments.builds import RUNNERS, hash_files
from runners.environments.docker_images import (
    BUILD_LABEL,
    DEFAULT_PATH,
    DockerImages,
    add_bytes,
    normalise_member,
    waiting_process,
)
from runners.environments.image_check import (
    FIND_PYTHONS,
    START,
    ImageFacts,
    does_not_start,
    read_facts,
    refuse_volumes,
)
from runners.environments.preparing import PrepareError, Progress, content_key
from runners.environments.registry_images import ImageName, RegistryAccess
from runners.messages.image_failures import NoShell
from runners.messages.images import AddingLauncher, CheckingImage
from runners.runtime import LAUNCH_PATHS
from runners.runtimes.docker import APIError, NotFound, engine_calls
from runners.runtimes.host_config import APP_FOLDER, owner_for

DIGEST = re.compile(r"[0-9a-f]{64}")
TAG_DIGITS = 24
SOURCE, JOB = "schedulearn-image", "schedulearn-job"
SOURCE_TAG = re.compile(rf"{SOURCE}:([0-9a-f]{{{TAG_DIGITS}}})")
JOB_TAG = re.compile(rf"{JOB}:image-([0-9a-f]{{{TAG_DIGITS}}})-[0-9a-f]{{12}}")
CHECK_SECONDS = 120.0
TICK_SECONDS = 0.5
SOME_JOB = 99_999_999
"""No job's: its user id is one that the image cannot know."""
WRAPPER = '#!/bin/sh\nexec python3 "$@"\n'
"""Called ``python`` where only ``python3`` is new enough. A link would not find the packages of a virtual environment."""


@dataclass(frozen=True)
class PreparedImage:
    """An image that jobs can run in."""

    facts: ImageFacts
    content: str
    bytes: int


def source_tag(digest: str) -> str:
    """Return the tag of an image. Raises ValueError for what is not a digest."""
    if not DIGEST.fullmatch(digest):
        raise ValueError(f"{digest[:80]!r} is not the digest of an image.")
    return f"{SOURCE}:{digest[:TAG_DIGITS]}"


@cache
def launch_key() -> str:
    """Return a hash of what is put into images: another one after an update of the agent."""
    return content_key("own image 1", WRAPPER, hash_files({name: RUNNERS / name for name in LAUNCH_PATHS}))[:12]


def job_tag(digest: str) -> str:
    return f"{JOB}:image-{source_tag(digest).partition(':')[2]}-{launch_key()}"


class OwnImageStore:
    """The images on this node's engine. Every method may raise EngineError."""

    def __init__(self, engine: DockerImages | None = None) -> None:
        self._engine = engine
        self._used: dict[str, float] = {}

    @property
    def engine(self) -> DockerImages:
        """The engine, connected when first needed: an agent may start before its engine."""
        if self._engine is None:
            self._engine = DockerImages()
        return self._engine

    def kind(self) -> str:
        """Return a text that is equal for nodes which can run the same images: ``image-linux-amd64``."""
        return f"image-{registry_images.platform_of(self.engine).replace('/', '-')}"

    def reference_of(self, digest: str) -> str | None:
        """Return the image from which containers are created; None while it is not here."""
        tag = job_tag(digest)
        return tag if self.engine.id_of(tag) is not None else None

    def has_source(self, digest: str) -> bool:
        return self.engine.id_of(source_tag(digest)) is not None

    def resolve(self, image: str, access: RegistryAccess) -> str:
        """Return the full name with the digest that it means now. Raises PrepareError."""
        name = ImageName.parse(image)
        return name.at(name.digest or registry_images.resolve(self.engine, name, access))

    def pull(self, exact: str, digest: str, access: RegistryAccess, progress: Progress) -> None:
        """Pull an image that is named with its digest, and keep it under our tag. Raises PrepareError."""
        name = ImageName.parse(exact)
        was_here = self.engine.id_of(exact) is not None
        pulled = registry_images.pull(self.engine, name, name.digest, access, progress)
        repository, _, version = source_tag(digest).partition(":")
        with engine_calls():
            self.engine.client.api.tag(pulled, repository, version)
        if not was_here:
            self.engine.remove(pulled)  # our tag keeps the image, until we remove it

    def load(self, archive: Path, digest: str, content: str) -> None:
        """Load an image that another node sent, and keep it under our tag. Raises PrepareError."""
        registry_images.load(self.engine, archive, content, source_tag(digest))

    def save(self, digest: str) -> Iterator[bytes]:
        return registry_images.save(self.engine, source_tag(digest))

    def prepare(self, image: str, digest: str, progress: Progress) -> PreparedImage:
        """Check an image that is here, and put on top of it what starts jobs. Raises PrepareError."""
        source, tag = source_tag(digest), job_tag(digest)
        progress(91, CheckingImage())
        with engine_calls():
            found = self.engine.client.api.inspect_image(source)
        config = found.get("Config") or {}
        refuse_volumes(image, config)
        _, output = self._run(image, source, ["sh", "-c", FIND_PYTHONS])
        facts = read_facts(image, output)
        if self.engine.id_of(tag) is None:
            progress(95, AddingLauncher())
            self._add_launcher(source, tag, config, facts)
            code, output = self._run(image, tag, ["python", "-c", START], APP_FOLDER)
            if code != 0:
                self.engine.remove(tag)
                raise does_not_start(image, output)
        return PreparedImage(facts, registry_images.content_of(self.engine, source), int(found.get("Size") or 0))

    def _run(self, image: str, reference: str, command: list[str], folder: str = "/") -> tuple[int, str]:
        """Run a short command confined as a job, with a user id that the image does not know; return its exit code and the end
        of its output. Raises PrepareError when it cannot be started."""
        with engine_calls():
            self.engine.remove_abandoned()
        with engine_calls(), self._container(reference, command, confined(folder)) as container:
            try:
                container.start()
            except APIError as error:
                explanation = str(error.explanation)
                raise (
                    PrepareError(NoShell(image)) if command[0] == "sh" else does_not_start(image, explanation)
                ) from error
            until = time.monotonic() + CHECK_SECONDS
            while True:
                container.reload()
                if container.status == "exited":
                    break
                if time.monotonic() > until:
                    raise does_not_start(image, f"it has not ended after {int(CHECK_SECONDS)} seconds")
                time.sleep(TICK_SECONDS)
            output: bytes = container.logs()
            return int(container.attrs["State"]["ExitCode"]), output.decode(errors="replace")

    def _add_launcher(self, source: str, tag: str, config: Mapping[str, Any], facts: ImageFacts) -> None:
        """Make the job image without running anything of the image: a Dockerfile would run its ONBUILD instructions as root."""
        variables = dict(each.partition("=")[::2] for each in config.get("Env") or [])
        changes = ["ENTRYPOINT []", 'CMD ["python"]', f"WORKDIR {APP_FOLDER}", "USER 65534:65534"]
        if facts.command != "python":
            changes.append(f"ENV PATH={json.dumps(f'{APP_FOLDER}/bin:' + variables.get('PATH', DEFAULT_PATH))}")
        with engine_calls(), self._container(source, ["true"], {"labels": {"schedulearn": "image"}}) as container:
            container.put_archive("/", launch_archive(facts.command != "python"))
            repository, _, version = tag.partition(":")
            container.commit(repository, version, changes=changes)

    @contextmanager
    def _container(self, image: str, command: list[str], options: Mapping[str, Any]) -> Iterator[Any]:
        container = self.engine.client.containers.create(
            image, command, entrypoint=[], network_mode="none", healthcheck={"test": ["NONE"]}, **options
        )
        try:
            yield container
        finally:
            with suppress(NotFound):
                container.remove(force=True, v=True)

    def tidy(self, keep: Collection[str], unused_for_seconds: float) -> None:
        """Remove our tags of images that were not used for this time, except those to keep. The engine deletes an image with
        its last name; images in use by a container stay, and so do those that have other names."""
        now = time.time()
        kept = {digest[:TAG_DIGITS] for digest in keep}
        self._used |= dict.fromkeys(kept, now)
        with engine_calls():
            rows = [
                *self.engine.client.api.images(filters={"reference": f"{SOURCE}:*"}),
                *self.engine.client.api.images(filters={"reference": f"{JOB}:image-*"}),
            ]
        for tag in (tag for row in rows for tag in row.get("RepoTags") or []):
            found = SOURCE_TAG.fullmatch(tag) or JOB_TAG.fullmatch(tag)
            if found is None or found[1] in kept:
                continue
            if self._used.setdefault(found[1], now) <= now - unused_for_seconds:
                self.engine.remove(tag)


def confined(folder: str) -> dict[str, Any]:
    """Return the options of a container that is confined as those of jobs are (``runtimes.host_config``)."""
    return {
        "working_dir": folder,
        "user": owner_for(SOME_JOB, os.geteuid(), os.getegid()).user,
        "read_only": True,
        "tmpfs": {"/tmp": "rw,nosuid,nodev,mode=1777,size=64m"},  # noqa: S108  the container's own
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "pids_limit": 256,
        "mem_limit": "2g",
        "memswap_limit": "2g",
        "ipc_mode": "private",
        "environment": {"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"},  # noqa: S108
        "labels": {BUILD_LABEL: json.dumps(waiting_process())},
        "log_config": {"Type": "json-file", "Config": {"max-size": "2m", "max-file": "1"}},
    }


def launch_archive(with_wrapper: bool) -> bytes:
    """Return the launch package as a tar for ``/``, owned by root. Folders above ``/opt/schedulearn`` stay as they are."""
    top = APP_FOLDER.lstrip("/")
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for folder in (top, f"{top}/runners", *([f"{top}/bin"] if with_wrapper else [])):
                member = tarfile.TarInfo(folder)
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(member)
            for name in LAUNCH_PATHS:
                tar.add(RUNNERS / name, f"{top}/runners/{name}", filter=normalise_member)
            if with_wrapper:
                add_bytes(tar, f"{top}/bin/python", WRAPPER.encode(), 0o755)
        return file.getvalue()
