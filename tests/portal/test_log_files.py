"""Logs of builds: of a long one the beginning and the end are kept, and offsets stay what they were."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portal import log_files
from tests.examples import examples

LINE = "\n\n[{:>15,} bytes of this log are left out here]\n\n"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MAX_BYTES": 400, "HEAD_BYTES": 100, "TAIL_BYTES": 150}.items():
        monkeypatch.setattr(log_files, name, value)


def whole(path: Path, limit: int = 60) -> bytes:
    """Return a log as someone who follows it from its beginning sees it."""
    found, offset = b"", 0
    while True:
        content, end = log_files.read_from(path, offset, limit)
        if not content:
            assert end == offset == log_files.size_of(path)
            return found
        found, offset = found + content, end


def test_a_log_that_is_short_is_kept_whole(tmp_path: Path, small: None) -> None:
    path = tmp_path / "builds" / "1.log"
    assert (log_files.size_of(path), log_files.read_from(path, 0, 9)) == (0, (b"", 0))
    assert log_files.append(path, 0, b"12345") == 5
    assert log_files.append(path, 0, b"again") == 5
    assert log_files.append(path, 9, b"too early") == 5
    assert log_files.append(path, 5, b"x" * 395) == 400
    assert path.read_bytes() == whole(path) == b"12345" + b"x" * 395


def test_of_a_long_log_the_beginning_and_the_end_are_kept(tmp_path: Path, small: None) -> None:
    path, sent = tmp_path / "1.log", 0
    for number in range(500):
        piece = f"{number:09}\n".encode()
        sent = log_files.append(path, sent, piece)
        assert sent == 10 * (number + 1)
        assert path.stat().st_size <= 400
    text = path.read_text()
    head, line, tail = text[:100], text[100 : 100 + log_files.LINE_BYTES], text[100 + log_files.LINE_BYTES :]
    assert head == "".join(f"{number:09}\n" for number in range(10)) and tail.endswith("000000499\n")
    assert line == LINE.format(5000 - len(head) - len(tail)) and whole(path).decode() == text
    assert log_files.read_from(path, 4990, 99) == (b"000000499\n", 5000)
    assert log_files.read_from(path, 2000, 9999)[0].decode() == line + tail  # these bytes are left out
    assert log_files.append(path, 4000, b"again") == 5000


@settings(max_examples=examples(300, 60))
@given(st.lists(st.text("aé€🙂\n", min_size=1, max_size=60), max_size=60))
def test_whoever_follows_a_log_sees_its_end_in_whole_characters(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"MAX_BYTES": 400, "HEAD_BYTES": 100, "TAIL_BYTES": 150}.items():
            patch.setattr(log_files, name, value)
        path, sent, seen = tmp_path_factory.mktemp("log") / "1.log", 0, 0
        for piece in pieces:
            sent = log_files.append(path, sent, piece.encode())
            content, seen = log_files.read_from(path, seen, 10_000)
            while seen < sent:
                more, seen = log_files.read_from(path, seen, 10_000)
                content += more
            assert content.decode().endswith(piece)
        assert sent == log_files.size_of(path) == len("".join(pieces).encode())
        assert whole(path, 10_000).decode()[-30:] == "".join(pieces)[-30:]
