"""Writes the files of a commit as an archive, as they are stored: no filter or attribute of the repository takes part."""

import io
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from runners.sources.inside.git import Failed, Repository, say, step, variables
from runners.sources.inside.submodules import host_of, is_among, module_addresses, resolved

LFS_HEAD = b"version https://git-lfs.github.com/spec/v1\n"
MAX_POINTER_BYTES = 1024
MAX_LINK_BYTES = 4096
MAX_ENTRIES = 200_000
MAX_SIZES_BYTES = MAX_ENTRIES * 120
"""What git prints of the sizes of that many files."""
MAX_PATHS_BYTES = MAX_ENTRIES * 500
"""The paths of a commit, together."""
MAX_ROW_BYTES = 1024 * 1024
READ_BYTES = 64 * 1024
MAX_SUBMODULES, MAX_DEPTH = 50, 4
MAX_NAMES = 20
"""How many files a message lists."""


class Pointer:
    """A file of Git LFS, of which the repository has only this text."""

    def __init__(self, text: bytes, name: str, size: int, mode: str, path: str) -> None:
        self.text, self.name, self.size, self.mode, self.path = text, name, size, mode, path
        self.is_added = False


def read_pointer(text: bytes, mode: str, path: str) -> Pointer | None:
    """Return the pointer that this text is; None if it only begins like one."""
    name = re.search(rb"^oid sha256:([0-9a-f]{64})$", text, re.MULTILINE)
    size = re.search(rb"^size ([0-9]{1,15})$", text, re.MULTILINE)
    return Pointer(text, name[1].decode(), int(size[1]), mode, path) if name and size else None


class Archive:
    """The archive of all files, with what is to be known about them."""

    def __init__(self, plan: dict[str, Any], file: IO[bytes], time: int) -> None:
        self.plan = plan
        self.time = time
        self.tar = tarfile.open(  # noqa: SIM115  its caller closes it
            fileobj=file, mode="w:gz", format=tarfile.PAX_FORMAT, compresslevel=1
        )
        self.entries = 0
        self.bytes = 0
        self.submodules = 0
        self.pointers: list[Pointer] = []
        self.left_out: list[str] = []

    def add_tree(self, repository: Repository, commit: str, prefix: str, depth: int) -> None:
        """Add the files of a commit below ``prefix``, which is empty or ends with a slash."""
        rows = self.list_tree(repository, commit, prefix)
        blobs = [row for row in rows if row[0] != "160000"]
        self.judge_sizes(repository, blobs)
        self.add_blobs(repository, blobs)
        self.add_pointers(repository)
        modules = [row for row in rows if row[0] == "160000"]
        if modules and not self.plan["extras"]:
            self.left_out += [path for _, _, path in modules]
        elif modules:
            addresses = module_addresses(repository, commit)
            for _, wanted, place in modules:
                self.add_submodule(repository, addresses.get(place[len(prefix) :], ""), wanted, place, depth)

    def list_tree(self, repository: Repository, commit: str, prefix: str) -> list[tuple[str, str, str]]:
        """Return mode, name of the object and path of all files. Equal trees are stored once, so that a few kB may have more files
        than any memory holds: reading stops at the limit."""
        rows: list[tuple[str, str, str]] = []
        with repository.started("ls-tree", "-r", "-z", "--full-tree", commit) as content:
            for each in records(content):
                about, _, path = each.partition(b"\t")
                mode, _, name = about.decode().split(" ")
                rows.append((mode, name, prefix + path.decode(errors="surrogateescape")))
                self.entries += 1
                if self.entries > MAX_ENTRIES:
                    raise Failed(failure="too_many_files", limit=MAX_ENTRIES)
        return rows

    def judge_sizes(self, repository: Repository, blobs: list[tuple[str, str, str]]) -> None:
        names = "".join(f"{name}\n" for _, name, _ in blobs).encode()
        answers = repository.read(
            "cat-file", "--batch-check=%(objectname) %(objecttype) %(objectsize)", stdin=names, limit=MAX_SIZES_BYTES
        )
        large = []
        for (_, _, path), answer in zip(blobs, answers.decode().splitlines(), strict=True):
            words = answer.split(" ")
            size = int(words[2]) if len(words) == 3 else -1
            if size < 0 or size > self.plan["max_file_bytes"]:
                large.append(readable(path))
            self.bytes += max(0, size)
        if large:
            limit = self.plan["max_file_bytes"] >> 20
            raise Failed(failure="large_files", files=large[:MAX_NAMES], count=len(large), limit_mib=limit)
        if self.bytes > self.plan["max_tree_bytes"]:
            raise Failed(failure="large_tree", mib=self.bytes >> 20, limit_mib=self.plan["max_tree_bytes"] >> 20)

    def add_blobs(self, repository: Repository, blobs: list[tuple[str, str, str]]) -> None:
        process = subprocess.Popen(
            repository.argv("cat-file", "--batch"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=variables(self.plan),
        )
        asked, content = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        try:
            for mode, name, path in blobs:
                asked.write(f"{name}\n".encode())
                asked.flush()
                size = int(content.readline().split(b" ")[2])
                self.add_blob(content, size, mode, path)
                content.read(1)
        finally:
            process.kill()
            process.wait()

    def add_blob(self, content: IO[bytes], size: int, mode: str, path: str) -> None:
        """Add the next ``size`` bytes as a file or link, unless they are a pointer to a file of Git LFS."""
        if mode == "120000":
            target = content.read(size)
            if size > MAX_LINK_BYTES:
                raise Failed(failure="long_link", path=readable(path))
            info = self.entry(path, tarfile.SYMTYPE)
            info.linkname = target.decode(errors="surrogateescape")
            self.tar.addfile(info)
            return
        if size < MAX_POINTER_BYTES:
            data = content.read(size)
            if data.startswith(LFS_HEAD) and (pointer := read_pointer(data, mode, path)) is not None:
                self.pointers.append(pointer)
                return
            self.add_file(io.BytesIO(data), size, mode, path)
            return
        self.add_file(content, size, mode, path)

    def add_file(self, content: IO[bytes], size: int, mode: str, path: str) -> None:
        info = self.entry(path, tarfile.REGTYPE)
        info.size = size
        info.mode = 0o755 if mode == "100755" else 0o644
        self.tar.addfile(info, content)

    def entry(self, path: str, kind: bytes) -> tarfile.TarInfo:
        info = tarfile.TarInfo(path)
        info.type, info.mtime = kind, self.time
        return info

    def add_pointers(self, repository: Repository) -> None:
        """Add the files of Git LFS: their content if that is switched on, else the pointers as they are."""
        pointers = [pointer for pointer in self.pointers if not pointer.is_added]
        if pointers and self.plan["extras"]:
            self.bytes += sum(pointer.size for pointer in pointers)
            if self.bytes > self.plan["max_tree_bytes"]:
                raise Failed(failure="large_tree", mib=self.bytes >> 20, limit_mib=self.plan["max_tree_bytes"] >> 20)
            step("lfs")
            repository.transfer("lfs", "fetch", "origin", "refs/heads/fetched")
        for pointer in pointers:
            pointer.is_added = True
            if not self.plan["extras"]:
                self.add_file(io.BytesIO(pointer.text), len(pointer.text), pointer.mode, pointer.path)
                continue
            name = pointer.name
            stored = repository.folder / "lfs" / "objects" / name[:2] / name[2:4] / name
            if not stored.is_file() or stored.stat().st_size != pointer.size:
                raise Failed(failure="no_lfs_file", path=readable(pointer.path))
            with stored.open("rb") as content:
                self.add_file(content, pointer.size, pointer.mode, pointer.path)

    def add_submodule(self, parent: Repository, address: str, commit: str, path: str, depth: int) -> None:
        self.submodules += 1
        url = resolved(parent.address, address)
        allowed = url and is_among(self.plan["hosts"], host_of(url))
        if not allowed or depth >= MAX_DEPTH or self.submodules > MAX_SUBMODULES:
            raise Failed(failure="bad_submodule", path=readable(path), address=readable(address))
        step("submodule")
        say(f"Submodule {readable(path)}: {url}")
        module = Repository(self.plan, Path(self.plan["work"]) / f"module-{self.submodules}.git", url)
        module.make(commit)
        try:
            found = module.fetch(commit, "--depth=1", f"--filter=blob:limit={self.plan['max_file_bytes'] + 1}")
        except Failed as error:
            raise Failed(**{**error.found, "submodule": readable(path)}) from None
        self.add_tree(module, found, f"{path}/", depth + 1)


def records(content: IO[bytes]) -> Iterator[bytes]:
    """Read what ends with NUL bytes. Raises Failed if it is more than the paths of ``MAX_ENTRIES`` files need."""
    rest, size = b"", 0
    while data := content.read(READ_BYTES):
        size += len(data)
        *whole, rest = (rest + data).split(b"\0")
        if size > MAX_PATHS_BYTES or len(rest) > MAX_ROW_BYTES:
            raise Failed(failure="too_many_files", limit=MAX_ENTRIES)
        yield from whole


def readable(name: str) -> str:
    """Return a name for a message, with what cannot be printed as escapes."""
    text = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)[:200]
