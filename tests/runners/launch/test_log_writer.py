import os
import re
import struct
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.launch import log_writer as module
from runners.launch.log_writer import INDEX_RECORD, RESERVE, RESERVE_BYTES, TAIL_BYTES, LogStream, LogWriter
from tests.examples import examples
from tests.runners.launching import attempt

FLOOD = """
import os
line = b"x" * 99 + b"\\n"
for _ in range(600):
    os.write(1, line * 5000)
os.write(1, b"the very last line\\n")
"""

MEASURED = """#!{python}
import resource, subprocess, sys
code = subprocess.run([{python!r}, *sys.argv[1:]]).returncode
with open({peak!r}, "w") as file:
    file.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""
"""A Python that leaves the peak memory, in KiB, of what it ran in a file."""


def marks(folder: Path, name: str) -> list[tuple[int, int]]:
    return list(struct.iter_unpack("<QQ", (folder / f"{name}.idx").read_bytes()))


def test_it_keeps_every_byte_undecoded(tmp_path: Path) -> None:
    stream = LogStream(tmp_path, "0", 10_000)
    for chunk in (b"caf\xc3", b"\xa9\n", b"\xff\xfe\x00\r\n", b"no end of line"):
        stream.write(chunk)
    stream.close()
    assert (tmp_path / "0.log").read_bytes() == "café\n".encode() + b"\xff\xfe\x00\r\nno end of line"


def test_it_marks_when_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    monkeypatch.setattr(module.time, "time_ns", lambda: int(now * 1e9))
    stream = LogStream(tmp_path, "0", 10_000)
    stream.write(b"first\n")
    now = 100.05
    stream.write(b"too soon for a mark of its own\n")
    now = 101.5
    stream.write(b"later\n")
    stream.close()
    assert marks(tmp_path, "0") == [(0, 100_000), (37, 101_500)]


@settings(max_examples=examples(60), deadline=None)
@given(chunks=st.lists(st.binary(max_size=400), max_size=30), limit=st.integers(1, 2_000), tail=st.integers(0, 300))
def test_a_log_over_its_limit_keeps_its_beginning_and_its_end(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes], limit: int, tail: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    written = b"".join(chunks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TAIL_BYTES", tail)
        if tail == 0:
            patch.setattr(module, "TAIL_BYTES", 1)
            tail = 1
        stream = LogStream(folder, "0", limit)
        for chunk in chunks:
            stream.write(chunk)
        stream.close()
    kept = (folder / "0.log").read_bytes()
    if len(written) <= limit:
        assert kept == written
        return
    dropped = max(len(written) - limit - tail, 0)
    assert kept.startswith(written[:limit])
    assert kept.endswith(written[-min(tail, len(written) - limit) :])
    found = re.search(rb"\[schedulearn\] ([\d,]+) bytes dropped by the limit", kept[limit:])
    assert (int(found[1].replace(b",", b"")) if found else 0) == dropped


def test_a_full_disk_neither_blocks_nor_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = LogStream(tmp_path, "0", 10_000)
    stream.write(b"before\n")
    whole = LogStream._put
    monkeypatch.setattr(LogStream, "_put", staticmethod(lambda handle, data: 0))
    stream.write(b"lost\n" * 20_000)
    monkeypatch.setattr(LogStream, "_put", staticmethod(whole))
    stream.close()
    kept = (tmp_path / "0.log").read_bytes()
    assert kept.startswith(b"before\n[schedulearn] ")
    assert f"{100_000 - TAIL_BYTES:,} bytes dropped by the full disk".encode() in kept


def test_reserved_space_on_a_full_disk_takes_the_number_of_dropped_bytes_and_the_tail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = LogWriter(tmp_path)
    reserve, whole = tmp_path / RESERVE, LogStream._put
    assert reserve.stat().st_blocks * 512 >= RESERVE_BYTES
    logs.stream("0").write(b"before\n")
    # the disk is full, and stays full until the reserve is deleted
    monkeypatch.setattr(LogStream, "_put", staticmethod(lambda *args: 0 if reserve.exists() else whole(*args)))
    logs.stream("0").write(b"lost\n" * 20_000)
    logs.close()
    kept = (tmp_path / "log" / "0.log").read_bytes()
    assert kept.startswith(b"before\n[schedulearn] ") and kept.endswith(b"lost\n" * (TAIL_BYTES // 5))
    assert f"{100_000 - TAIL_BYTES:,} bytes dropped by the full disk".encode() in kept
    assert not reserve.exists()


def test_a_late_writer_finds_the_log_closed(tmp_path: Path) -> None:
    """Its file number may by then belong to another file."""
    stream = LogStream(tmp_path, "0", 10_000)
    stream.close()
    with (tmp_path / "another").open("wb"), (tmp_path / "and-another").open("wb"):
        stream.write(b"late")
        stream.sync()
        stream.close()
    assert (tmp_path / "another").read_bytes() == (tmp_path / "and-another").read_bytes() == b""


def test_it_refuses_to_write_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "0.log").symlink_to(tmp_path / "elsewhere")
    logs = LogWriter(tmp_path)
    with pytest.raises(OSError):
        logs.stream("0")
    logs.close()
    assert not (tmp_path / "elsewhere").exists()


def test_labels_and_sentences_are_for_the_user(tmp_path: Path) -> None:
    logs = LogWriter(tmp_path)
    logs.label("0", "rank 3")
    logs.report("Starting rank 3")
    logs.close()
    assert (tmp_path / "log" / "setup.log").read_text() == "Starting rank 3\n"
    assert '"0": {"label": "rank 3"}' in (tmp_path / "log" / "streams.json").read_text()


def test_a_flood_takes_little_memory_and_ends_with_its_last_line(tmp_path: Path) -> None:
    measured, peak = tmp_path / "measured-python", tmp_path / "peak"
    measured.write_text(MEASURED.format(python=sys.executable, peak=str(peak)))
    measured.chmod(0o755)
    with attempt(tmp_path, python=str(measured)) as made:
        container = made.container((sys.executable, "-c", FLOOD)).start(SCHEDULEARN_LOG_LIMIT_MIB="4")
        assert container.wait()["code"] == 0
    log = container.raw()
    assert len(log) < 4 * 2**20 + TAIL_BYTES + 1000
    assert log.endswith(b"the very last line\n")
    assert re.search(rb"\[schedulearn\] 29\d,\d{3},\d{3} bytes dropped by the limit", log)
    assert 0 < int(peak.read_text()) < 48 * 1024


def last_time(folder: Path, name: str) -> int:
    return INDEX_RECORD.unpack((folder / "log" / f"{name}.idx").read_bytes()[-INDEX_RECORD.size :])[1]


@pytest.mark.parametrize("lines", [1, 2000])
def test_the_end_of_a_program_is_reported_behind_its_output(tmp_path: Path, lines: int) -> None:
    """Also if all of it happens within the interval of the index, and its output is still in the pipe."""
    writer = LogWriter(tmp_path)
    writer.report("Starting it")
    reader, output = os.pipe()
    writer.pump(reader, "0")
    os.write(output, b"a line\n" * lines)
    os.close(output)
    writer.report_exit("It ended", "0")
    assert (tmp_path / "log" / "0.log").stat().st_size == 7 * lines
    assert last_time(tmp_path, "setup") > last_time(tmp_path, "0")
    writer.close()


def test_a_child_that_keeps_the_output_open_is_not_awaited_for_long(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    reader, output = os.pipe()
    writer.pump(reader, "0")
    began = time.monotonic()
    writer.report_exit("It ended", "0")
    assert time.monotonic() - began < 5
    os.close(output)
    writer.close()
