"""Writes the output of ranks, as bytes with offsets, to files that outlive the engine.

Each stream is ``log/<stream>.log`` and ``log/<stream>.idx`` (16-byte records: offset and Unix milliseconds, both u64
little endian; bytes from that offset on were written at that time). Bytes are never decoded. Memory is bounded: a
rank that writes faster than the disk is slowed down by its full pipe.
"""

import json
import os
import struct
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from runners.launch.files import write_atomic
from runners.launch.masking import NO_MASKING, MaskedStream, Masking

INDEX_RECORD = struct.Struct("<QQ")
INDEX_INTERVAL_SECONDS = 0.1
"""The interval of index records: an index grows by 160 bytes a second at most."""
SYNC_EVERY_SECONDS = 1.0
EXIT_OUTPUT_SECONDS = 0.3
CHUNK_BYTES = 64 * 1024
TAIL_BYTES = 64 * 1024
"""How much of the output beyond the limit is kept: its end, because the reason of a failure is in the last lines."""
LOG_LIMIT_MIB = 256
RESERVE = "reserve"
RESERVE_BYTES = 1024 * 1024
"""Reserved on the disk before the start and freed at the end, so that a full disk still has room for the ends of the logs,
for the remarks about dropped output, and for exit.json: without that a job that has succeeded would be run again."""


def reserve_space(folder: Path) -> None:
    """Reserve what a container needs for its end on the disk of ``folder``. Raises OSError when it is full."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    handle = os.open(folder / RESERVE, flags, 0o600)
    try:
        os.posix_fallocate(handle, 0, RESERVE_BYTES)
    finally:
        os.close(handle)


class LogStream:
    """One log. Thread-safe: a rank's output and our own remarks may be written at the same time."""

    def __init__(self, folder: Path, name: str, limit_bytes: int, masking: Masking = NO_MASKING) -> None:
        self.masking = masking
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._log = os.open(folder / f"{name}.log", flags, 0o644)
        self._idx = os.open(folder / f"{name}.idx", flags, 0o644)
        self._size = os.fstat(self._log).st_size
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._indexed_at = -1.0
        self._line_open = False
        self._limit_text = f"the limit of {limit_bytes:,} bytes for one log"
        self._dropped_by = ""
        self._dropped = 0
        self._tail = bytearray()
        self._dirty = False
        self._closed = False

    def write(self, data: bytes, *, timed: bool = False) -> None:
        """Append a complete text, masked; ``timed`` data has a time of its own in the index."""
        self.write_masked(self.masking.mask(data), timed=timed)

    def write_masked(self, data: bytes, *, timed: bool = False) -> None:
        """Append data in which the secrets of the job are masked already."""
        with self._lock:
            if self._closed:
                return
            if timed:
                self._indexed_at = -1.0
            room = 0 if self._dropped_by else max(self._limit - self._size, 0)
            kept = self._append(data[:room])
            if kept < len(data):
                self._drop(data[kept:], "the full disk" if kept < min(room, len(data)) else self._limit_text)

    def sync(self) -> None:
        """Write to the disk what was written before this call."""
        with self._lock:
            if self._closed or not self._dirty:
                return
            self._dirty = False
            log, idx = os.dup(self._log), os.dup(self._idx)
        try:  # outside the lock: a slow disk must not stop the ranks
            os.fdatasync(log)
            os.fdatasync(idx)
        except OSError:
            self._dirty = True
        finally:
            os.close(log)
            os.close(idx)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            if self._dropped_by:
                if dropped := self._dropped - len(self._tail):
                    self._add_remark(f"{dropped:,} bytes dropped by {self._dropped_by}")
                self._append(bytes(self._tail))
        self.sync()
        with self._lock:
            self._closed = True
            os.close(self._log)
            os.close(self._idx)

    def _append(self, data: bytes) -> int:
        """Append data; returns how many bytes were kept, fewer than given only when the disk refuses them."""
        if not data:
            return 0
        now = time.monotonic()
        if self._indexed_at < 0 or now - self._indexed_at >= INDEX_INTERVAL_SECONDS:
            self._indexed_at = now
            self._put(self._idx, INDEX_RECORD.pack(self._size, time.time_ns() // 1_000_000))
        written = self._put(self._log, data)
        if written:
            self._size += written
            self._line_open = data[written - 1] != ord("\n")
            self._dirty = True
        return written

    def _drop(self, data: bytes, reason: str) -> None:
        if not self._dropped_by:
            self._dropped_by = reason
            self._add_remark(f"From here on output is dropped by {reason}; its end will be kept")
        self._dropped += len(data)
        self._tail += data[-TAIL_BYTES:]
        del self._tail[:-TAIL_BYTES]

    def _add_remark(self, sentence: str) -> None:
        self._append((b"\n" if self._line_open else b"") + f"[schedulearn] {sentence}\n".encode())

    @staticmethod
    def _put(handle: int, data: bytes) -> int:
        written = 0
        while written < len(data):
            try:
                written += os.write(handle, data[written:])
            except OSError:
                break
        return written


class LogWriter:
    """The streams of one container, and the small files beside them."""

    def __init__(self, folder: Path, limit_bytes: int = LOG_LIMIT_MIB * 1024 * 1024) -> None:
        self.folder = folder
        self._logs = folder / "log"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._limit = limit_bytes
        self._masking = NO_MASKING
        self._streams: dict[str, LogStream] = {}
        self._labels: dict[str, str] = {}
        self._pumps: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()
        try:
            reserve_space(folder)
        except OSError:
            pass  # the agent has done it before; and a disk without room must not prevent the training
        self._ended = threading.Event()
        self._flusher = threading.Thread(target=self._flush, name="flush", daemon=True)
        self._flusher.start()
        self.label("setup", "set-up")

    @classmethod
    def from_env(cls, folder: Path, env: Mapping[str, str]) -> "LogWriter":
        """Make a log writer; ``SCHEDULEARN_LOG_LIMIT_MIB`` sets the limit of one stream."""
        text = env.get("SCHEDULEARN_LOG_LIMIT_MIB", "")
        return cls(folder, (int(text) if text.isdecimal() and int(text) else LOG_LIMIT_MIB) * 1024 * 1024)

    def stream(self, name: str) -> LogStream:
        with self._lock:
            if name not in self._streams:
                self._streams[name] = LogStream(self._logs, name, self._limit, self._masking)
            return self._streams[name]

    def mask(self, masking: Masking) -> None:
        """Mask the secrets of the job in all streams from now on."""
        with self._lock:
            self._masking = masking
            for stream in self._streams.values():
                stream.masking = masking

    def label(self, name: str, label: str) -> None:
        self.stream(name)
        with self._lock:
            if self._labels.get(name) == label:
                return
            self._labels[name] = label
            content = {key: {"label": text} for key, text in self._labels.items()}
            try:
                write_atomic(self._logs / "streams.json", json.dumps(content).encode())
            except OSError:
                pass  # a full disk must not end the training

    def report(self, sentence: str) -> None:
        """Write a sentence for the user to the stream ``setup``."""
        self.stream("setup").write(sentence.encode() + b"\n", timed=True)

    def report_exit(self, sentence: str, name: str) -> None:
        """Report that the program which writes to a stream has ended, with a later time than all of its output has.

        Its output may still be in a pipe. It is awaited for a moment only, since children of the program may keep it open.
        """
        if pump := self._pumps.get(name):
            pump.join(EXIT_OUTPUT_SECONDS)
        time.sleep(0.001)
        self.report(sentence)

    def pump(self, handle: int, name: str, label: str = "") -> threading.Thread:
        """Copy a pipe into a stream until its last writer has closed it. Owns and closes the handle.

        With a ``label`` the stream is made only when there is output for it.
        """
        if not label:
            self.stream(name)

        def copy() -> None:
            masked = MaskedStream(self._masking)
            with open(handle, "rb", buffering=0) as pipe:
                while data := pipe.read(CHUNK_BYTES):
                    if label:
                        self.label(name, label)
                    self.stream(name).write_masked(masked.feed(data))
            if rest := masked.end():
                self.stream(name).write_masked(rest)

        thread = threading.Thread(target=copy, name=f"pump {name}", daemon=True)
        self._pumps[name] = thread
        thread.start()
        return thread

    def listen(self, path: Path, name: str, label: str = "") -> tuple[threading.Thread, int]:
        """Make a named pipe and copy what is written to it into a stream. Returns the pump, which ends when all writers have
        closed the pipe, and a handle that keeps the pipe open until it is closed, too."""
        os.mkfifo(path, 0o600)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        held = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        os.set_blocking(reader, True)
        return self.pump(reader, name, label), held

    def close(self) -> None:
        self._ended.set()
        self._flusher.join()
        try:
            (self.folder / RESERVE).unlink(missing_ok=True)
        except OSError:
            pass
        for stream in list(self._streams.values()):
            stream.close()

    def _flush(self) -> None:
        while not self._ended.wait(SYNC_EVERY_SECONDS):
            with self._lock:
                streams = list(self._streams.values())
            for stream in streams:
                stream.sync()
