"""Uploads are hostile: the corpus of bad ones leaves no trace, the corpus of good ones arrives to the byte."""

import io
import os
import resource
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal import sandbox
from portal.projects import archive, store
from portal.projects.errors import BadArchiveError
from portal.projects.unpacking.common import BadUploadError
from portal.projects.unpacking.names import clean_path, collision_key
from tests import corpus
from tests.examples import every_fourth

HOSTILE = list(corpus.hostile())
HONEST = list(corpus.honest())
ODD = list(corpus.odd())
MOST_SECONDS = 10
"""Of processor time, ours and the sandbox's: the wall clock of a busy machine is no measure."""
MOST_GROWTH_KIB = 64 * 1024


@pytest.fixture(autouse=True)
def own_home(settings: Any, tmp_path: Path) -> Path:
    settings.HOME = tmp_path / "home"
    settings.HOME.mkdir()
    store.folder()
    (settings.HOME / "incoming").mkdir()
    (tmp_path / "witness.py").write_text("print('untouched')\n")
    return tmp_path


def everything(top: Path) -> dict[str, tuple[int, bytes]]:
    found = {}
    for path in sorted(top.rglob("*")):
        state = path.lstat()
        found[str(path)] = (state.st_mode, path.read_bytes() if path.is_file() else b"")
    return found


def processor_seconds() -> float:
    return sum(os.times()[:4])


def own_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_the_corpus_is_as_large_as_promised() -> None:
    assert len({case.id for case in HOSTILE}) == len(HOSTILE) >= 150
    assert len({case.id for case in HONEST}) == len(HONEST) >= 80


@pytest.mark.parametrize("case", every_fourth(HOSTILE), ids=lambda case: case.id)
def test_a_hostile_upload_is_refused_and_leaves_no_trace(case: corpus.Case, own_home: Path) -> None:
    data = case.make()
    before, memory, started = everything(own_home), own_kib(), processor_seconds()
    with pytest.raises(BadArchiveError) as refused:
        archive.store_upload([(case.name, io.BytesIO(data))])
    assert processor_seconds() - started < MOST_SECONDS
    assert everything(own_home) == before
    assert own_kib() - memory < MOST_GROWTH_KIB
    message = refused.value.message
    assert message.endswith((".", "?", ")")) and message.isprintable() and 20 < len(message) < 400


@pytest.mark.parametrize("case", every_fourth(HONEST), ids=lambda case: case.id)
def test_an_honest_upload_arrives_to_the_byte(case: corpus.Case) -> None:
    arrives_to_the_byte(case)


@pytest.mark.parametrize("case", every_fourth(ODD), ids=lambda case: case.id)
def test_what_no_run_needs_refuses_no_upload(case: corpus.Case) -> None:
    taken = arrives_to_the_byte(case)
    if case.note:
        assert any(case.note in note for note in taken.notes), taken.notes
    else:
        assert taken.notes == []
    assert all(note.isprintable() and note.endswith(".") for note in taken.notes)


def arrives_to_the_byte(case: corpus.Case) -> archive.StoredUpload:
    taken = archive.store_upload([(case.name, io.BytesIO(case.make()))])
    with tarfile.open(store.path_of(taken.sha256)) as tar:
        assert {m.name: tar.extractfile(m).read() for m in tar if m.isreg()} == case.files  # type: ignore[union-attr]
        assert all(m.isreg() or m.isdir() for m in tar)
    assert [entry["path"] for entry in taken.files] == sorted(case.files)
    assert taken.size == sum(map(len, case.files.values()))
    with store.path_of(taken.sha256).open("rb") as tar_file:
        for entry in taken.files:
            tar_file.seek(entry["offset"])
            assert tar_file.read(entry["size"]) == case.files[entry["path"]]
    return taken


BOMBS = [case for case in HOSTILE if "bomb" in case.id or "million" in case.id]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, id=case.id, marks=() if case.id in ("zip-bomb-of-one-file", "targz-bomb") else pytest.mark.thorough
        )
        for case in BOMBS
    ],
)
def test_a_bomb_is_recognised_within_little_memory(case: corpus.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what it is, not by running into the limit: an eighth of the memory is enough for that."""
    limits = sandbox.UPLOADS
    monkeypatch.setattr(sandbox, "UPLOADS", replace(limits, memory_bytes=limits.memory_bytes // 8))
    with pytest.raises(BadArchiveError) as refused:
        archive.store_upload([(case.name, io.BytesIO(case.make()))])
    assert "memory" not in refused.value.message


@pytest.mark.parametrize("names", [["../a.py", "b.py"], ["/a.py", "b.py"], ["p/", "b"], ["p", "p/b"]])
def test_a_folder_from_the_browser_is_judged_like_an_archive(names: list[str], own_home: Path) -> None:
    before = everything(own_home)
    with pytest.raises(BadArchiveError):
        archive.store_upload([(name, io.BytesIO(b"x")) for name in names])
    assert everything(own_home) == before


def test_a_folder_from_the_browser_is_measured_as_a_whole(own_home: Path, settings: Any) -> None:
    settings.MAX_UPLOAD_MIB = 1
    before = everything(own_home)
    with pytest.raises(BadArchiveError, match="larger than 1 MiB"):
        archive.store_upload([(f"part{n}.bin", io.BytesIO(bytes(600 * 1024))) for n in range(2)])
    assert everything(own_home) == before


def test_a_folder_from_the_browser_arrives_to_the_byte() -> None:
    files = {f"top/d{n % 3}/f{n}.py": b"%d\n" % n * n for n in range(50)} | {"top/.git/HEAD": b"x"}
    taken = archive.store_upload([(name, io.BytesIO(data)) for name, data in files.items()])
    assert len(taken.files) == 50
    assert any("top" in note for note in taken.notes) and any(".git" in note for note in taken.notes)


def test_a_program_that_never_ends_is_stopped_and_leaves_nothing(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "UPLOADS", replace(sandbox.UPLOADS, seconds=0.01))
    before = everything(own_home)
    with pytest.raises(BadArchiveError, match="limits"):
        archive.store_upload([("a.py", io.BytesIO(b"x"))])
    assert everything(own_home) == before


@pytest.mark.parametrize("limit", [{"memory_bytes": 16 * 1024 * 1024}, {"file_bytes": 100_000}])
def test_a_program_that_meets_a_limit_is_refused(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, limit: dict[str, Any]
) -> None:
    monkeypatch.setattr(sandbox, "UPLOADS", replace(sandbox.UPLOADS, **limit))
    before = everything(own_home)
    with pytest.raises(BadArchiveError):
        archive.store_upload([("a.zip", io.BytesIO(corpus.zip_tree({"a.bin": os.urandom(2 * corpus.MIB)})))])
    assert everything(own_home) == before


def test_nothing_of_the_portal_reaches_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "canary")
    monkeypatch.setattr(sandbox, "_START", "import json, os; print(json.dumps(dict(os.environ)))")
    seen = sandbox.run("projects.unpacking.program", [], -3)
    assert "canary" not in seen.values() and set(seen) <= {"TMPDIR", "LANG", "LC_CTYPE"}


@given(st.text(max_size=60))
def test_a_name_that_is_taken_stays_below_its_folder_and_means_itself(raw: str) -> None:
    try:
        path = clean_path(raw)
    except BadUploadError as bad:
        assert str(bad).isprintable()
        return
    if path:
        inside = os.path.normpath(os.path.join("/top", path))
        assert inside == f"/top/{path}"
        assert "\0" not in path and "\\" not in path
    assert clean_path(path) == path
    assert collision_key(path) == collision_key(collision_key(path))


@given(st.lists(st.sampled_from(["..", ".", "a", "B", "", "con", "x y", "é"]), min_size=1, max_size=6))
def test_paths_that_climb_are_never_taken(parts: list[str]) -> None:
    raw = "/".join(parts)
    if ".." in parts:
        with pytest.raises(BadUploadError):
            clean_path(raw)


@given(st.binary(max_size=400), st.sampled_from(["a.zip", "a.tar", "a.tgz"]))
def test_bytes_that_are_no_archive_are_refused_in_words(data: bytes, name: str) -> None:
    from portal.projects.unpacking.program import READ_ERRORS, unpack

    head = {"a.zip": b"PK\3\4", "a.tar": b"", "a.tgz": b"\x1f\x8b\x08"}[name]
    with pytest.raises((BadUploadError, *READ_ERRORS)):
        unpack(io.BytesIO(head + data), io.BytesIO(), name)
