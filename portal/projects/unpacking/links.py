"""Links of an upload: those to something in it become copies of that, all others are left out."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, takewhile

from .common import CODE, BadUploadError, Entry, Limits
from .names import listed, split

MAX_STEPS = 16
"""Maximum number of links that lead to one another."""


class CircularLinkError(Exception):
    """A link leads to itself, or through too many others."""


def follow_links(entries: Sequence[Entry], limits: Limits = CODE) -> tuple[list[Entry], list[str]]:
    """Replace links by what they lead to, and leave out the others; return the entries with notes."""
    links = {entry.path: entry for entry in entries if entry.link is not None}
    if not links:
        return list(entries), []
    kept = [entry for entry in entries if entry.link is None]
    files = {entry.path: entry for entry in kept if not entry.is_dir}
    names = sorted(files)
    outside, broken, circular, copies = [], [], [], list[Entry]()
    for path, entry in links.items():
        try:
            target = _target(entry, links)
        except CircularLinkError:
            circular.append(path)
            continue
        if target is None:
            outside.append(path)
        elif path.startswith(f"{target}/" if target else ""):
            circular.append(path)
        elif target in files:
            copies.append(replace(files[target], path=path))
        elif found := _copies_of_folder(path, target, files, names):
            copies += found
        else:
            broken.append(path)
        if len(kept) + len(copies) > limits.entries:
            raise BadUploadError(limits.too_many_entries())
    followed = len(links) - len(outside) - len(broken) - len(circular)
    notes = []
    if followed:
        notes.append("1 link became a copy" if followed == 1 else f"{followed:,} links became copies")
        notes[0] += " of what it leads to." if followed == 1 else " of what they lead to."
    if outside:
        notes.append(f"Left out, since they lead out of the upload: {listed(outside)}.")
    if circular:
        notes.append(
            f"Left out, since they lead to themselves or to a folder that they are in, or through more than {MAX_STEPS} links: "
            f"{listed(circular)}."
        )
    if broken:
        notes.append(f"Left out, since they lead to nothing in the upload: {listed(broken)}.")
    return kept + copies, notes


def _target(link: Entry, links: dict[str, Entry]) -> str | None:
    """Return the path that a link leads to in the end; None when that is outside the upload. Raises CircularLinkError."""
    for _ in range(MAX_STEPS):
        if link.link is None or link.link.startswith("/"):
            return None
        parts = [] if link.from_top else link.path.split("/")[:-1]
        for part in split(link.link):
            if part != "..":
                parts.append(part)
            elif parts:
                parts.pop()
            else:
                return None
        path = "/".join(parts)
        through = next((depth for depth in range(1, len(parts) + 1) if "/".join(parts[:depth]) in links), None)
        if through is None:
            return path
        # a part of the path is itself a link: continue from where it leads
        first = links["/".join(parts[:through])]
        link = replace(first, link="/".join([first.link or "", *parts[through:]]))
    raise CircularLinkError


def _copies_of_folder(path: str, target: str, files: dict[str, Entry], names: Sequence[str]) -> list[Entry]:
    """Return copies of the files of a folder at the path of a link to it, which is not in that folder. ``names`` are sorted."""
    inside = f"{target}/" if target else ""
    found = takewhile(lambda name: name.startswith(inside), islice(names, bisect_left(names, inside), None))
    return [replace(files[name], path=f"{path}/{name.removeprefix(inside)}") for name in found]
