"""Keeps the layers of this machine: ``cache_home()/layers/<digest>/`` with ``layer.json`` and ``site-packages/``.

All installations of a user share them. A layer appears by a rename, complete or not at all. Its digest is a hash of its kind
and its lock, so that nodes of one kind have the same layer under the same name, and of its recipe if packages were built from
source: their code may have changed the lock, the other packages too, so no other list may lead to what it left.
"""

import hashlib
import json
import os
import re
import shutil
import tarfile
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

from runners.environments.layers.cleaning import is_run_at_start
from runners.environments.layers.recipe import Recipe
from runners.environments.preparing import PrepareError, cache_home, content_digest, content_key, temporary_folder
from runners.messages.layer_failures import DamagedLayer

FORMAT = "schedulearn layer 1"
DIGEST = re.compile(r"[0-9a-f]{64}")
FACTS = "layer.json"
SITE = "site-packages"
WORK_PREFIX = ".work-"
MAX_MEMBERS = 1_100_000
CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class BuiltLayer:
    """A layer on this machine."""

    digest: str
    lock: str
    """The exact packages with their hashes, as uv and pip read them."""
    folder: Path
    """The folder of packages, which jobs find after those of the base; its ``bin`` is for PATH."""
    bytes: int
    modules: tuple[str, ...]
    """The top-level names that can be imported."""
    packages: int
    kind: str
    recipe: Recipe


@dataclass(frozen=True)
class PackedLayer:
    """A layer as one file, to send to other nodes."""

    path: Path
    sha256: str


def digest_of(kind: str, lock: str, recipe: Recipe) -> str:
    return content_digest(FORMAT, kind, lock, *([recipe.key] if recipe.source_builds else []))


def home() -> Path:
    return cache_home() / "layers"


def folder_of(digest: str) -> Path:
    """Return the folder of a layer, whether it exists or not. Raises ValueError for what is not a digest."""
    if not DIGEST.fullmatch(digest):
        raise ValueError(f"{digest[:80]!r} is not the digest of a layer.")
    return home() / digest


def path_of(digest: str) -> Path | None:
    """Return the folder of packages of a layer that this machine has, else None."""
    folder = folder_of(digest)
    return folder / SITE if (folder / FACTS).is_file() else None


def layer_of(digest: str) -> BuiltLayer | None:
    """Return a layer that this machine has, else None."""
    try:
        found = read_facts(folder_of(digest))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return found if found.digest == digest else None


def find(recipe: Recipe, kind: str) -> BuiltLayer | None:
    """Return the newest layer that was built from the same recipe for the same kind of node."""
    found = []
    for folder in home().iterdir() if home().is_dir() else ():
        if (
            DIGEST.fullmatch(folder.name)
            and (layer := layer_of(folder.name))
            and (layer.recipe, layer.kind) == (recipe, kind)
        ):
            found.append((folder.stat().st_mtime, layer.digest, layer))
    return max(found)[2] if found else None


def read_facts(folder: Path) -> BuiltLayer:
    """Read the facts of a layer. Raises OSError, or ValueError, LookupError or TypeError if they are damaged."""
    facts = json.loads((folder / FACTS).read_text())
    lock, kind, recipe = str(facts["lock"]), str(facts["kind"]), Recipe.from_json(facts["recipe"])
    return BuiltLayer(
        digest=digest_of(kind, lock, recipe),
        lock=lock,
        folder=folder / SITE,
        bytes=int(facts["bytes"]),
        modules=tuple(map(str, facts["modules"])),
        packages=int(facts["packages"]),
        kind=kind,
        recipe=recipe,
    )


def write_facts(folder: Path, layer: BuiltLayer) -> None:
    facts: dict[str, Any] = {
        "format": FORMAT,
        "kind": layer.kind,
        "lock": layer.lock,
        "recipe": layer.recipe.to_json(),
        "modules": list(layer.modules),
        "packages": layer.packages,
        "bytes": layer.bytes,
    }
    (folder / FACTS).write_text(json.dumps(facts, indent=1, sort_keys=True))


def place(made: Path, layer: BuiltLayer) -> BuiltLayer:
    """Move a complete folder of packages to its place in the store, with its facts. An existing layer is replaced."""
    folder = folder_of(layer.digest)
    with temporary_folder(home(), WORK_PREFIX) as work:
        new = work / "new"
        new.mkdir()
        new.chmod(0o755)
        made.rename(new / SITE)
        write_facts(new, layer)
        swap(new, folder, work)
    return replace(layer, folder=folder / SITE)


def swap(new: Path, folder: Path, work: Path) -> None:
    """Put ``new`` in the place of ``folder``. What was there stays usable for jobs that have it mounted, until it is removed."""
    if folder.exists():
        folder.rename(work / "old")
    new.rename(folder)


def mark_used(digest: str) -> None:
    """Record that a layer is in use now."""
    with suppress(FileNotFoundError):
        os.utime(folder_of(digest) / FACTS)


def tidy(keep: Collection[str], unused_for_seconds: float) -> int:
    """Remove layers that were not used for this time, except those to keep, and what killed processes left. Returns the
    bytes of the removed layers."""
    removed = 0
    with temporary_folder(home(), WORK_PREFIX) as work:  # removes what killed processes left
        for folder in sorted(home().iterdir()):
            if not DIGEST.fullmatch(folder.name) or folder.name in keep:
                continue
            with suppress(FileNotFoundError):  # another agent of this user has removed it
                facts = folder / FACTS
                used_at = (facts if facts.exists() else folder).stat().st_mtime
                if used_at <= time.time() - unused_for_seconds:
                    layer = layer_of(folder.name)
                    folder.rename(work / folder.name)
                    removed += layer.bytes if layer else 0
    return removed


# --- as one file ------------------------------------------------------------------------------------------------------


def pack(digest: str, target: Path) -> PackedLayer:
    """Write a layer to ``target`` as a tar. Equal folders make equal files: owners, times and modes are fixed.

    Raises FileNotFoundError when this machine does not have the layer.
    """
    folder = folder_of(digest)
    if path_of(digest) is None:
        raise FileNotFoundError(f"There is no layer {digest}.")
    with target.open("wb") as raw:
        hashed = HashedFile(raw)
        with tarfile.open(fileobj=hashed, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
            for path in members_of(folder):
                add(tar, path, str(path.relative_to(folder)))
    return PackedLayer(target, hashed.hexdigest())


class HashedFile:
    """A file that is hashed while it is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        return self._file.write(data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def members_of(folder: Path) -> Iterator[Path]:
    """Yield the files and folders of a layer, each after its parent, in a fixed order."""
    yield folder / FACTS
    yield from folders_first(folder / SITE)


def folders_first(top: Path) -> Iterator[Path]:
    """Yield a folder and all that is in it, each after its parent, in a fixed order."""
    waiting = [top]
    while waiting:
        path = waiting.pop()
        yield path
        if path.is_dir() and not path.is_symlink():
            waiting += sorted(path.iterdir(), reverse=True)


def add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    member = tarfile.TarInfo(name)
    member.uname = member.gname = "root"
    if path.is_symlink():
        member.type, member.linkname, member.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
        tar.addfile(member)
    elif path.is_dir():
        member.type, member.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(member)
    else:
        facts = path.stat()
        member.size, member.mode = facts.st_size, 0o755 if facts.st_mode & 0o100 else 0o644
        with path.open("rb") as file:
            tar.addfile(member, file)


def unpack(tar_path: Path, digest: str, sha256: str) -> Path:
    """Put a packed layer into the store. Returns its folder of packages. Raises PrepareError when it is damaged or hostile."""
    folder = folder_of(digest)
    with temporary_folder(home(), WORK_PREFIX) as work:
        new = work / "new"
        new.mkdir()
        new.chmod(0o755)
        with tar_path.open("rb") as file:  # one open file, so that what was hashed is what is read
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise PrepareError(DamagedLayer("the file does not have its hash"))
            file.seek(0)
            extract(file, new)
        try:
            layer = read_facts(new)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise PrepareError(DamagedLayer(f"{FACTS} cannot be read ({error})")) from error
        if layer.digest != digest or not (new / SITE).is_dir():
            raise PrepareError(DamagedLayer("they are other packages than requested"))
        swap(new, folder, work)
    return folder / SITE


def extract(file: IO[bytes], target: Path) -> None:
    """Extract folders, files and links that stay inside; refuse everything else. Raises PrepareError.

    Parents have to be folders of the tar itself, so no file is written through a link.
    """
    folders = {PurePosixPath(".")}
    try:
        with tarfile.open(fileobj=file, mode="r|") as tar:
            for number, member in enumerate(tar):
                if number > MAX_MEMBERS:
                    raise PrepareError(DamagedLayer("they have too many files"))
                name = PurePosixPath(member.name)
                if name.is_absolute() or ".." in name.parts or name.parent not in folders or name in folders:
                    raise PrepareError(DamagedLayer(f"{member.name[:200]!r} is not the name of a file in a layer"))
                if len(name.parts) == 2 and is_run_at_start(name.name):
                    raise PrepareError(DamagedLayer(f"{member.name[:200]!r} would run when Python starts"))
                extract_member(tar, member, target / name)
                if member.isdir():
                    folders.add(name)
    except (tarfile.TarError, EOFError) as error:
        raise PrepareError(DamagedLayer(str(error))) from error
    except FileExistsError as error:
        raise PrepareError(DamagedLayer("they have one file twice")) from error


def extract_member(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    if member.isdir():
        path.mkdir()
        path.chmod(0o755)
    elif member.issym():
        # "a/b" -> "../c": at most as many steps up as the link has folders above it within the packages
        steps = PurePosixPath(member.linkname).parts
        if member.linkname.startswith("/") or steps.count("..") > len(PurePosixPath(member.name).parts) - 2:
            raise PrepareError(DamagedLayer(f"the link {member.name[:200]!r} leads outside"))
        path.symlink_to(member.linkname)
    elif member.isreg() and (source := tar.extractfile(member)) is not None:
        with path.open("xb") as copy:
            shutil.copyfileobj(source, copy, CHUNK_BYTES)
        path.chmod(0o755 if member.mode & 0o100 else 0o644)
    else:
        raise PrepareError(DamagedLayer(f"{member.name[:200]!r} is neither a file nor a folder"))


def recipe_lock(recipe: Recipe, kind: str) -> Path:
    """Return the lock file under which one process at a time builds a recipe."""
    return cache_home() / "locks" / f"layer-{content_key(recipe.key, kind)}"
