"""Curves and progress: from lines of users' code to rows, pages, CSV and endpoints."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from portal.jobs import curves, logs, metrics
from portal.jobs.models import Container, Job, LogStream, MetricPoint, Progress
from tests.examples import HUNT, examples
from tests.portal import jobs_world as world
from tests.portal.pages import one_line

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture
def job() -> Job:
    """A container that runs on two GPUs."""
    node = world.make_node(gpus=2)
    row = world.make_job(world.make_project(world.make_user("alice")))
    attempt = world.place(row, list(node.gpus.all()))
    world.run(attempt.containers.get())
    return row


@pytest.fixture
def container(job: Job) -> Container:
    return job.attempts.get().containers.get()


def line(kind: str, step: int, **facts: Any) -> bytes:
    return json.dumps({"kind": kind, "at": 1_790_000_000.5, "step": step, **facts}).encode() + b"\n"


def step(number: int, **facts: Any) -> bytes:
    usual = {"epoch": 2, "done": 0.25, "batch": 64, "ranks": 2, "seconds": 0.5, "loss": 1.5}
    return line("step", number, **{**usual, **facts})


def send(container: Container, *pieces: bytes) -> LogStream:
    stream = logs.open_stream(container, "metrics", "metrics")
    for piece in pieces:
        stream.refresh_from_db()
        logs.append(stream, stream.size, piece)
    stream.refresh_from_db()
    return stream


def values(name: str) -> list[tuple[int, float]]:
    return list(MetricPoint.objects.filter(name=name).values_list("step", "value"))


# --- from lines to rows


def test_steps_become_curves_and_the_last_one_the_progress(container: Container) -> None:
    send(container, step(10) + step(20, loss=1.0, done=0.5))
    assert values("train/loss") == [(10, 1.5), (20, 1.0)]
    assert values("train/samples per second") == [(10, 128.0), (20, 128.0)]
    progress = Progress.objects.get()
    assert (progress.step, progress.epoch, progress.done, progress.batch, progress.ranks) == (20, 2, 0.5, 64, 2)
    assert curves.remaining_seconds(progress) == pytest.approx(10.0)


def test_after_a_change_of_the_batch_what_is_left_is_counted_in_samples(container: Container) -> None:
    """Counted in steps, it would be thirty times half a second."""
    send(container, step(10, total=6400, batch=640))
    assert curves.remaining_seconds(Progress.objects.get()) == pytest.approx(0.75 * 6400 / 640 * 0.5)


@pytest.mark.parametrize("facts", [{"done": 1e-308}, {"total": (1 << 53) - 1, "batch": 1, "seconds": 1e6}])
def test_the_remaining_time_is_limited(job: Job, container: Container, alice: Client, facts: dict[str, Any]) -> None:
    send(container, step(1 << 40, **facts))
    assert alice.get(f"/api/v1/jobs/{job.pk}/progress/").json()["remaining_seconds"] == 10 * 365 * 86_400
    assert "about 3650 d left" in one_line(alice.get(reverse("jobs:detail", args=[job.pk])).content.decode())


def test_whatever_the_job_logs_is_a_curve_of_its_own(container: Container) -> None:
    send(container, line("metric", 5, name="accuracy", value=0.75))
    assert values("accuracy") == [(5, 0.75)]


def test_columns_of_ranks_are_put_together_from_their_lines(container: Container) -> None:
    send(container, step(1, ranks=3), line("ranks", 1, first=0, computing=[0.1, 0.4], waiting=[0.3, 0.0]))
    send(container, line("ranks", 1, first=2, computing=[0.2], waiting=[0.2]))
    progress = Progress.objects.get()
    assert progress.per_rank == {"computing": [0.1, 0.4, 0.2], "waiting": [0.3, 0.0, 0.2]}


def test_lines_that_come_in_pieces_count_once(container: Container) -> None:
    text = b"".join(step(number) for number in range(1, 6))
    for cut in range(0, len(text), 97):
        send(container, text[cut : cut + 97])
    assert [number for number, _ in values("train/loss")] == [1, 2, 3, 4, 5]


def test_a_piece_that_comes_twice_counts_once(container: Container) -> None:
    stream = send(container, step(1))
    logs.append(stream, 0, step(1)[: stream.size] + b"")
    assert len(values("train/loss")) == 1


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\n", b"not json\n", b"[]\n", b"{}\n", b'"kind"\n', b"\xff\xfe\n", b"{" * 4000 + b"\n",
        line("step", -1), line("step", 1 << 60), line("strange", 1), line("metric", 1, name="x", value="high"),
        line("metric", 1, name=["x"], value=1), line("metric", 1, name=" \x00\x07 ", value=1), line("metric", 1, name="x"),
        line("metric", 1, name="x", value=True), line("ranks", 1, first="0", computing="much"),
        b'{"kind":"step","at":1e300,"step":1}\n', b'{"kind":"step","at":"now","step":1}\n',
        line("metric", 1, name="x", value=1e31), b'{"kind":["step"],"at":1,"step":1}\n', b'{"kind":"metric","at":1,"step":1,"name":"x","value":NaN}\n',
    ],
)  # fmt: skip
def test_nonsense_is_passed_over(container: Container, nonsense: bytes) -> None:
    send(container, nonsense + step(7))
    assert values("train/loss") == [(7, 1.5)]
    assert not MetricPoint.objects.filter(name="x").exists()


any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
names = (
    "at",
    "step",
    "epoch",
    "done",
    "total",
    "batch",
    "ranks",
    "seconds",
    "loss",
    "first",
    "computing",
    "name",
    "value",
)


@settings(max_examples=examples(40), deadline=None, derandomize=not HUNT, suppress_health_check=list(HealthCheck))
@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(names, any_json)), max_size=4))
def test_no_line_is_stumbled_over(container: Container, lines: list[dict[str, Any]]) -> None:
    kinds = ("step", "ranks", "metric")
    text = b"".join(
        json.dumps({"at": 1e9, "step": 3, **facts, "kind": kinds[number % 3]}).encode() + b"\n"
        for number, facts in enumerate(lines)
    )
    send(container, text)
    for progress in Progress.objects.all():
        curves.ranks_of(progress), curves.remaining_seconds(progress)


def test_there_is_a_limit_to_points(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_POINTS", 5)
    send(container, *(step(number) for number in range(9)))
    assert MetricPoint.objects.count() == 5
    assert Progress.objects.get().step == 8


# --- from rows to pictures


def test_a_step_that_is_done_again_counts_as_it_was_done_last(job: Job, container: Container) -> None:
    send(container, step(1, loss=5.0), step(2, loss=4.0), step(3, loss=3.0))
    world.exit(container, None, "lost")
    again = world.place(job, list(container.node.gpus.all()))
    send(again.containers.get(), step(3, loss=2.0), step(4, loss=1.0))
    (curve,) = curves.curves([job.pk], ["train/loss"])
    assert (curve.steps, curve.per_job[0].values) == ((1, 2, 3, 4), (5.0, 4.0, 2.0, 1.0))


def test_many_points_are_drawn_as_two_hundred(job: Job, container: Container) -> None:
    send(container, b"".join(step(number, loss=float(number)) for number in range(1000)))
    (curve,) = curves.curves([job.pk], ["train/loss"])
    assert len(curve.steps) == curves.BINS
    assert curve.per_job[0].values[0] == 2.0  # the mean of 0 to 4


def test_smoothing_begins_at_the_first_value_and_leaves_gaps() -> None:
    assert curves.smooth([4.0, None, 4.0], 0.9) == [4.0, None, pytest.approx(4.0)]
    assert curves.smooth([0.0, 1.0], 0.5) == [0.0, pytest.approx(2 / 3)]
    assert curves.smooth([3.0, 5.0], 0.0) == [3.0, 5.0]


def test_the_slowest_rank_is_named(container: Container) -> None:
    send(container, step(1), line("ranks", 1, first=0, samples=[32, 32], computing=[0.1, 0.4], waiting=[0.3, 0.0]))
    ranks = curves.ranks_of(Progress.objects.get())
    assert [rank.number for rank in ranks] == [1, 0]
    chart = curves.rank_chart(ranks)
    assert chart is not None and chart.desc == "Rank 1 computes longest, 4 times as long as rank 0."
    assert chart.mark == ""  # of no rank anything was predicted
    assert curves.rank_chart(ranks[:1]) is None


def test_ranks_that_take_about_the_same_time_are_not_ranked(container: Container) -> None:
    send(container, step(1), line("ranks", 1, first=0, samples=[32, 32], computing=[0.401, 0.4], waiting=[0.0, 0.0]))
    chart = curves.rank_chart(curves.ranks_of(Progress.objects.get()))
    assert chart is not None and chart.desc == "All ranks compute for about the same time."


def test_what_was_predicted_of_a_rank_and_how_far_predictions_are_off_stands_at_its_times(container: Container) -> None:
    columns = {
        "samples": [40, 24],
        "computing": [0.2, 0.1],
        "waiting": [0, 0.1],
        "expected": [0.19, 0],
        "error": [0.04, 0],
    }
    send(container, step(1), line("ranks", 1, first=0, **columns))
    chart = curves.rank_chart(curves.ranks_of(Progress.objects.get()))
    assert chart is not None and chart.mark == "predicted"
    assert [row[0] for row in chart.rows] == ["rank 0: 40 samples, predicted 190 ms ± 4 %", "rank 1: 24 samples"]
    assert [row[-1] for row in chart.rows] == ["190", "–"]


# --- where people meet it


@pytest.fixture
def alice(job: Job) -> Client:
    client = Client()
    client.force_login(job.submitted_by)
    return client


def test_the_page_shows_how_far_it_is_its_curves_and_its_ranks(job: Job, container: Container, alice: Client) -> None:
    page = alice.get(reverse("jobs:detail", args=[job.pk])).content.decode()
    assert "Training" not in page
    send(container, step(10), step(20, done=0.5), line("metric", 20, name="accuracy <b>", value=0.5))
    send(container, line("ranks", 20, first=0, samples=[32, 32], computing=[0.1, 0.4], waiting=[0.3, 0.0]))
    page = alice.get(reverse("jobs:training", args=[job.pk])).content.decode()
    assert "A step, rank by rank" in page
    page = alice.get(reverse("jobs:detail", args=[job.pk])).content.decode()
    for words in ("50 % done", "train/loss", "accuracy &lt;b&gt;"):
        assert words in page


@pytest.mark.parametrize("zone", ["America/New_York", "Pacific/Kiritimati"])
def test_a_report_of_the_first_day_of_all_is_shown_in_every_zone(
    job: Job, container: Container, alice: Client, zone: str
) -> None:
    first = int(datetime(1, 1, 1, tzinfo=UTC).timestamp())
    send(container, b'{"kind":"step","at":%d,"step":1,"loss":1.5,"ranks":1,"seconds":1}\n' % first)
    alice.cookies["zone"] = zone
    for name in ("jobs:detail", "jobs:training"):
        assert alice.get(reverse(name, args=[job.pk])).status_code == 200, name


def test_curves_of_jobs_that_one_may_not_see_are_not_drawn(job: Job, container: Container, alice: Client) -> None:
    other = world.make_job(world.make_project(world.make_user("bob"), "other"), name="secret")
    attempt = world.place(other, list(world.make_node().gpus.all()))
    send(container, step(1))
    send(attempt.containers.get(), step(1))
    page = alice.get(reverse("jobs:compare"), {"job": [job.pk, other.pk]}).content.decode()
    assert f"#{job.pk} " in page
    assert "secret" not in page


def test_all_points_as_csv(job: Job, container: Container, alice: Client) -> None:
    send(container, line("metric", 5, name="=2+2", value=0.75))
    rows = alice.get(reverse("jobs:metrics", args=[job.pk])).content.decode("utf-8-sig").splitlines()
    assert rows[0] == "attempt,at,step,name,value"
    assert rows[1].startswith("1,20") and rows[1].endswith(",5,'=2+2,0.75")


def test_scripts_get_points_and_progress(job: Job, container: Container, alice: Client) -> None:
    assert alice.get(f"/api/v1/jobs/{job.pk}/progress/").status_code == 404
    send(container, step(10), line("metric", 10, name="accuracy", value=0.5))
    send(container, line("ranks", 10, first=0, samples=[32, 32], computing=[0.1, 0.4], waiting=[0.3, 0.0]))
    points = alice.get(f"/api/v1/jobs/{job.pk}/metrics/", {"name": "accuracy"}).json()["results"]
    assert [(point["attempt"], point["step"], point["value"]) for point in points] == [(1, 10, 0.5)]
    progress = alice.get(f"/api/v1/jobs/{job.pk}/progress/").json()
    assert (progress["step"], progress["done"], progress["remaining_seconds"]) == (10, 0.25, 15.0)
    assert [rank["number"] for rank in progress["ranks_detail"]] == [1, 0]


def test_the_lines_are_no_log_to_read(job: Job, container: Container, alice: Client) -> None:
    logs.append(logs.open_stream(container, "0"), 0, b"hello\n")
    send(container, step(1))
    assert [each["label"] for each in alice.get(f"/api/v1/jobs/{job.pk}/streams/").json()["results"]] == ["rank 0"]
    assert b"kind" not in b"".join(alice.get(reverse("jobs:log", args=[job.pk])).streaming_content)  # type: ignore[attr-defined]
