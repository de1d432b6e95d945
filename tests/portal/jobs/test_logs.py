"""The log store: what the source wrote is what is stored, whatever happens on the way."""

from contextlib import AbstractContextManager, nullcontext
from unittest import mock

import pytest
from django.conf import LazySettings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from portal.cluster.models import Gpu
from portal.jobs import logs
from portal.jobs.models import Container, LogStream
from tests.examples import HUNT, examples
from tests.portal.jobs_world import make_job, make_node, make_project, make_user, place

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture
def container() -> Container:
    job = make_job(make_project(make_user("alice")))
    return place(job, list(Gpu.objects.filter(node=make_node(gpus=1)))).containers.get()


@pytest.fixture
def stream(container: Container) -> LogStream:
    return logs.open_stream(container, "0", "rank 0")


def whole(stream: LogStream) -> bytes:
    stream.refresh_from_db()
    return logs.read(stream, 0, stream.size)


def test_bytes_continue_where_they_should(stream: LogStream) -> None:
    assert logs.append(stream, 0, b"one\n", [(0, 1000)]) == 4
    assert logs.append(stream, 4, b"two\n", [(4, 2000)]) == 8
    assert whole(stream) == b"one\ntwo\n"
    assert logs.read_marks(stream) == [(0, 1000), (4, 2000)]


def test_a_gap_is_refused_with_the_offset_to_continue_from(stream: LogStream) -> None:
    logs.append(stream, 0, b"one\n")
    with pytest.raises(logs.OffsetMismatchError) as refused:
        logs.append(stream, 5, b"two\n")
    assert refused.value.size == 4
    assert whole(stream) == b"one\n"


def test_what_is_stored_already_is_passed_over(stream: LogStream) -> None:
    logs.append(stream, 0, b"one\n", [(0, 1000)])
    assert logs.append(stream, 0, b"one\n", [(0, 1000)]) == 4
    assert logs.append(stream, 0, b"one\ntwo\n", [(0, 1000), (4, 2000)]) == 8
    assert logs.append(stream, 2, b"e\n") == 8
    assert whole(stream) == b"one\ntwo\n" and logs.read_marks(stream) == [(0, 1000), (4, 2000)]


def test_an_empty_piece_asks_how_far_it_is(stream: LogStream) -> None:
    logs.append(stream, 0, b"one\n")
    assert logs.append(stream, 0, b"") == 4
    assert logs.append(stream, 4, b"", final=True) == 4
    stream.refresh_from_db()
    assert stream.closed


def test_a_reader_never_sees_beyond_the_row(stream: LogStream) -> None:
    logs.append(stream, 0, b"one\n")
    stream.refresh_from_db()
    with logs.path_of(stream).open("ab") as file:
        file.write(b"left behind by a crash")
    assert logs.read(stream, 0, 1000) == b"one\n"
    assert logs.read(stream, 4, 10) == logs.read(stream, 99, 10) == logs.read(stream, -1, 10) == b""
    logs.append(stream, 4, b"two\n")
    assert whole(stream) == b"one\ntwo\n" == logs.path_of(stream).read_bytes()


def test_a_full_log_ends_with_a_marker_and_the_node_goes_on(container: Container, settings: LazySettings) -> None:
    settings.MAX_LOG_MIB = 1
    mib = 1024 * 1024
    first, second = logs.open_stream(container, "0"), logs.open_stream(container, "1")
    assert logs.append(first, 0, b"a" * (mib - 10)) == mib - 10
    assert logs.append(second, 0, b"b" * 30) == 30
    assert logs.append(second, 30, b"b" * 30) == 60
    assert logs.append(second, 4000, b"b") == 4001
    assert whole(second) == b"b" * 10 + logs.CUT_MARKER % 1
    assert second.cut and second.closed
    assert logs.append(first, mib - 10, b"more") == mib - 6
    assert whole(first).endswith(logs.CUT_MARKER % 1)


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "A", "x" * 21, "0\n", ".idx"])
def test_a_stream_cannot_be_called_anything(container: Container, name: str) -> None:
    with pytest.raises(ValueError, match="stream's name"):
        logs.open_stream(container, name)


def test_a_link_in_the_store_is_not_followed(stream: LogStream, tmp_path_factory: pytest.TempPathFactory) -> None:
    target = tmp_path_factory.mktemp("elsewhere") / "secret"
    target.write_bytes(b"secret")
    logs.path_of(stream).parent.mkdir(parents=True)
    logs.path_of(stream).symlink_to(target)
    with pytest.raises(OSError):  # noqa: PT011
        logs.append(stream, 0, b"x")
    assert target.read_bytes() == b"secret"


def chunks_of(source: bytes, cuts: list[int]) -> list[tuple[int, bytes]]:
    edges = sorted({0, len(source), *(cut % (len(source) + 1) for cut in cuts)})
    return [(start, source[start:end]) for start, end in zip(edges, edges[1:], strict=False)]


class CrashError(Exception):
    pass


@settings(max_examples=examples(60), deadline=None, derandomize=not HUNT, suppress_health_check=list(HealthCheck))
@given(
    source=st.binary(min_size=1, max_size=400),
    cuts=st.lists(st.integers(0, 400), max_size=8),
    order=st.lists(st.tuples(st.integers(0, 8), st.sampled_from(["whole", "torn file", "torn row"])), max_size=30),
)
def test_repeated_reordered_and_torn_pieces_make_the_source(
    source: bytes, cuts: list[int], order: list[tuple[int, str]]
) -> None:
    stream = fresh_stream()
    pieces = chunks_of(source, cuts)

    def send(number: int, how: str) -> None:
        offset, data = pieces[number % len(pieces)]
        try:
            with crashing(how):
                logs.append(stream, offset, data, [(offset, 1000 + offset)])
        except (logs.OffsetMismatchError, CrashError):
            pass
        stream.refresh_from_db()
        assert source.startswith(logs.read(stream, 0, stream.size))

    for number, how in order:
        send(number, how)
    for number in range(len(pieces)):
        send(number, "whole")
    assert whole(stream) == source
    assert [offset for offset, _ in logs.read_marks(stream)] == [offset for offset, _ in pieces]


def fresh_stream() -> LogStream:
    container = Container.objects.first()
    if container is None:
        job = make_job(make_project(make_user("alice")))
        container = place(job, list(Gpu.objects.filter(node=make_node(gpus=1)))).containers.get()
    name = f"{container.streams.count()}"
    return LogStream.objects.create(container=container, name=name)


def crashing(how: str) -> AbstractContextManager[object]:
    """The process dies in the middle of the file, or after the file and before the row."""
    if how == "torn file":

        def half(handle: int, data: bytes, offset: int) -> None:
            real_write(handle, data[: len(data) // 2], offset)
            raise CrashError

        return mock.patch.object(logs, "_write_all", half)
    if how == "torn row":
        return mock.patch.object(LogStream, "save", mock.Mock(side_effect=CrashError))
    return nullcontext()


real_write = logs._write_all


# --- as text -----------------------------------------------------------------------------------------------------


def test_streams_are_merged_by_time_with_their_labels(container: Container) -> None:
    one, two = logs.open_stream(container, "0", "rank 0"), logs.open_stream(container, "1", "rank 1")
    logs.append(one, 0, b"a1\na2\n", [(0, 1000), (3, 3000)])
    logs.append(two, 0, b"b1\nb2", [(0, 2000), (3, 4000)])
    streams = [LogStream.objects.get(pk=one.pk), LogStream.objects.get(pk=two.pk)]
    assert b"".join(logs.merged_text(streams)) == b"[rank 0] a1\n[rank 1] b1\n[rank 0] a2\n[rank 1] b2\n"
    assert b"".join(logs.merged_text(streams[:1], times=True)).startswith(b"1970-01-01T00:00:01.000+00:00 a1\n")


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        (b"\x1b[31mred\x1b[0m\n", b"red\n"),
        (b"10%\r20%\r30%\n", b"30%\n"),
        (b"windows\r\n", b"windows\n"),
        (b"\x1b]0;title\x07text\n", b"text\n"),
        (b"bell\x07 and \x00nul\n", b"bell and nul\n"),
        ("größer ✓\n".encode(), "größer ✓\n".encode()),
        (b"tab\there", b"tab\there"),
    ],
)
def test_plain_text_has_no_control_sequences(raw: bytes, plain: bytes) -> None:
    assert logs.strip_controls(raw) == plain


def test_a_line_without_end_is_read_in_bounded_pieces(stream: LogStream) -> None:
    logs.append(stream, 0, b"x" * 300_000)
    stream.refresh_from_db()
    pieces = list(logs.lines(stream))
    assert b"".join(line.data for line in pieces) == b"x" * 300_000
    assert max(len(line.data) for line in pieces) <= 2 * logs.READ_BYTES


def test_the_tail_is_the_last_lines_of_each_stream(container: Container) -> None:
    one, two = logs.open_stream(container, "0"), logs.open_stream(container, "setup")
    logs.append(one, 0, b"".join(b"line %d\n" % number for number in range(10_000)))
    logs.append(two, 0, b"\x1b[1mready\x1b[0m\n")
    assert logs.tail(container.attempt, 2) == "ready\nline 9998\nline 9999"


@pytest.fixture(autouse=True)
def small_store(settings: LazySettings, tmp_path_factory: pytest.TempPathFactory) -> None:
    settings.HOME = tmp_path_factory.mktemp("home")
