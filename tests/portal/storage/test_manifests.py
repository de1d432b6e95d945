"""Manifests: sorted, equal for equal files, and searched without being read."""

import hashlib
import io
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.storage import manifests
from portal.storage.manifests import FileEntry, Manifest, ManifestBuilder, ManifestError, Totals

HASH = "0" * 64


def entry(path: str, size: int = 1) -> FileEntry:
    return FileEntry(path, size, hashlib.sha256(path.encode()).hexdigest())


def written(*paths: str, run_lines: int = 3) -> tuple[bytes, Totals]:
    out = io.BytesIO()
    with ManifestBuilder(run_lines) as builder:
        for path in paths:
            builder.add(entry(path))
        totals = builder.write(out)
    return out.getvalue(), totals


def manifest(*paths: str) -> Manifest:
    data, _ = written(*paths)
    return Manifest(io.BytesIO(data), len(data))


def names(found: tuple[list[manifests.FolderItem], str]) -> list[str]:
    return [item.cursor for item in found[0]]


def test_a_line_comes_back_as_its_entry() -> None:
    for each in (FileEntry("a b/ c", 0, HASH), FileEntry("日本/é.csv", 2**50, HASH, True)):
        assert FileEntry.of_line(each.line()) == each


def test_equal_files_give_an_equal_manifest_in_any_order() -> None:
    one, totals = written("b", "a/x", "c/d", "é")
    two, same = written("é", "c/d", "b", "a/x", run_lines=100)
    assert one == two and totals == same
    assert totals.sha256 == hashlib.sha256(one).hexdigest()
    assert (totals.manifest_bytes, totals.files, totals.size) == (len(one), 4, 4)


def test_a_path_is_only_once_in_it_and_no_file_is_a_folder() -> None:
    with pytest.raises(ManifestError, match="“a/b” is in it twice"):
        written("a/b", "c", "d", "e", "a/b")
    with pytest.raises(ManifestError, match="“a” is both a file and a folder"):
        written("a/b", "a-b", "a.txt", "a")
    with pytest.raises(ManifestError, match="“a/b” is both"):
        written("a/b/c/d", "a/b", "a/b.c")
    written("a.b/c", "a", "ab/c")


def test_the_number_of_files_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MAX_FILES", 2)
    with pytest.raises(ManifestError, match="more than 2 files"):
        written("a", "b", "c")


def test_a_folder_is_read_page_by_page() -> None:
    found = manifest("a.txt", "a/1", "a/2", "a/b/3", "a0", "b", "c/d/e/f")
    assert names(found.folder("")) == ["a.txt", "a/", "a0", "b", "c/"]
    assert names(found.folder("a")) == ["1", "2", "b/"]
    assert names(found.folder("c/d")) == ["e/"]
    assert found.folder("b") == found.folder("nothing") == ([], "")
    pages, after = [], ""
    for _ in range(9):
        items, after = found.folder("", after, 2)
        pages.append([item.cursor for item in items])
        if not after:
            break
    assert pages == [["a.txt", "a/"], ["a0", "b"], ["c/"]]


PARTS = st.sampled_from(["a", "b", "a b", "a.txt", "a-", "é", "0", "zz"])
PATHS = st.lists(st.lists(PARTS, min_size=1, max_size=4).map("/".join), max_size=40, unique=True)


@given(PATHS, st.integers(1, 5))
def test_search_agrees_with_reading_everything(paths: list[str], count: int) -> None:
    files = {path for path in paths if not any(other.startswith(f"{path}/") for other in paths)}
    found = manifest(*files)
    assert [each.path for each in found] == sorted(files, key=str.encode)
    for path in paths:
        assert (found.find(path) is not None) == (path in files)
    folders = {str(parent) for path in files for parent in PurePosixPath(path).parents}
    for folder in folders:
        inside = "" if folder == "." else f"{folder}/"
        rests = [path[len(inside) :] for path in files if path.startswith(inside)]
        expected = {rest.partition("/")[0] + "/" * ("/" in rest) for rest in rests}
        seen: list[str] = []
        after = ""
        for _ in range(len(files) + 1):
            items, after = found.folder(inside.rstrip("/"), after, count)
            seen += [item.cursor for item in items]
            if not after:
                break
        assert len(seen) == len(expected) and set(seen) == expected


def test_a_folder_of_many_files_is_found_without_reading_them() -> None:
    class Counted(io.BytesIO):
        lines = 0

        def readline(self, size: int | None = -1, /) -> bytes:
            Counted.lines += 1
            return super().readline(size)

    data, _ = written(*(f"{number // 100:03}/{number:05}" for number in range(20_000)), run_lines=3_000)
    found = Manifest(Counted(data), len(data))
    assert len(found.folder("150")[0]) == 100
    assert found.find("199/19999") is not None
    assert Counted.lines < 250
