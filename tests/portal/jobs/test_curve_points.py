"""Points of curves for scripts: whole curves, envelopes of long ones, what came since, comparisons and sparklines."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from portal.accounts.models import User
from portal.jobs import comparison, curve_points, curve_views, lifecycle, sparklines
from portal.jobs.envelope import Stretch, envelope
from portal.jobs.models import Attempt, Job, MetricPoint, Progress
from portal.jobs.resize_timeline.models import RankGroup
from portal.jobs.sparklines import VALUES, sparklines_of
from portal.projects.models import Membership
from tests.portal import jobs_world as world

START = datetime(2026, 11, 20, 12, tzinfo=UTC)

# --- the envelope, which is pure


def single(step: int, value: float, attempt: int = 1, at: float | None = None) -> Stretch:
    moment = float(step) if at is None else at
    return Stretch(attempt, step, step, step, moment, moment, value, value)


def test_a_stretch_of_one_value_is_one_point_and_another_two() -> None:
    line = envelope([single(1, 5.0), Stretch(1, 2, 10, 19, 10.0, 19.0, 1.0, 9.0)])
    assert (line.steps, line.times, line.breaks) == ((1, 10, 19), (1.0, 10.0, 19.0), ())
    assert line.values == (5.0, 9.0, 1.0)


def test_of_two_values_the_one_nearer_to_the_point_before_comes_first() -> None:
    rising = envelope([single(0, 1.0), Stretch(1, 1, 10, 19, 10.0, 19.0, 2.0, 9.0)])
    assert rising.values == (1.0, 2.0, 9.0)


def test_steps_that_a_later_attempt_repeats_count_once_and_its_beginning_is_known() -> None:
    line = envelope(
        [single(3, 0.3, 2, at=90.0), *(single(step, 1.0) for step in (1, 2, 3, 4)), single(4, 0.4, 2, at=91.0)]
    )
    assert line.steps == (1, 2, 3, 4) and line.values == (1.0, 1.0, 0.3, 0.4)
    assert line.times == (1.0, 2.0, 90.0, 91.0) and line.breaks == (2,)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(1, 40))
def test_no_spike_is_lost_and_steps_ascend(values: list[float], width: int) -> None:
    pieces = [values[at : at + width] for at in range(0, len(values), width)]
    stretches = [
        Stretch(1, place, place * width, place * width + len(piece) - 1, place, place + 0.5, min(piece), max(piece))
        for place, piece in enumerate(pieces)
    ]
    line = envelope(stretches)
    assert min(line.values) == min(values) and max(line.values) == max(values)
    assert list(line.steps) == sorted(line.steps) and list(line.times) == sorted(line.times)
    assert len(line.steps) == len(line.times) == len(line.values) <= 2 * len(pieces)


def test_an_answer_with_many_curves_has_fewer_points_of_each() -> None:
    assert curve_points.points_per_curve(1) == curve_points.points_per_curve(60) == 2000
    assert curve_points.points_per_curve(144) == 833
    assert curve_points.points_per_curve(10_000) == 200


# --- from rows to points


@pytest.fixture
def user(db: None) -> User:
    return world.make_user("alice")


@pytest.fixture
def attempt(user: User) -> Attempt:
    return make_attempt(world.make_project(user))


def make_attempt(project: Any, **fields: Any) -> Attempt:
    return world.place(world.make_job(project, **fields), list(world.make_node().gpus.all()))


def store(attempt: Attempt, values: list[float], name: str = "train/loss", first: int = 0, every: int = 1) -> None:
    rows = [
        MetricPoint(
            attempt=attempt, name=name, step=first + place * every, at=START + timedelta(seconds=place), value=value
        )
        for place, value in enumerate(values)
    ]
    MetricPoint.objects.bulk_create(rows)
    progress, _ = Progress.objects.get_or_create(
        attempt=attempt, defaults={"at": START, "step": 0, "epoch": 0, "batch": 1, "ranks": 1}
    )
    Progress.objects.filter(pk=progress.pk).update(points=MetricPoint.objects.filter(attempt=attempt).count())


def data(client: Client, *jobs: Job, after: list[str] | None = None) -> dict[str, Any]:
    query: dict[str, list[Any]] = {"job": [job.pk for job in jobs], "after": after or []}
    return dict(client.get(reverse("jobs:curves"), query).json())


@pytest.fixture
def client_of_alice(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


pytest_database = pytest.mark.both_databases


@pytest_database
def test_a_short_curve_comes_whole(attempt: Attempt, client_of_alice: Client) -> None:
    store(attempt, [2.0, 1.5, 1.0], every=10)
    answer = data(client_of_alice, attempt.job)
    assert answer["complete"] is True and answer["live"] is True
    (curve,) = answer["curves"]
    assert curve["lines"]["train/loss"] == {
        "steps": [0, 10, 20],
        "times": [START.timestamp() + place for place in range(3)],
        "values": [2.0, 1.5, 1.0],
        "breaks": [],
    }


@pytest_database
def test_a_long_curve_keeps_its_spike_in_two_thousand_points(attempt: Attempt, client_of_alice: Client) -> None:
    values = [1.0 + 0.001 * (step % 7) for step in range(9_000)]
    values[4_321] = 99.0
    store(attempt, values)
    line = data(client_of_alice, attempt.job)["curves"][0]["lines"]["train/loss"]
    assert 1_000 < len(line["values"]) <= 2_000
    assert max(line["values"]) == 99.0 and min(line["values"]) == 1.0
    near = line["steps"][line["values"].index(99.0)]
    assert abs(near - 4_321) < 10


@pytest_database
def test_later_points_come_alone(attempt: Attempt, client_of_alice: Client) -> None:
    store(attempt, [2.0, 1.5])
    last = data(client_of_alice, attempt.job)["curves"][0]["last_point"]
    nothing = data(client_of_alice, attempt.job, after=[f"{attempt.job_id}:{last}"])
    assert nothing["complete"] is False and nothing["curves"][0]["lines"] == {}
    store(attempt, [1.2], first=2)
    store(attempt, [0.5], name="accuracy", first=2)
    more = data(client_of_alice, attempt.job, after=[f"{attempt.job_id}:{last}"])
    assert {name: line["values"] for name, line in more["curves"][0]["lines"].items()} == {
        "train/loss": [1.2],
        "accuracy": [0.5],
    }
    assert more["curves"][0]["last_point"] > last


def test_a_page_that_was_away_for_long_gets_all_curves_again(attempt: Attempt, client_of_alice: Client) -> None:
    store(attempt, [1.0] * (curve_points.MAX_NEW_POINTS + 1))
    answer = data(client_of_alice, attempt.job, after=[f"{attempt.job_id}:0"])
    assert answer["complete"] is True and len(answer["curves"][0]["lines"]["train/loss"]["values"]) <= 2_000


def test_a_job_that_was_added_gets_all_curves_again(attempt: Attempt, client_of_alice: Client) -> None:
    other = make_attempt(attempt.job.project)
    store(attempt, [1.0])
    store(other, [2.0])
    assert data(client_of_alice, attempt.job, other.job, after=[f"{attempt.job_id}:0"])["complete"] is True


@pytest.mark.parametrize("wrong", ["7", "x:1", "1:", "1:²", "1:-5", "1:1:1", "9" * 19 + ":1"])
def test_an_unreadable_position_is_refused(attempt: Attempt, client_of_alice: Client, wrong: str) -> None:
    answer = client_of_alice.get(reverse("jobs:curves"), {"job": str(attempt.job_id), "after": wrong})
    assert answer.status_code == 400 and "after must be" in answer.json()["error"]


def test_points_of_others_are_not_there(attempt: Attempt) -> None:
    store(attempt, [1.0])
    stranger = Client()
    stranger.force_login(world.make_user("charlie"))
    answer = data(stranger, attempt.job, after=[f"{attempt.job_id}:0"])
    assert answer["jobs"] == [] and answer["curves"] == [] and answer["marks"] == []


def test_a_resized_job_has_marks(user: User, client_of_alice: Client) -> None:
    node = world.make_node(gpus=2)
    job = world.make_job(world.make_project(user), elastic=True, max_gpus=2)
    attempt = world.place(job, [node.gpus.all()[0]], driver=True)
    for part in attempt.containers.all():
        lifecycle.advance(part, "RUNNING")
    driver = attempt.containers.get(role="driver")
    for number, hosts in enumerate((["h0"], ["h0", "h0"]), 1):
        RankGroup.objects.create(driver=driver, number=number, at=START + timedelta(minutes=number), hosts=hosts)
    store(attempt, [1.0])
    (mark,) = data(client_of_alice, job)["marks"]
    assert mark == {"time": (START + timedelta(minutes=2)).timestamp(), "text": "1 → 2 CPU slots"}
    assert data(client_of_alice, job, make_attempt(job.project).job)["marks"] == []


def test_a_finished_job_is_not_asked_for_again(attempt: Attempt, client_of_alice: Client) -> None:
    store(attempt, [1.0])
    part = attempt.containers.get()
    world.run(part)
    world.exit(part)
    assert data(client_of_alice, attempt.job)["live"] is False


def test_the_pages_have_pictures_and_the_address_of_the_points(attempt: Attempt, client_of_alice: Client) -> None:
    page = client_of_alice.get(reverse("jobs:detail", args=[attempt.job_id])).content.decode()
    assert f'data-curves="/jobs/curves.json?job={attempt.job_id}"' in page and "hidden>" in page
    store(attempt, [2.0, 1.5])
    for address in (reverse("jobs:detail", args=[attempt.job_id]), f"{reverse('jobs:compare')}?job={attempt.job_id}"):
        page = client_of_alice.get(address).content.decode()
        assert 'class="chart-picture wide"' in page and f"curves.json?job={attempt.job_id}" in page


# --- comparison


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("--lr 0.1 --wd=0 data.csv", {"--lr": "0.1", "--wd": "0"}),
        ("--amp --lr 3e-4", {"--amp": "yes", "--lr": "3e-4"}),
        ("--shift -1.5 -v", {"--shift": "-1.5", "-v": "yes"}),
        ("optimizer.lr=0.3 +seed=4 ++x=1", {"optimizer.lr": "0.3", "+seed": "4", "++x": "1"}),
        ("--fast seed=1", {"--fast": "yes", "seed": "1"}),
        ("data.csv - -- 5", {}),
    ],
)
def test_options_of_a_command_line(line: str, found: dict[str, str]) -> None:
    assert dict(comparison.options_of(line.split())) == found


@pytest.mark.parametrize(
    ("name", "best"),
    [
        ("train/loss", "lowest"), ("val_error", "lowest"), ("validation/accuracy", "highest"), ("eval.f1", "highest"),
        ("train/samples per second", "highest"), ("learning rate", "range"), ("glossary", "range"),
    ],
)  # fmt: skip
def test_which_values_are_best_follows_from_the_name(name: str, best: str) -> None:
    assert comparison.best_of(name) == best


def test_jobs_are_named_by_what_differs(user: User, client_of_alice: Client) -> None:
    project = world.make_project(user)
    slow, fast = (
        make_attempt(project, name="digits", arguments=["--lr", rate, "--seed", "1"], env_vars={"WORKERS": "4"})
        for rate in ("0.1", "0.3")
    )
    store(slow, [2.0, 0.5, 0.7])
    store(fast, [2.0, 0.9, 0.4])
    page = client_of_alice.get(reverse("jobs:compare"), {"job": [slow.job_id, fast.job_id]}).content.decode()
    assert f"#{slow.job_id} digits · --lr 0.1" in page and f"#{fast.job_id} digits · --lr 0.3" in page
    assert "--seed" not in page and "WORKERS" not in page
    found = comparison.results([slow.job, fast.job], ["train/loss"])[0]
    assert [(each.last, each.best, each.leads) for each in found.per_job] == [
        ("0.7", "0.5", False),
        ("0.4", "0.4", True),
    ]
    labels = {each["label"] for each in data(client_of_alice, slow.job, fast.job)["jobs"]}
    assert labels == {f"#{slow.job_id} digits · --lr 0.1", f"#{fast.job_id} digits · --lr 0.3"}


def test_a_plain_command_is_read_as_a_shell_would(user: User) -> None:
    project = world.make_project(user)
    one, other = (
        world.make_job(
            project, launcher=Job.Launcher.COMMAND, entry=f"python train.py --name 'a b' --lr {rate}", max_gpus=gpus
        )
        for rate, gpus in (("1", 1), ("2", 2))
    )
    found = comparison.differences(user, [one, other])
    assert [(each.name, each.values, each.is_option) for each in found][0] == ("--lr", ("1", "2"), True)
    assert ("GPUs", ("1", "1 to 2"), False) in [(each.name, each.values, each.is_option) for each in found]
    broken = world.make_job(project, launcher=Job.Launcher.COMMAND, entry="echo 'a --lr 3")
    assert comparison.differences(user, [one, broken])


def test_values_of_variables_are_shown_only_to_those_who_may_read_them(user: User) -> None:
    project = world.make_project(user)
    viewer = world.make_user("victor")
    Membership.objects.create(project=project, user=viewer, role=Membership.Role.VIEWER)
    jobs = [world.make_job(project, env_vars={"TOKEN": value}) for value in ("one", "two")]
    assert [each.name for each in comparison.differences(user, jobs)] == ["TOKEN"]
    assert comparison.differences(viewer, jobs) == []


def test_hostile_names_stay_text(user: User, client_of_alice: Client) -> None:
    project = world.make_project(user)
    evil = "<img src=x onerror=alert(1)>"
    jobs = [make_attempt(project, name=evil, arguments=["--x", value]) for value in (evil, "</script>")]
    for each in jobs:
        store(each, [1.0, 2.0], name=evil)
    page = client_of_alice.get(reverse("jobs:compare"), {"job": [each.job_id for each in jobs]}).content.decode()
    assert "<img" not in page and "</script><" not in page.split("</head>")[1]
    assert evil in json.dumps(data(client_of_alice, *(each.job for each in jobs)))


# --- sparklines


@pytest_database
def test_a_sparkline_is_the_loss_or_the_first_metric_in_few_values(user: User) -> None:
    cache.clear()
    project = world.make_project(user)
    long, other, nothing = (make_attempt(project) for _ in range(3))
    store(long, [float(1000 - step) for step in range(1000)], first=500)
    store(long, [7.0] * 10, name="accuracy")
    store(other, [1.0, 2.0, 3.0], name="zeta")
    store(other, [5.0, 6.0], name="beta")
    found = sparklines_of([long.job, other.job, nothing.job])
    assert set(found) == {long.job_id, other.job_id}
    assert len(found[long.job_id]) <= VALUES
    assert found[long.job_id] == sorted(found[long.job_id], reverse=True)  # type: ignore[type-var]
    assert found[other.job_id] == [5.0, 6.0]


def test_sparklines_of_a_list_take_a_fixed_number_of_queries(user: User) -> None:
    project = world.make_project(user)
    attempts = [make_attempt(project) for _ in range(12)]
    for place, each in enumerate(attempts):
        store(each, [1.0, 0.5, 0.2], name="train/loss" if place % 2 else "score")
    jobs = [each.job for each in attempts]
    counts = []
    for some in (jobs[:2], jobs):
        cache.clear()
        with CaptureQueriesContext(connection) as queries:
            assert len(sparklines_of(some)) == len(some)
        counts.append(len(queries))
    assert counts[0] == counts[1] <= 4
    with CaptureQueriesContext(connection) as queries:
        sparklines_of(jobs)
    assert len(queries) == 1


def test_a_sparkline_follows_its_curve(attempt: Attempt) -> None:
    cache.clear()
    store(attempt, [1.0, 0.5])
    assert sparklines_of([attempt.job])[attempt.job_id] == [1.0, 0.5]
    store(attempt, [0.1, 0.1], first=2)
    assert sparklines_of([attempt.job])[attempt.job_id] == [1.0, 0.5, 0.1, 0.1]


def test_points_that_come_while_a_sparkline_is_computed_wait_for_the_next(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.clear()
    store(attempt, [1.0] * VALUES)
    read_ends = sparklines._ends

    def read_ends_before_more_steps(*asked: Any) -> Any:
        found = read_ends(*asked)
        store(attempt, [9.0], first=VALUES)
        store(attempt, [9.0], first=1000)
        return found

    monkeypatch.setattr(sparklines, "_ends", read_ends_before_more_steps)
    assert sparklines_of([attempt.job])[attempt.job_id] == [1.0] * VALUES


def test_at_most_six_jobs_are_compared() -> None:
    assert curve_views.MAX_JOBS == 6
