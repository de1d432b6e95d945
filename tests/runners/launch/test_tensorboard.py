"""Curves from event files, as TensorBoard's writers make them, and from files that only pretend to be such."""

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.launch import tensorboard
from runners.launch.tensorboard import DENSE_POINTS, EventFiles, Scalar, fields, scalars
from tests.runners.launching import attempt


def varint(value: int) -> bytes:
    some = bytearray()
    while value > 0x7F:
        some.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*some, value])


def part(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def simple(value: float) -> bytes:
    """What PyTorch's writer has for a number."""
    return varint(2 << 3 | 5) + struct.pack("<f", value)


def tensor(value: float) -> bytes:
    """What TensorFlow's writer has for one."""
    return part(8, b"\x08\x01" + part(4, struct.pack("<f", value)))


def event(step: int, *values: tuple[str, bytes], at: float = 1_790_000_000.0) -> bytes:
    summary = b"".join(part(1, part(1, tag.encode()) + value) for tag, value in values)
    return b"\x09" + struct.pack("<d", at) + b"\x10" + varint(step) + part(5, summary)


def record(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + b"sum1" + content + b"sum2"


VERSION = record(b"\x09" + struct.pack("<d", 1.0) + part(3, b"brain.Event:2"))


class Board:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[dict[str, Any]] = []
        self.boards = EventFiles((folder,), lambda line: self.lines.append(json.loads(line)))

    def points(self) -> list[tuple[str, int, float]]:
        return [(line["name"], line["step"], round(line["value"], 4)) for line in self.lines]


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    yield Board(tmp_path)


def test_scalars_of_both_writers_become_points(board: Board) -> None:
    file = board.folder / "runs" / "one" / "events.out.tfevents.1.host"
    file.parent.mkdir(parents=True)
    file.write_bytes(VERSION + record(event(3, ("loss", simple(0.5)), ("accuracy", tensor(0.75)))))
    board.boards.read_new()
    assert board.points() == [("loss", 3, 0.5), ("accuracy", 3, 0.75)]
    assert board.lines[0] == {"kind": "metric", "at": 1_790_000_000.0, "step": 3, "name": "loss", "value": 0.5}


def test_appended_records_become_points_once_and_only_when_they_are_complete(board: Board) -> None:
    file = board.folder / "events.out.tfevents.1"
    text = VERSION + b"".join(record(event(step, ("loss", simple(step)))) for step in range(1, 6))
    for cut in range(0, len(text), 31):
        with file.open("ab") as opened:
            opened.write(text[cut : cut + 31])
        board.boards.read_new()
    assert board.points() == [("loss", step, float(step)) for step in range(1, 6)]


def test_pictures_are_skipped_but_not_the_records_after_them(board: Board) -> None:
    picture = record(event(1, ("picture", part(4, b"x" * 200_000))))
    (board.folder / "x.tfevents").write_bytes(picture + record(event(2, ("loss", simple(1)))))
    board.boards.read_new()
    assert board.points() == [("loss", 2, 1.0)]


def test_the_points_of_a_long_curve_become_sparser(board: Board) -> None:
    file = board.folder / "x.tfevents"
    file.write_bytes(b"".join(record(event(step, ("loss", simple(0)))) for step in range(10 * DENSE_POINTS)))
    board.boards.end()
    steps = [line["step"] for line in board.lines]
    assert steps[:DENSE_POINTS] == list(range(DENSE_POINTS))
    assert steps[DENSE_POINTS : DENSE_POINTS + 3] == [DENSE_POINTS, DENSE_POINTS + 2, DENSE_POINTS + 4]
    assert len(steps) < 4 * DENSE_POINTS and steps[-1] > 9 * DENSE_POINTS


def test_curves_have_a_limit(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "MAX_CURVES", 3)
    (board.folder / "x.tfevents").write_bytes(record(event(1, *((f"c{n}", simple(n)) for n in range(9)))))
    board.boards.read_new()
    assert [name for name, *_ in board.points()] == ["c0", "c1", "c2"]


def test_one_read_is_limited_and_the_end_reads_the_rest(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "MAX_RECORDS_PER_READ", 10)
    (board.folder / "x.tfevents").write_bytes(b"".join(record(event(n, ("a", simple(n)))) for n in range(35)))
    assert board.boards.read_new() == 10
    board.boards.end()
    assert len(board.lines) == 35


def test_links_pipes_and_junk_do_no_harm(board: Board, tmp_path: Path) -> None:
    os.mkfifo(board.folder / "pipe.tfevents")
    (board.folder / "link.tfevents").symlink_to("/dev/zero")
    (board.folder / "folder.tfevents").mkdir()
    (board.folder / "junk.tfevents").write_bytes(b"\xff" * 400)
    (board.folder / "short.tfevents").write_bytes(b"\x01")
    (board.folder / "good.tfevents").write_bytes(record(event(1, ("a", simple(1)))))
    board.boards.read_new()
    assert board.points() == [("a", 1, 1.0)]


@given(st.binary(max_size=300))
def test_any_bytes_are_taken(content: bytes) -> None:
    assert all(isinstance(each, Scalar) for each in scalars(content))
    try:
        list(fields(content))
    except ValueError:
        pass


@given(st.integers(0, 1 << 60), st.text(max_size=30), st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_what_was_written_is_read(step: int, tag: str, value: float) -> None:
    read = scalars(event(step, (tag, simple(value))))
    assert [(each.tag, each.step, each.value) for each in read] == [(tag, step, value)] * (bool(tag) and step < 1 << 53)


def test_a_job_that_writes_event_files_has_curves(tmp_path: Path) -> None:
    content = (VERSION + record(event(7, ("loss", simple(0.25))))).hex()
    script = f"from pathlib import Path; Path('events.out.tfevents.1').write_bytes(bytes.fromhex('{content}'))"
    with attempt(tmp_path) as made:
        host = made.container(("python", "-c", script)).start()
        assert host.wait()["code"] == 0
        (line,) = host.log("metrics").splitlines()
    assert json.loads(line)["name"] == "loss"
