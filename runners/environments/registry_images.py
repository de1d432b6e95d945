"""Images of registries on this node's Docker Engine: which one a tag names now, pulling exactly that one, saving and loading.

Images are pulled by digest only, so no tag of this machine is ever replaced. The engine's own sign-ins (``docker login``) are
not used: the portal sends what an admin stored for the registry.
"""

import hashlib
import ipaddress
import json
import posixpath
import re
import shutil
import tarfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from runners.environments.docker_images import DockerImages, DownloadProgress
from runners.environments.preparing import PrepareError, Progress
from runners.messages.environment_failures import EngineDiskFull, Failure
from runners.messages.image_failures import (
    BadCertificate,
    BadImageName,
    DamagedImage,
    ImageTooLarge,
    InsecureNotAllowed,
    NoSuchImage,
    OtherPlatform,
    PullFailed,
    RegistryAway,
    RegistryWithoutTls,
    SignInRefused,
)
from runners.messages.images import PullingImage
from runners.runtimes.docker import APIError, engine_calls

NAME = re.compile(
    r"(?P<registry>[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?)(/[a-z0-9]+([._-]+[a-z0-9]+)*)+"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@(?P<digest>sha256:[0-9a-f]{64}))?"
)
"""A full name, as the portal sends it. Nothing else reaches the engine."""
MAX_NAME_CHARACTERS = 500
PULL_TRIES = 3
PULL_PAUSE_SECONDS = 5.0
MARGIN_MIB = 2048
"""The space that an image leaves on the disk of the engine."""
UNPACKED_FACTOR = 3
"""About how much larger an image is than its compressed layers."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
MAX_ARCHIVE_FACTS_BYTES = 16 * 2**20
MAX_MEMBERS = 10_000
NAME_FILES = ("manifest.json", "repositories", "index.json")
"""The files of a saved image that may name it."""
LOADED = re.compile(r"Loaded image(?: ID)?: (\S+)")

# (words of the engine or the registry in lower case, the failure that they mean), the first match counts
_NO_TLS = ("server gave http response to https client",)
_CERTIFICATE = ("x509:", "tls:", "certificate")
_NO_SPACE = ("no space left",)
_PLATFORM = ("no matching manifest", "does not match the specified platform")
_NOT_FOUND = ("manifest unknown", "name unknown", "not found", "repository does not exist", "no such manifest")
_REFUSED = ("unauthorized", "no basic auth", "authentication required", "denied", "forbidden", "incorrect username")
_AWAY = (
    "dial tcp",
    "lookup",
    "timeout",
    "deadline",
    "refused",
    "eof",
    "reset by peer",
    "toomanyrequests",
    "502",
    "503",
)


@dataclass(frozen=True)
class RegistryAccess:
    """What an admin stored for a registry. Not part of any message or log."""

    user: str = ""
    token: str = ""
    insecure: bool = False
    """Whether a registry without encryption, or without a valid certificate, may be used if the engine accepts it."""

    def __repr__(self) -> str:
        return f"RegistryAccess(user={self.user!r}, insecure={self.insecure})"

    @property
    def auth_config(self) -> dict[str, str]:
        """Return it as the engine reads it: empty, not None, keeps the client from sending the agent's own sign-ins."""
        return {"username": self.user, "password": self.token} if self.token else {}


@dataclass(frozen=True)
class ImageName:
    """The full name of an image."""

    text: str
    registry: str
    repository: str
    """With the registry, without tag and digest."""
    digest: str

    @classmethod
    def parse(cls, text: str) -> "ImageName":
        """Raise PrepareError for what is no full name."""
        found = NAME.fullmatch(text) if len(text) <= MAX_NAME_CHARACTERS else None
        if found is None or ".." in text:
            raise PrepareError(BadImageName(text[:200]))
        named = text.partition("@")[0]
        head, _, last = named.rpartition("/")
        return cls(text, found["registry"], f"{head}/{last.partition(':')[0]}", found["digest"] or "")

    def at(self, digest: str) -> str:
        return f"{self.repository}@{digest}"


def platform_of(engine: DockerImages) -> str:
    """Return the platform of the engine, as registries name it: ``linux/amd64``."""
    with engine_calls():
        info = engine.client.info()
    machine = str(info["Architecture"])
    return f"{info['OSType']}/{ARCHITECTURES.get(machine, machine)}"


def resolve(engine: DockerImages, name: ImageName, access: RegistryAccess) -> str:
    """Return the digest of the image that a name means now. Raises PrepareError, also for another platform."""
    _require_allowed(engine, name, access)
    with engine_calls():
        try:
            found = engine.client.api.inspect_distribution(name.text, auth_config=access.auth_config)
        except APIError as error:
            raise explained(name, error, access) from error
    needed = platform_of(engine)
    platforms = {f"{each.get('os')}/{each.get('architecture')}" for each in found.get("Platforms") or ()}
    known = tuple(sorted(each for each in platforms if "unknown" not in each))
    if known and needed not in known:
        raise PrepareError(OtherPlatform(name.text, known[:10], needed))
    return str(found["Descriptor"]["digest"])


def pull(engine: DockerImages, name: ImageName, digest: str, access: RegistryAccess, progress: Progress) -> str:
    """Pull exactly the image with this digest unless it is here, and return its name. A connection that breaks is tried again
    as long as more layers arrive; those that have arrived are kept. Raises PrepareError."""
    exact = name.at(digest)
    if engine.id_of(exact) is not None:
        return exact
    _require_allowed(engine, name, access)
    left, arrived = PULL_TRIES, 0
    while True:
        layers = DownloadProgress()
        try:
            _pull_once(engine, name, exact, access, layers, progress)
            return exact
        except PrepareError as error:
            left = PULL_TRIES if layers.arrived > arrived else left - 1
            if not left or not isinstance(error.failure, RegistryAway | PullFailed):
                raise
            arrived = max(arrived, layers.arrived)
            time.sleep(PULL_PAUSE_SECONDS)


def _pull_once(
    engine: DockerImages,
    name: ImageName,
    exact: str,
    access: RegistryAccess,
    layers: DownloadProgress,
    progress: Progress,
) -> None:
    room = Room(engine, name.text)
    with engine_calls():
        try:
            for event in engine.client.api.pull(exact, stream=True, decode=True, auth_config=access.auth_config):
                if "error" in event:
                    raise explained_text(name, str(event["error"]), access)
                layers.record(event)
                room.require(layers.total_mib)
                progress(layers.percent, PullingImage(name.text, layers.summary()))
        except APIError as error:
            raise explained(name, error, access) from error


class Room:
    """The free space on the engine's disk, if this process can see that disk."""

    def __init__(self, engine: DockerImages, image: str) -> None:
        with engine_calls():
            self._folder = Path(str(engine.client.info().get("DockerRootDir") or "/nonexistent"))
        self._image = image
        self._known_mib = -1

    def require(self, compressed_mib: int) -> None:
        """Raise PrepareError when an image of this compressed size does not fit, or the disk is nearly full."""
        free = self.free_mib()
        if free is None:
            return
        needed = MARGIN_MIB + compressed_mib * UNPACKED_FACTOR
        if compressed_mib > self._known_mib:  # before most of it has arrived
            self._known_mib = compressed_mib
            if free < needed:
                raise PrepareError(ImageTooLarge(self._image, needed, free))
        if free < MARGIN_MIB // 2:
            raise PrepareError(ImageTooLarge(self._image, needed, free))

    def free_mib(self) -> int | None:
        try:
            return shutil.disk_usage(self._folder).free >> 20
        except OSError:
            return None  # an engine on another machine


def _require_allowed(engine: DockerImages, name: ImageName, access: RegistryAccess) -> None:
    if not access.insecure and accepts_insecure(engine, name.registry):
        raise PrepareError(InsecureNotAllowed(name.registry))


def accepts_insecure(engine: DockerImages, registry: str) -> bool:
    """Return whether the engine would talk to a registry without encryption or without checking its certificate."""
    with engine_calls():
        config = engine.client.info().get("RegistryConfig") or {}
    named = (config.get("IndexConfigs") or {}).get(registry)
    if named is not None:
        return named.get("Secure") is False
    host = registry.rpartition(":")[0] if ":" in registry else registry
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
        return any(address in ipaddress.ip_network(each) for each in config.get("InsecureRegistryCIDRs") or ())
    except ValueError:
        return False


def explained(name: ImageName, error: APIError, access: RegistryAccess) -> PrepareError:
    return explained_text(name, str(error.explanation or error), access)


def explained_text(name: ImageName, text: str, access: RegistryAccess) -> PrepareError:
    """Return what an error of the engine about a registry means."""
    if access.token:
        text = text.replace(access.token, "***")
    return PrepareError(_failure(name, text, text.lower(), access))


def _failure(name: ImageName, text: str, lower: str, access: RegistryAccess) -> Failure:
    def has(words: tuple[str, ...]) -> bool:
        return any(word in lower for word in words)

    if has(_NO_SPACE):
        return EngineDiskFull()
    if has(_NO_TLS):
        return RegistryWithoutTls(name.registry)
    if has(_CERTIFICATE):
        return BadCertificate(name.registry, text[:300])
    if has(_PLATFORM):
        return OtherPlatform(name.text, (), "its platform")
    if has(_NOT_FOUND) and not has(_REFUSED[:3]):
        return NoSuchImage(name.text)
    if has(_REFUSED):
        return SignInRefused(name.text, name.registry, access.user)
    if has(_AWAY):
        return RegistryAway(name.registry, text[:300])
    return PullFailed(name.text, text[:300])


# --- content ----------------------------------------------------------------------------------------------------------


def content_of(engine: DockerImages, image: str) -> str:
    """Return a hash of what an image is: its layers and variables. It is the same on engines that give images other IDs."""
    with engine_calls():
        found = engine.client.api.inspect_image(image)
    config = found.get("Config") or {}
    parts = [found["Os"], found["Architecture"], found["RootFS"]["Layers"], config.get("Env") or []]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def save(engine: DockerImages, image: str) -> Iterator[bytes]:
    """Yield an image as a tar, without any name: what is loaded replaces no tag of another engine."""
    with engine_calls():
        image_id = engine.client.api.inspect_image(image)["Id"]
        yield from engine.client.api.get_image(image_id)


def load(engine: DockerImages, archive: Path, content: str, tag: str) -> None:
    """Load an image that ``save`` wrote, and tag it. Raises PrepareError unless it is the one with this content.

    The archive comes from another node. It may contain no names, else it could replace images of this engine.
    """
    refuse_names(archive)
    Room(engine, tag).require((archive.stat().st_size >> 20) // UNPACKED_FACTOR)
    ids = _load(engine, archive)
    if len(ids) != 1:
        raise PrepareError(DamagedImage("it is not one image"))
    image_id = ids[0]
    if content_of(engine, image_id) != content:
        engine.remove(image_id)
        raise PrepareError(DamagedImage("it is another image than requested"))
    repository, _, version = tag.partition(":")
    with engine_calls():
        engine.client.api.tag(image_id, repository, version)


def _load(engine: DockerImages, archive: Path) -> list[str]:
    """Load an archive, and return the IDs of its images."""
    ids = []
    with engine_calls(), archive.open("rb") as file:
        try:
            for event in engine.client.api.load_image(file):
                if "error" in event:
                    no_space = any(word in str(event["error"]).lower() for word in _NO_SPACE)
                    raise PrepareError(EngineDiskFull() if no_space else DamagedImage(str(event["error"])[:200]))
                if found := LOADED.search(str(event.get("stream", ""))):
                    ids.append(found[1])
        except APIError as error:
            raise PrepareError(DamagedImage(str(error.explanation)[:200])) from error
    return ids


def refuse_names(archive: Path) -> None:
    """Raise PrepareError for an archive with names of images."""
    try:
        with tarfile.open(archive) as tar:
            facts = _name_files(tar)
            if "manifest.json" not in facts:
                raise ValueError("it has no manifest")
            contents = {name: _read_json(tar, member) for name, member in facts.items()}
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise PrepareError(DamagedImage(str(error)[:200])) from error
    manifest = contents["manifest.json"]
    if not isinstance(manifest, list) or len(manifest) != 1 or not isinstance(manifest[0], dict):
        raise PrepareError(DamagedImage("it is not one image"))
    if manifest[0].get("RepoTags") or contents.get("repositories") or _annotated(contents.get("index.json")):
        raise PrepareError(DamagedImage("it would replace images of this node"))


def _name_files(tar: tarfile.TarFile) -> dict[str, tarfile.TarInfo]:
    """Return the members that have names, each once, however it is written. Raises ValueError."""
    links: set[PurePosixPath] = set()
    facts: dict[str, tarfile.TarInfo] = {}
    for number, member in enumerate(tar):
        path = PurePosixPath(posixpath.normpath(member.name))
        if number > MAX_MEMBERS or path.is_absolute() or ".." in path.parts or links.intersection(path.parents):
            raise ValueError(f"{member.name[:100]!r} is not the name of a file in a saved image")
        if member.issym():  # of layers that are there already
            links.add(path)
        elif not (member.isreg() or member.isdir()):
            raise ValueError(f"{member.name[:100]!r} is neither a file nor a folder")
        if str(path) in NAME_FILES and facts.setdefault(str(path), member) is not member:
            raise ValueError(f"it has two files {path}")
    return facts


def _read_json(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Any:
    if not member.isreg() or member.size > MAX_ARCHIVE_FACTS_BYTES:
        raise ValueError(f"{member.name} is not a file of a saved image")
    file = tar.extractfile(member)
    return json.loads(file.read()) if file is not None else None


def _annotated(index: Any) -> bool:
    """Whether an OCI index names an image."""
    if index is None:
        return False
    manifests = index.get("manifests") if isinstance(index, Mapping) else None
    if not isinstance(manifests, list):
        return True
    names = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
    return any(
        not isinstance(each, Mapping) or any(name in (each.get("annotations") or {}) for name in names)
        for each in manifests
    )
