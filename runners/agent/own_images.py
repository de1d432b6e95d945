"""Gets the images that projects name: from their registry, or from the portal, which has them from another node.

The first node that asks resolves the tag to a digest, pulls the image, checks it and reports both; all others pull exactly that
digest. A node that the registry refuses reports that to the portal, which asks a node with the image to send it.
"""

import hashlib
import time
from collections.abc import Collection, Mapping
from typing import Any

from runners.agent.shared_environments import (
    UNUSED_SECONDS,
    BuildPortal,
    ReportedBuild,
    SharedEnvironments,
    WantedEnvironment,
)
from runners.environments.builds import Report
from runners.environments.own_images import OwnImageStore
from runners.environments.preparing import PrepareError, Progress, cache_home, require_space, temporary_folder
from runners.environments.registry_images import RegistryAccess
from runners.messages import Message
from runners.messages.environment_failures import EngineDiskFull
from runners.messages.environments import AskingRegistry
from runners.messages.image_failures import BadImageName, DamagedImage, ImageTooLarge
from runners.messages.images import AwaitingOtherNode, FetchingImage, LoadingImage, SendingImage

FORMAT = "schedulearn image 1"
"""Part of each digest."""
REFUSED_SECONDS = 300.0
"""How long a registry that could not give an image is not asked again for it."""
OF_THIS_NODE = (ImageTooLarge, EngineDiskFull, BadImageName)
"""Failures that an image from elsewhere would have as well."""
SPARE_MIB = 1024
"""The space that a saved image leaves on the disk of the cache folder."""


class AwaitingImageError(Exception):
    """A node that has the image is asked to send it."""

    def __init__(self, message: Message) -> None:
        super().__init__(message.text)
        self.message = message


def digest_of(kind: str, exact: str) -> str:
    """Return the digest of an image for nodes of a kind. The portal computes the same."""
    return hashlib.sha256(f"{FORMAT}\n{kind}\n{exact}".encode()).hexdigest()


def access_of(data: Any) -> RegistryAccess:
    given: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    return RegistryAccess(str(given.get("user", "")), str(given.get("token", "")), given.get("insecure") is True)


class OwnImages(SharedEnvironments):
    """The images of projects on this node."""

    def __init__(self, store: OwnImageStore, portal: BuildPortal) -> None:
        super().__init__(portal)
        self._store = store
        self._refused: dict[str, tuple[float, Message]] = {}
        """Until when the registry is not asked, and why it did not give the image, by digest."""

    def has(self, digest: str) -> bool:
        return self._store.reference_of(digest) is not None

    def _is_here(self, digest: str) -> bool:
        return self.has(digest)

    def tidy(self, needed: Collection[str]) -> None:
        self._store.tidy({*self.current_digests(), *needed}, UNUSED_SECONDS)

    def _prepare(self, wanted: WantedEnvironment, progress: Progress) -> Report:
        with self._lock:
            current = self._current.get(wanted.key)
        has = current.digest if current is not None and self._store.has_source(current.digest) else ""
        claim = self._portal.claim_environment(wanted.key, self._store.kind(), has)
        match claim["state"]:
            case "ready":
                try:
                    self.fetch(str(claim["digest"]), progress)
                except AwaitingImageError as error:
                    return self._waiting(wanted, error.message)
                return self._ready(wanted, str(claim["digest"]), final=claim.get("final") is not False)
            case "build":
                return self._ready(wanted, self._build(int(claim["build"]), claim["recipe"], progress))
            case _:
                return self._answered(wanted, claim)

    # --- fetching ----------------------------------------------------------------------------------------------------

    def fetch(self, digest: str, progress: Progress) -> None:
        """Get an image, unless it is here, and prepare it. Raises AwaitingImageError while another node is to send it;
        PrepareError, EngineError or PortalError."""
        if self.has(digest):
            return
        with self._fetching_of(digest, progress) as report:
            if self.has(digest):  # another thread has fetched it
                return
            source = self._portal.image_source(digest)
            if not self._store.has_source(digest):
                self._get(digest, source, report)
            self._store.prepare(str(source["image"]), digest, report)

    def _get(self, digest: str, source: Mapping[str, Any], progress: Progress) -> None:
        """Pull an image, or load it from the portal when that fails."""
        until, failure = self._refused.get(digest, (0.0, None))
        if failure is None or time.monotonic() > until:
            try:
                self._store.pull(str(source["image"]), digest, access_of(source.get("access")), scaled(progress))
                self._refused.pop(digest, None)
                return
            except PrepareError as error:
                if isinstance(error.failure, OF_THIS_NODE):
                    raise
                failure = error.failure
                self._refused[digest] = (time.monotonic() + REFUSED_SECONDS, failure)
        source = self._portal.image_source(digest, failure)
        if not source.get("bytes"):
            if source.get("coming") is not True:
                raise PrepareError(failure)  # type: ignore[arg-type]  # only failures are kept
            waiting = AwaitingOtherNode(failure)
            progress(0, waiting)
            raise AwaitingImageError(waiting)
        self._load(digest, source, progress)

    def _load(self, digest: str, source: Mapping[str, Any], progress: Progress) -> None:
        require_space(cache_home(), (int(source["bytes"]) >> 20) + SPARE_MIB)
        with temporary_folder(cache_home(), "schedulearn-image-") as folder:
            archive = folder / "image.tar"

            def arrived(done: int, total: int) -> None:
                progress(int(80 * done / max(1, total)), FetchingImage(done >> 20, total >> 20))

            with archive.open("wb") as file:
                sha256 = self._portal.fetch_layer(digest, file, arrived)
            with archive.open("rb") as arrived_file:
                if hashlib.file_digest(arrived_file, "sha256").hexdigest() != sha256:
                    raise PrepareError(DamagedImage("the file does not have its hash"))
            progress(85, LoadingImage())
            self._store.load(archive, digest, str(source["content"]))

    # --- building ----------------------------------------------------------------------------------------------------

    def _build(self, number: int, recipe: Mapping[str, Any], progress: Progress) -> str:
        """Find out what a name means now, pull and check it for all nodes of this kind, and return the digest."""
        with self._build_of(number, progress) as build:
            image, access, kind = str(recipe["image"]), access_of(recipe.get("access")), self._store.kind()

            def note(text: str) -> None:
                with build.log.open("a") as file:
                    file.write(f"{text}\n")

            note(f"Image: {image}")
            build.progress(0, AskingRegistry())
            exact = self._store.resolve(image, access)
            note(f"Digest: {exact.partition('@')[2]}")
            digest = digest_of(kind, exact)
            if not self._store.has_source(digest):
                self._store.pull(exact, digest, access, scaled(build.progress))
            made = self._store.prepare(image, digest, build.progress)
            facts = made.facts
            note(f"Python {facts.python} ({facts.command}), {facts.libc or 'a C library other than glibc'}")
            note(f"{made.bytes >> 20} MiB, {len(facts.modules)} modules: {', '.join(facts.modules)}")
            sha256 = self._send(digest, made.bytes, build) if recipe.get("send") is True else ""
            build.end(
                {
                    "state": "done",
                    "digest": digest,
                    "sha256": sha256,
                    "lock": exact,
                    "unpacked_bytes": made.bytes,
                    "modules": list(facts.modules),
                    "facts": {"content": made.content, "python": facts.python, "libc": facts.libc},
                },
            )
        return digest

    def _send(self, digest: str, size: int, build: ReportedBuild) -> str:
        """Send an image to the portal for nodes that cannot pull it, and return the hash of its archive."""
        require_space(cache_home(), (size >> 20) + SPARE_MIB)
        hashed, written = hashlib.sha256(), 0
        with temporary_folder(cache_home(), "schedulearn-image-") as folder:
            archive = folder / "image.tar"
            with archive.open("wb") as file:
                for piece in self._store.save(digest):
                    hashed.update(piece)
                    written += file.write(piece)
                    build.progress(95, SendingImage(0, max(size, written) >> 20))
            build.send_file(archive, SendingImage)
        return hashed.hexdigest()


def scaled(progress: Progress) -> Progress:
    """Return a progress whose whole is most of another's: the check follows."""
    return lambda percent, step: progress(percent * 9 // 10, step)
