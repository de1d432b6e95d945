"""Makes what a build left in a folder fit to be shared: portable, readable by every job, and without surprises.

A build may have been hostile. It has ended, so nothing changes the folder any more; no link in it is followed. Removed are

- links that are absolute or lead out of the folder, devices, sockets and FIFOs, and set-user-id bits;
- what an installer notes beside the metadata for itself, which has paths of this machine;
- ``.pth`` files, and the modules ``sitecustomize`` and ``usercustomize`` of any form, which Python would run when it starts: the
  shim of jobs adds a layer as Python adds its own folder of packages, with its ``.pth`` files;
- modules that Python has itself (the ``argparse`` and ``typing`` of the index): a build's checks have the layer on PYTHONPATH,
  before the standard library.
"""

import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from runners.runtimes.host_config import Owner

OWN_NOTE = "a note of the installer"
SHEBANG = b"#!/usr/bin/env python3\n"
MAX_SHEBANG_BYTES = 4096
NOTES = frozenset({"direct_url.json", "uv_build.json", "uv_cache.json"})
STARTS = frozenset({"sitecustomize", "usercustomize"})
MODULE_ENDINGS = (".py", ".pyc", ".so")
OUR_MODULES = frozenset({"runners", "schedulearn_train"})
"""Packages of ours in a job: what runs first, and the training library."""
METADATA_FOLDER = re.compile(r".+\.(dist-info|egg-info|data|libs)")
NO_PACKAGES = frozenset({"bin", "include", "lib", "lib64", "share", "etc", "man", "__pycache__"})
"""Folders of wheels beside their packages, and of scripts."""


def is_run_at_start(name: str) -> bool:
    """Whether Python runs what has this name, at the top of a folder of packages, when it starts: a file, a folder or a link."""
    return name.endswith(".pth") or module_of(name) in STARTS


def module_of(name: str) -> str:
    """Return the module that a file or folder of this name is to Python; empty if it can be none."""
    stem, dot, ending = name.partition(".")
    return stem if not dot or f".{ending}".endswith(MODULE_ENDINGS) else ""


def clean(site: Path, standard: Collection[str], owner: Owner) -> list[str]:
    """Clean a folder of packages and give it to ``owner``. ``standard`` are the modules of Python itself. Returns what was
    removed, for the log."""
    removed = [f"{path.relative_to(site)}: {why}" for path, why in unsafe(site, owner) if why != OWN_NOTE]
    for name in sorted(set(top_level(site)) & set(standard)):
        for path in module_paths(site, name):
            remove(path)
        removed.append(f"{name}: Python has this module itself")
    if (site / "bin").is_dir():
        for script in sorted((site / "bin").iterdir()):
            make_portable(script)
    return removed


def unsafe(site: Path, owner: Owner) -> Iterator[tuple[Path, str]]:
    """Remove what is unsafe, give all files to ``owner`` and make them readable. Yields (path, reason)."""
    top = site.resolve()
    waiting = [site]
    while waiting:
        folder = waiting.pop()
        os.chown(folder, owner.uid, owner.gid, follow_symlinks=False)
        folder.chmod(0o755)
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            path = Path(entry.path)
            mode = entry.stat(follow_symlinks=False).st_mode
            if why := unsafe_reason(path, mode, site, top):
                remove(path)
                yield path, why
            elif stat.S_ISDIR(mode):
                waiting.append(path)
            else:
                os.chown(path, owner.uid, owner.gid, follow_symlinks=False)
                if stat.S_ISREG(mode):
                    path.chmod(0o755 if mode & 0o111 else 0o644)


def unsafe_reason(path: Path, mode: int, site: Path, top: Path) -> str:
    """Return why a file must not stay; empty if it may."""
    if not path.name.isprintable():  # also names that are not UTF-8
        return "its name has unprintable characters"
    at_top = path.parent == site
    if at_top and is_run_at_start(path.name):
        return "Python would run it at its start"
    if stat.S_ISLNK(mode):
        return "" if leads_inside(path, top) else "a link out of the folder"
    if stat.S_ISDIR(mode):
        return ""
    if not stat.S_ISREG(mode):
        return "not a file"
    if path.name in NOTES and path.parent.suffix == ".dist-info":
        return OWN_NOTE
    return OWN_NOTE if at_top and path.name == ".lock" else ""


def leads_inside(link: Path, top: Path) -> bool:
    """Whether a link is relative and what it names is a file within the folder."""
    if link.readlink().is_absolute():
        return False
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError):
        return False
    return target.is_relative_to(top) and target != top and target.is_file()


def make_portable(script: Path) -> None:
    """Have a script run the Python that is first on PATH: it names the one it was installed with, which has another path."""
    if script.is_symlink() or not script.is_file():
        return
    with script.open("rb") as file:
        first = file.readline(MAX_SHEBANG_BYTES)
        if not first.startswith(b"#!") or b"python" not in first and first.strip() != b"#!/bin/sh":
            return
        rest = file.read()
    if first.strip() == b"#!/bin/sh":
        # The form for long paths: '''exec' "/long/path/python" "$0" "$@" and, on the next line, ' '''
        found = re.match(rb"'''exec' [^\n]*python[^\n]*\n' '''\n", rest)
        if found is None:
            return
        rest = rest[found.end() :]
    script.write_bytes(SHEBANG + rest)
    script.chmod(0o755)


def top_level(site: Path) -> dict[str, bool]:
    """Return the import names in a folder, and for each whether it is a package or module of its own, not a namespace."""
    names: dict[str, bool] = {}
    for entry in os.scandir(site):
        module = module_of(entry.name)
        if not module.isidentifier() or entry.name in NO_PACKAGES or METADATA_FOLDER.fullmatch(entry.name):
            continue
        is_folder = entry.is_dir(follow_symlinks=False)
        if is_folder == (entry.name == module):
            names[module] = names.get(module, False) or not is_folder or is_package(Path(entry.path))
    return names


def is_package(folder: Path) -> bool:
    """Whether a folder is a package of its own, not a namespace: it has an ``__init__`` of any form."""
    return any(module_of(path.name) == "__init__" != path.name for path in folder.iterdir())


def module_paths(site: Path, name: str) -> list[Path]:
    """Return the folder and files of a top-level module."""
    return [path for path in site.iterdir() if module_of(path.name) == name]


def hidden_modules(site: Path, below: Collection[str]) -> tuple[str, ...]:
    """Return the modules of a layer that would hide one of the environment below it, or of ours."""
    hidden = set(below) | OUR_MODULES
    return tuple(sorted(name for name, own in top_level(site).items() if own and name in hidden))


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
