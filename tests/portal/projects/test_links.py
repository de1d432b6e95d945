"""What becomes of the links of an upload, and what its notes call them."""

import io
import tarfile

import pytest

from portal.projects.unpacking.program import unpack


def unpacked(links: dict[str, str]) -> tuple[list[str], list[str]]:
    """The files and the notes of a tar with two files and links to these targets."""
    upload = io.BytesIO()
    with tarfile.open(fileobj=upload, mode="w") as tar:
        for path in ("fit.py", "data/x.csv"):
            tar.addfile(tarfile.TarInfo(path), io.BytesIO())
        for path, target in links.items():
            link = tarfile.TarInfo(path)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
    upload.seek(0)
    answer = unpack(upload, io.BytesIO(), "code.tar")
    return [file["path"] for file in answer["files"]], answer["notes"]


@pytest.mark.parametrize(
    ("links", "named"),
    [
        ({"me": "me"}, "“me”"),
        ({"a": "b", "b": "a"}, "“a” and “b”"),
        ({"data/top": ".."}, "“data/top”"),
        ({"data/here": "."}, "“data/here”"),
        ({"data/again": "../data/again/x"}, "“data/again”"),
        ({f"l{number}": f"l{number + 1}" for number in range(17)} | {"l17": "fit.py"}, "“l0”"),
    ],
)
def test_a_link_in_a_circle_is_named_as_such(links: dict[str, str], named: str) -> None:
    files, notes = unpacked(links)
    (note,) = [each for each in notes if each.startswith("Left out")]
    assert note.startswith("Left out, since they lead to themselves") and all(
        part in note for part in named.split(" and ")
    )
    assert {"fit.py", "data/x.csv"} <= set(files) and not any(name.split("/")[-1] in ("me", "top") for name in files)


@pytest.mark.parametrize(
    ("target", "words"), [("../other", "lead out of the upload"), ("/etc", "lead out of"), ("no.py", "lead to nothing")]
)
def test_other_links_are_named_as_before(target: str, words: str) -> None:
    files, notes = unpacked({"odd": target})
    assert files == ["data/x.csv", "fit.py"] and any(words in note and "“odd”" in note for note in notes)


def test_links_to_what_is_there_become_copies() -> None:
    files, notes = unpacked({"again.py": "fit.py", "copy": "data"})
    assert {"again.py", "copy/x.csv"} <= set(files) and "2 links became copies of what they lead to." in notes
