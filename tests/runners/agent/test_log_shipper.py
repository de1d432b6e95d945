"""The log arrives byte for byte, whatever the portal, the agent or a hostile container do on the way."""

import os
import random
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.agent.log_shipper import (
    MAX_BATCH_BYTES,
    MAX_PAUSE_SECONDS,
    MAX_STREAM_BYTES,
    POLL_SECONDS,
    ContainerLog,
    LogShipper,
    read_marks,
)
from runners.agent.portal_client import LogAnswer, PortalClient, PortalRefusedError, PortalUnavailableError
from runners.host.node_files import open_folder
from tests.examples import examples
from tests.fake_portal import FakePortal


class MemoryPortal:
    """The portal's log store in memory; ``fault`` is asked before each post: "", away, lose (done, answer lost)."""

    def __init__(self) -> None:
        self.streams: dict[str, bytearray] = {}
        self.labels: dict[str, str] = {}
        self.closed: set[str] = set()
        self.marks: list[tuple[int, int]] = []
        self.faults: list[str] = []
        self.posts = 0
        self.refuse = False
        self.watched = False

    def append_log(
        self,
        container: str,
        stream: str,
        offset: int,
        content: bytes,
        *,
        marks: tuple[tuple[int, int], ...] = (),
        label: str = "",
        final: bool = False,
    ) -> LogAnswer:
        assert len(content) <= MAX_BATCH_BYTES and len(marks) <= 200
        assert all(offset <= at < offset + len(content) for at, _ in marks)
        fault = self.faults.pop() if self.faults else ""
        if fault == "away":
            raise PortalUnavailableError("away")
        if self.refuse:
            raise PortalRefusedError(404, "There is no such container.")
        kept = self.streams.setdefault(stream, bytearray())
        if offset == len(kept):
            self.posts += 1
            kept += content
            self.marks += marks
            self.labels[stream] = label
            if final:
                self.closed.add(stream)
            answer = LogAnswer(len(kept), True, self.watched)
        else:
            answer = LogAnswer(len(kept), False)
        if fault == "lose":
            raise PortalUnavailableError("answer lost")
        return answer


def make_log(tmp: Path, **streams: bytes) -> Path:
    (tmp / "log").mkdir(parents=True, exist_ok=True)
    for name, content in streams.items():
        (tmp / "log" / f"{name.removeprefix('s')}.log" if name != "setup" else tmp / "log" / "setup.log").write_bytes(
            content
        )
    return tmp


def send_all(log: ContainerLog, portal: MemoryPortal, most: int = 1000) -> None:
    for _ in range(most):
        try:
            if log.send_batch(portal) is None and (log.is_drained or not log.ended):
                return
        except PortalUnavailableError:
            continue
    raise AssertionError("it does not come to an end")


moves = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(["setup", "metrics", "0", "1"]), st.binary(max_size=300)),
        st.tuples(st.just("send"), st.sampled_from(["", "away", "lose"])),
        st.tuples(st.just("restart")),
    ),
    max_size=40,
)


@given(moves)
@settings(max_examples=examples(200), deadline=None)
def test_what_was_written_arrives_exactly_whatever_fails_on_the_way(
    tmp_path_factory: pytest.TempPathFactory, moves: list
) -> None:
    scribe = make_log(tmp_path_factory.mktemp("scribe"))
    written: dict[str, bytes] = {}
    portal = MemoryPortal()
    log = ContainerLog("c", scribe, 2)
    for move in moves:
        if move[0] == "write":
            with open(scribe / "log" / f"{move[1]}.log", "ab") as file:
                file.write(move[2])
            written[move[1]] = written.get(move[1], b"") + move[2]
        elif move[0] == "send":
            portal.faults = [move[1]]
            try:
                log.send_batch(portal)
            except PortalUnavailableError:
                pass
        else:
            log = ContainerLog("c", scribe, 2, known_to_portal=True)
        for stream, content in portal.streams.items():
            assert written.get(stream, b"").startswith(content)
    portal.faults = ["lose", "", "away", "lose"]
    log.ended = True
    send_all(log, portal)
    assert {name: bytes(content) for name, content in portal.streams.items()} == written
    assert portal.closed == set(written)


def test_it_continues_at_the_portals_offset_after_a_restart(tmp_path: Path) -> None:
    scribe = make_log(tmp_path, s0=b"0123456789")
    portal = MemoryPortal()
    portal.streams["0"] = bytearray(b"0123")
    log = ContainerLog("c", scribe, 1, known_to_portal=True)
    assert log.send_batch(portal) == 6
    assert portal.streams["0"] == b"0123456789"
    assert portal.posts == 1


def test_a_portal_that_lost_its_tail_gets_it_again(tmp_path: Path) -> None:
    scribe = make_log(tmp_path, s0=b"0123456789")
    portal = MemoryPortal()
    log = ContainerLog("c", scribe, 1)
    log.send_batch(portal)
    del portal.streams["0"][5:]
    with open(scribe / "log/0.log", "ab") as file:
        file.write(b"X")
    send_all(log, portal)
    assert portal.streams["0"] == b"0123456789X"


def test_a_portal_that_has_more_than_the_file_is_left_alone_and_closed(tmp_path: Path) -> None:
    scribe = make_log(tmp_path, s0=b"01")
    portal = MemoryPortal()
    portal.streams["0"] = bytearray(b"0123")
    log = ContainerLog("c", scribe, 1, known_to_portal=True)
    assert log.send_batch(portal) is None
    log.ended = True
    send_all(log, portal)
    assert portal.streams["0"] == b"0123" and portal.closed == {"0"}


def test_batches_are_never_larger_than_the_portal_takes(tmp_path: Path) -> None:
    content = random.Random(1).randbytes(MAX_BATCH_BYTES * 2 + 17)
    log = ContainerLog("c", make_log(tmp_path, s0=content), 1)
    portal = MemoryPortal()
    log.ended = True
    send_all(log, portal)
    assert portal.streams["0"] == content and portal.posts == 3


def test_a_contradicting_portal_is_not_asked_in_a_hot_loop(tmp_path: Path) -> None:
    class Contradicting(MemoryPortal):
        def append_log(self, *_: object, **__: object) -> LogAnswer:
            return LogAnswer(3, False)

    log = ContainerLog("c", make_log(tmp_path, s0=b"0123456789"), 1)
    log.send_batch(Contradicting())
    log.send_batch(Contradicting())
    with pytest.raises(PortalUnavailableError, match="contradicts"):
        log.send_batch(Contradicting())


@pytest.mark.parametrize("adopted", [False, True])
def test_a_stream_that_the_portal_refuses_ends_without_holding_up_the_container(tmp_path: Path, adopted: bool) -> None:
    log = ContainerLog("c", make_log(tmp_path, s0=b"a"), 1, known_to_portal=adopted)
    portal = MemoryPortal()
    portal.refuse = True
    log.ended = True
    send_all(log, portal)
    assert log.is_drained and log.refusal and "no such container" in log.refusal.text


def test_a_token_that_is_refused_holds_a_log_up_but_ends_no_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ContainerLog("c", make_log(tmp_path, s0=b"a"), 1)
    portal = MemoryPortal()

    def refused(*_: object, **__: object) -> LogAnswer:
        raise PortalRefusedError(401, "This node's token is unknown.")

    with monkeypatch.context() as patch:
        patch.setattr(portal, "append_log", refused)
        with pytest.raises(PortalUnavailableError):
            log.send_batch(portal)
    log.ended = True
    send_all(log, portal)
    assert portal.streams == {"0": b"a"} and log.is_drained and not log.refusal


def test_streams_of_a_container_take_turns(tmp_path: Path) -> None:
    log = ContainerLog("c", make_log(tmp_path, s0=bytes(3 * MAX_BATCH_BYTES), s1=b"a line\n"), 2)
    portal = MemoryPortal()
    for _ in range(2):
        log.send_batch(portal)
    assert {name: len(content) for name, content in portal.streams.items()} == {
        "0": MAX_BATCH_BYTES,
        "1": len("a line\n"),
    }


def test_a_log_is_drained_when_each_of_its_streams_is(tmp_path: Path) -> None:
    log = ContainerLog("c", make_log(tmp_path, s0=b"a", s1=bytes(2 * MAX_BATCH_BYTES)), 2)
    portal = MemoryPortal()
    log.ended = True
    seen = []
    while log.send_batch(portal) is not None:
        seen.append((log.is_drained, portal.closed == {"0", "1"}))
    assert seen == [(False, False), (False, False), (True, True)]


def test_the_log_of_a_forgotten_container_is_waited_for_no_longer(tmp_path: Path) -> None:
    shipper = LogShipper(MemoryPortal())
    shipper.follow("c", make_log(tmp_path, s0=b"a"), 1)
    awaited = shipper._queued_logs["c"].drained  # what finish() waits for
    shipper.forget("c")
    assert awaited.is_set() and shipper.finish("c", 60)


def test_labels_are_short_and_printable(tmp_path: Path) -> None:
    scribe = make_log(tmp_path, s0=b"a")
    (scribe / "log/streams.json").write_text('{"0": {"label": "rank\\u0000\\u001b 7' + "x" * 99 + '"}}')
    portal = MemoryPortal()
    ContainerLog("c", scribe, 1).send_batch(portal)
    assert portal.labels["0"] == ("rank 7" + "x" * 99)[:40]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2**40)), max_size=400),
    st.integers(0, 4000),
    st.integers(0, 4000),
)
@settings(max_examples=examples(200), deadline=None)
def test_marks_are_those_of_the_bytes_sent(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], start: int, length: int
) -> None:
    folder = tmp_path_factory.mktemp("idx")
    offset, records = 0, []
    for step, milliseconds in steps:
        offset += step + 1
        records.append((offset, milliseconds))
    (folder / "0.idx").write_bytes(b"".join(struct.pack("<QQ", *record) for record in records))
    expected = [record for record in records if start <= record[0] < start + length]
    with open_folder(folder) as handle:
        marks = read_marks(handle, "0.idx", start, start + length)
    assert set(marks) <= set(expected) and len(marks) <= 200
    assert list(marks) == expected or len(expected) > 200 and len(marks) >= 100
    assert not expected or marks[0] == expected[0]


def test_marks_out_of_order_are_left_out(tmp_path: Path) -> None:
    records = [(10, 1), (30, 2), (20, 3), (30, 4), (40, 5)]
    (tmp_path / "0.idx").write_bytes(b"".join(struct.pack("<QQ", *record) for record in records))
    with open_folder(tmp_path) as handle:
        assert read_marks(handle, "0.idx", 0, 100) == ((10, 1), (30, 2), (40, 5))


@given(st.binary(max_size=2000))
def test_an_index_of_garbage_does_no_harm(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    folder = tmp_path_factory.mktemp("idx")
    (folder / "0.idx").write_bytes(garbage)
    with open_folder(folder) as handle:
        marks = read_marks(handle, "0.idx", 10, 1000)
    assert all(10 <= at < 1000 for at, _ in marks)
    assert [at for at, _ in marks] == sorted({at for at, _ in marks})


class TestHostileFolders:
    """What users' code may leave where the supervisor writes."""

    @pytest.fixture
    def secret(self, tmp_path: Path) -> Path:
        secret = tmp_path / "secret"
        secret.write_bytes(b"the node's token")
        return secret

    def sent(self, scribe: Path) -> dict[str, bytes]:
        portal = MemoryPortal()
        log = ContainerLog("c", scribe, 4)
        log.ended = True
        sending = threading.Thread(target=send_all, args=(log, portal), daemon=True)
        sending.start()
        sending.join(60)
        assert not sending.is_alive(), "it is held up"
        assert log.is_drained
        return {name: bytes(content) for name, content in portal.streams.items()}

    def test_links_leak_nothing(self, tmp_path: Path, secret: Path) -> None:
        scribe = make_log(tmp_path / "scribe", setup=b"honest")
        (scribe / "log/0.log").symlink_to(secret)
        (scribe / "log/0.idx").symlink_to(secret)
        (scribe / "log/streams.json").symlink_to(secret)
        assert self.sent(scribe) == {"setup": b"honest"}

    def test_a_link_in_place_of_the_log_folder_leaks_nothing(self, tmp_path: Path, secret: Path) -> None:
        make_log(tmp_path / "other", s0=b"the node's token")
        (tmp_path / "scribe").mkdir()
        (tmp_path / "scribe/log").symlink_to(tmp_path / "other/log")
        assert self.sent(tmp_path / "scribe") == {}

    def test_pipes_sockets_and_folders_hold_up_nothing(self, tmp_path: Path) -> None:
        scribe = make_log(tmp_path, setup=b"honest")
        os.mkfifo(scribe / "log/0.log")
        os.mkfifo(scribe / "log/setup.idx")
        os.mkfifo(scribe / "log/streams.json")
        (scribe / "log/1.log").mkdir()
        (scribe / "log/../2.log").write_bytes(b"elsewhere")
        assert self.sent(scribe) == {"setup": b"honest"}

    def test_a_file_that_becomes_a_pipe_between_looking_and_opening_holds_up_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scribe = make_log(tmp_path, setup=b"honest")
        os.mkfifo(scribe / "log/0.log")
        monkeypatch.setattr("runners.agent.log_shipper._stream_sizes", lambda folder, ranks: {"0": 100, "setup": 6})
        assert self.sent(scribe) == {"setup": b"honest"}

    def test_streams_of_no_rank_are_not_sent(self, tmp_path: Path) -> None:
        scribe = make_log(tmp_path, setup=b"honest", s4=b"rank 4 of 4", s03=b"03")
        for name in ("x.log", "-1.log", "0.log\n", "99999.log", "0.LOG"):
            (scribe / "log" / name).write_bytes(b"mischief")
        assert self.sent(scribe) == {"setup": b"honest"}

    def test_a_huge_hole_is_cut(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert MAX_STREAM_BYTES < 1 << 31
        monkeypatch.setattr("runners.agent.log_shipper.MAX_STREAM_BYTES", 3 << 20)
        scribe = make_log(tmp_path, s0=b"a")
        os.truncate(scribe / "log/0.log", 1 << 40)
        with open(scribe / "log/0.idx", "wb") as file:
            file.truncate(1 << 40)
        assert len(self.sent(scribe)["0"]) == 3 << 20


class Steady:
    """A container that writes a line every 20 ms, and a shipper whose turns are taken on the same clock."""

    def __init__(self, scribe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.due = 1000.0
        monkeypatch.setattr("runners.agent.log_shipper.time", SimpleNamespace(monotonic=lambda: self.now))
        self.portal = MemoryPortal()
        self.shipper = LogShipper(self.portal)
        self.shipper.follow("c", make_log(scribe), 1)
        self.log = scribe / "log/0.log"
        self.written = 0

    def write(self) -> None:
        with open(self.log, "ab") as file:
            self.written += file.write(b"a line\n")

    def pass_time(self, seconds: float) -> None:
        """Has the shipper take its turns meanwhile, each when it is due."""
        end = self.now + seconds
        while self.due <= end:
            self.now = max(self.now, self.due)
            rest = self.shipper._send_batch(self.shipper._queued_logs["c"])
            assert rest is not None
            self.due = self.now + rest
        self.now = end

    def batches(self, seconds: float) -> int:
        before = self.portal.posts
        for _ in range(round(seconds / 0.02)):
            self.write()
            self.pass_time(0.02)
        return self.portal.posts - before

    def delay(self) -> float:
        """From a line's writing to its arrival."""
        self.write()
        began = self.now
        while len(self.portal.streams.get("0", b"")) < self.written:
            self.pass_time(max(self.due - self.now, 0.0))
        return self.now - began


class TestRests:
    @pytest.fixture
    def steady(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Steady:
        return Steady(tmp_path, monkeypatch)

    def test_a_log_without_viewers_comes_in_fewer_batches(self, steady: Steady) -> None:
        steady.batches(5)  # until the rests are at their longest
        assert steady.batches(10) == 10 / MAX_PAUSE_SECONDS
        steady.portal.watched = True
        steady.batches(5)  # until the portal's word has come
        assert steady.batches(10) == pytest.approx(10 / POLL_SECONDS, abs=1)
        assert len(steady.portal.streams["0"]) > 0.99 * steady.written

    @pytest.mark.parametrize(("watched", "silence"), [(True, 0.03), (False, 0.5)])
    def test_a_line_is_sent_at_the_next_look_if_it_has_viewers_or_after_a_silence(
        self, steady: Steady, watched: bool, silence: float
    ) -> None:
        steady.portal.watched = watched
        steady.delay()
        delays = []
        for _ in range(20):
            steady.pass_time(silence)
            delays.append(steady.delay())
        assert max(delays) <= POLL_SECONDS + 1e-6

    def test_a_slow_portal_is_sent_to_less_often(self, steady: Steady, monkeypatch: pytest.MonkeyPatch) -> None:
        steady.portal.watched = True
        take = steady.portal.append_log

        def slowly(*args: Any, **more: Any) -> LogAnswer:
            steady.now += 0.2
            return take(*args, **more)

        monkeypatch.setattr(steady.portal, "append_log", slowly)
        assert 9 <= steady.batches(10) <= 11, "0.2 s of sending earn 0.8 s of rest"


class TestOverTheNetwork:
    @pytest.fixture
    def portal(self) -> Iterator[FakePortal]:
        with FakePortal() as portal:
            yield portal

    @pytest.fixture
    def shipper(self, portal: FakePortal) -> Iterator[LogShipper]:
        client = PortalClient(portal.url, "sln_fake")
        shipper = LogShipper(client)
        shipper.start()
        yield shipper
        shipper.stop()
        client.close()

    def test_nothing_is_lost_while_the_portal_is_away(
        self, portal: FakePortal, shipper: LogShipper, tmp_path: Path
    ) -> None:
        shipper.follow("c", make_log(tmp_path), 1)
        written = bytearray()
        with open(tmp_path / "log/0.log", "ab", buffering=0) as file:

            def write(lines: int) -> None:
                for number in range(lines):
                    line = b"%06d " % number + b"x" * 40 + b"\n"
                    written.extend(line)
                    file.write(line)

            write(5000)
            portal.until(lambda: portal.log("c"), 30)
            portal.down = True
            write(5000)
            portal.until(lambda: shipper._queued_logs["c"].backoff.failures, 30)
            before = len(portal.log("c"))
            write(5000)
            assert len(portal.log("c")) == before < len(written)
            portal.fail_next, portal.lose_next = 2, 2
            portal.down = False
            shipper.retry_now()
            write(5000)
        assert shipper.finish("c", 60)
        assert portal.log("c") == bytes(written)
        assert portal.logs["c", "0"].closed

    def test_fifty_floods_do_not_starve_one_line(self, portal: FakePortal, shipper: LogShipper, tmp_path: Path) -> None:
        flood = b"y" * (8 << 20)
        scribes = [make_log(tmp_path / f"flood-{index}", s0=flood) for index in range(50)]
        for index, scribe in enumerate(scribes):
            shipper.follow(f"flood-{index}", scribe, 1)
        shipper.follow("quiet", make_log(tmp_path / "quiet"), 1)
        portal.until(lambda: len(portal.posts) > 50, 10)
        (tmp_path / "quiet/log/0.log").write_bytes(b"a line\n")
        portal.until(lambda: portal.log("quiet") == b"a line\n", 10)
        before_it = sum(size for _, name, _, size in portal.posts[: [post[1] for post in portal.posts].index("quiet")])
        assert before_it < 50 * len(flood), "the floods were all served first"
        turns = [name for _, name, _, size in portal.posts if name != "quiet"]
        counts = [turns.count(f"flood-{index}") for index in range(50)]
        assert max(counts) - min(counts) <= 2, counts
        for index in range(50):
            shipper.forget(f"flood-{index}")

    def test_one_container_that_always_fails_holds_up_no_other(
        self, portal: FakePortal, shipper: LogShipper, tmp_path: Path
    ) -> None:
        portal.faults = lambda path: "500" if "bad" in path else ""
        shipper.follow("bad", make_log(tmp_path / "bad", s0=b"b"), 1)
        shipper.follow("good", make_log(tmp_path / "good", s0=b"g"), 1)
        assert shipper.finish("good", 5)
        assert not shipper.finish("bad", 0.3)
        portal.faults = lambda path: ""
        assert shipper.finish("bad", 10)
        assert portal.log("bad") == b"b"

    def test_a_container_without_a_log_is_drained_at_once(
        self, portal: FakePortal, shipper: LogShipper, tmp_path: Path
    ) -> None:
        shipper.follow("c", tmp_path / "none", 1)
        assert shipper.finish("c", 2)
