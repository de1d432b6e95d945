"""Layers as images, on nodes whose admin prefers them to mounts: an image of an environment's base with the layer inside.

Such an image can be scanned, and needs no folder of the machine. It is made when a container first needs it, and removed
once its layer is gone.
"""

import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from runners.environments.docker_images import DockerImages
from runners.environments.layers import store
from runners.host.exclusive import ExclusiveSection
from runners.runtimes.docker import engine_calls
from runners.runtimes.host_config import LAYER

REPOSITORY = "schedulearn-layer"
LABEL = "schedulearn.layer"
"""The label with the digest of an image's layer."""
DIGITS = 12
WAIT_SECONDS = 600.0
UNUSED_SECONDS = 3600
"""The age at which an image without its layer is removed: other agents of this engine may have the layer."""


class LayerImages:
    """The images of layers on an engine."""

    def __init__(self, engine: DockerImages | None = None) -> None:
        self._engine = engine
        self._section = ExclusiveSection("making the image of an environment")

    @property
    def engine(self) -> DockerImages:
        """The engine, connected when first needed: an agent may start before its engine."""
        if self._engine is None:
            self._engine = DockerImages()
        return self._engine

    def image_of(self, base: str, digest: str, layer: Path) -> str:
        """Return the tag of the image of ``base`` with a layer, whose folder is ``layer``. It is made if it is not there.

        Raises EngineError, or BusyError while another thread makes one for too long.
        """
        content = (self.engine.id_of(base) or base).rpartition(":")[2]
        tag = f"{REPOSITORY}:{digest[:DIGITS]}-{content[:DIGITS]}"
        if self.engine.id_of(tag) is not None:
            return tag  # without waiting for the image of another layer
        with self._section.enter(WAIT_SECONDS):
            if self.engine.id_of(tag) is None:
                with archive_of(layer) as archive:
                    self.engine.add_files(base, archive, tag, {LABEL: digest})
        return tag

    def remove_unused(self) -> None:
        """Remove the images of layers that this node does not have any more. Those that a container has stay."""
        with engine_calls():
            for image in self.engine.client.api.images(filters={"reference": f"{REPOSITORY}:*"}):
                digest = (image.get("Labels") or {}).get(LABEL, "")
                is_wanted = bool(store.DIGEST.fullmatch(digest)) and store.path_of(digest) is not None
                if is_wanted or image["Created"] > time.time() - UNUSED_SECONDS:
                    continue
                for tag in image.get("RepoTags") or []:
                    self.engine.remove(tag)


@contextmanager
def archive_of(layer: Path) -> Iterator[IO[bytes]]:
    """Yield a tar of a layer's folder, at the place where jobs find it."""
    place = PurePosixPath(LAYER).relative_to("/")
    with tempfile.TemporaryFile(dir=store.home()) as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            for path in store.folders_first(layer):
                store.add(tar, path, str(place / path.relative_to(layer)))
        file.seek(0)
        yield file
