"""A job's GPUs over time: what drivers report, what is made of it, and who may see it."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.accounts.models import User
from portal.cluster.models import Node
from portal.jobs import lifecycle
from portal.jobs.models import Attempt, Container, Job
from portal.jobs.resize_timeline.models import RankGroup
from portal.jobs.resize_timeline.svg import draw
from portal.jobs.resize_timeline.timeline import (
    AttemptSpan,
    GroupSpan,
    HostSpan,
    ResizeTimeline,
    build_timeline,
    groups_of_containers,
    timeline_of,
    without_repetitions,
)
from tests.portal import jobs_world as world
from tests.portal.agents_world import Agent, job_on

START = datetime(2026, 11, 2, 9, tzinfo=UTC)


def at(minute: float) -> datetime:
    return START + timedelta(minutes=minute)


def part(host: str, node: str, gpus: int = 1, stop: str = "", exit: str = "") -> HostSpan:
    return HostSpan(host, node, gpus, at(0), None, stop, exit)


def attempt_of(
    parts: Sequence[HostSpan], *groups: GroupSpan, number: int = 1, outcome: str = "", ended: datetime | None = None
) -> AttemptSpan:
    return AttemptSpan(number, outcome, "", ended, tuple(parts), groups)


GREW = GroupSpan(at(10), ("h1", "h1", "h2", "h3", "h4", "h5"), 4.2)
TWO = GroupSpan(at(0), ("h1", "h1"))


def test_each_rank_group_is_a_segment_and_each_difference_a_change() -> None:
    parts = [part("h1", "a", 2), part("h2", "a", stop="preempted"), part("h3", "b", stop="drained"), part("h4", "b")]
    parts.append(part("h5", "c", exit="lost"))
    three = GroupSpan(at(20), ("h1", "h1", "h4"), None)
    found = build_timeline([attempt_of(parts, TWO, GREW, three)])
    assert [(each.gpus, each.since, each.until) for each in found.segments] == [
        (2, at(0), at(10)),
        (6, at(10), at(20)),
        (3, at(20), None),
    ]
    assert found.segments[1].nodes == (("a", 3), ("b", 2), ("c", 1))
    grown, shrunk = found.changes
    assert (grown.before, grown.after, grown.cost) == (2, 6, "4.2 s")
    assert grown.cause == "1 idle GPU of a joined; 2 idle GPUs of b joined; 1 idle GPU of c joined."
    assert (shrunk.before, shrunk.after, shrunk.cost) == (6, 3, "")
    assert shrunk.cause == "1 GPU of a went to other jobs; node b is being drained; node c was lost."
    assert found.cost_seconds == 4.2


@pytest.mark.parametrize(
    ("stop", "exit", "expected"),
    [
        ("", "fenced", "Node b lost contact with the portal."),
        ("", "", "Node b stopped responding."),
        ("", "oom", "Out of memory on b."),
        ("", "exited", "The ranks on b ended."),
    ],
)
def test_the_cause_is_why_a_host_has_left(stop: str, exit: str, expected: str) -> None:
    parts = [part("h1", "a"), part("h2", "b", stop=stop, exit=exit)]
    [change] = build_timeline(
        [attempt_of(parts, GroupSpan(at(0), ("h1", "h2")), GroupSpan(at(5), ("h1",), 31.0))]
    ).changes
    assert (change.cause, change.cost) == (expected, "31 s")


def test_a_rank_group_that_formed_again_on_the_same_hosts_is_a_change_when_it_cost_time() -> None:
    groups = (TWO, GroupSpan(at(1), ("h1", "h1"), None), GroupSpan(at(2), ("h1", "h1"), 6.0))
    [change] = build_timeline([attempt_of([part("h1", "a", 2)], *without_repetitions(groups))]).changes
    assert (change.at, change.before, change.after) == (at(2), 2, 2)
    assert change.cause == "A rank ended and was restarted."


def test_what_a_new_driver_found_and_formed_again_is_one_change() -> None:
    found = GroupSpan(at(5), ("h2",), None)  # the first host went with its node, and with it the driver
    groups = (GroupSpan(at(0), ("h1", "h2")), found, GroupSpan(at(5.1), ("h2",), 41.0))
    parts = [part("h1", "a", exit="lost"), part("h2", "b")]
    [change] = build_timeline([attempt_of(parts, *without_repetitions(groups))]).changes
    assert (change.at, change.cause, change.cost_seconds) == (at(5), "Node a was lost.", 41.0)


@pytest.mark.parametrize(
    ("outcome", "exit", "expected"),
    [
        ("preempted", "stopped", "Stopped to make room for others; attempt 2 runs on b."),
        ("lost", "lost", "Node a was lost; attempt 2 runs on b."),
        ("failed", "exited", "It failed and was retried; attempt 2 runs on b."),
        ("held", "stopped", "Put on hold and released; attempt 2 runs on b."),
    ],
)
def test_between_two_attempts_nothing_runs_and_that_is_the_cost(outcome: str, exit: str, expected: str) -> None:
    first = attempt_of([part("h1", "a", 2, exit=exit)], TWO, outcome=outcome, ended=at(5))
    second = attempt_of([part("h1", "b", 2)], GroupSpan(at(7), ("h1", "h1")), number=2)
    found = build_timeline([first, second])
    [change] = found.changes
    assert (change.cause, change.cost_seconds) == (expected, 120.0)
    assert [each.until for each in found.segments] == [at(5), None]


def test_an_attempt_whose_driver_reports_nothing_is_read_from_its_containers() -> None:
    def ran(host: str, since: float, until: float | None, gpus: int = 1) -> HostSpan:
        return HostSpan(host, "a", gpus, at(since), None if until is None else at(until), "", "")

    parts = [
        ran("h1", 0, None, 2),
        ran("h2", 10, 20),
        ran("h3", 10.02, None),
        HostSpan("h4", "a", 1, None, None, "", ""),
    ]
    found = groups_of_containers(parts)
    assert [group.at for group in found] == [at(0), at(10.02), at(20)]
    assert [len(group.hosts) for group in found] == [2, 4, 3]


def test_the_picture_shows_the_same_without_colours_or_script() -> None:
    parts = [part("h1", "a<b>", 2), *(part(f"h{n}", "c") for n in range(2, 6))]
    found = build_timeline([attempt_of(parts, TWO, GREW)])
    picture = draw(found, at(20))
    assert picture.count('aria-label="Number of GPUs over time: 2, then 6."') == 3
    assert "a&lt;b&gt; (2 GPUs), attempt 1" in picture and "<b>" not in picture
    assert "style=" not in picture and "2 to 6 GPUs: 4 idle GPUs of c joined." in picture


def test_changes_at_the_same_moment_have_one_number_in_the_picture() -> None:
    """The table has them all."""
    groups = [GroupSpan(at(0), ("h1",)), *(GroupSpan(at(1 + n / 1000), ("h1",) * (2 - n % 2), 1.0) for n in range(80))]
    found = build_timeline([attempt_of([part("h1", "a", 2)], *groups)])
    assert draw(found, at(60)).count('class="number"') == 3
    assert [number for number, _ in found.latest] == list(range(31, 81))
    assert draw(ResizeTimeline(found.segments[:1], ()), at(0)).count('class="segment') == 3  # no time has passed yet


# --- what agents report --------------------------------------------------------------------------------------------


def report(number: int, *hosts: str, cost: float | None = None, at: float = 0.0) -> dict[str, Any]:
    return {"number": number, "at": at, "hosts": list(hosts), "cost_seconds": cost}


class TestReporting:
    pytestmark = pytest.mark.django_db

    @pytest.fixture
    def agent(self) -> Agent:
        agent = Agent()
        agent.sync()
        return agent

    @pytest.fixture
    def driver(self, agent: Agent) -> Container:
        job = job_on(agent, elastic=True, max_gpus=4)
        return Container.objects.get(attempt__job=job, role="driver")

    def send(self, agent: Agent, driver: Container, *groups: Any) -> int:
        return int(agent.post(f"containers/{driver.name}/rings", {"rings": list(groups)}).status_code)

    def test_a_rank_group_is_kept_once_and_its_cost_when_it_is_known(self, agent: Agent, driver: Container) -> None:
        now = timezone.now().timestamp()
        assert self.send(agent, driver, report(1, "h0", at=now)) == 200
        for cost in (None, 2.5, 3.5, 3.5):
            assert self.send(agent, driver, report(1, "h0", at=now), report(2, "h0", "h1", cost=cost, at=now)) == 200
        rows = list(RankGroup.objects.values_list("number", "hosts", "cost_seconds"))
        assert rows == [(1, ["h0"], None), (2, ["h0", "h1"], 3.5)]

    def test_what_it_reports_is_brought_into_bounds(self, agent: Agent, driver: Container) -> None:
        assert self.send(agent, driver, report(1, "h" * 200, at=5.0, cost=1e12), report(2, at=1e11, cost=-1.0)) == 200
        early, late = RankGroup.objects.order_by("number")
        assert (early.at, early.hosts, early.cost_seconds) == (driver.assigned_at, ["h" * 63], 7 * 86_400)
        assert late.at <= timezone.now() and late.cost_seconds == 0

    @pytest.mark.parametrize(
        "nonsense",
        [
            None,
            [],
            report(0, "h1"),
            report(2**40, "h1"),
            {**report(1), "at": "noon"},
            {**report(1), "at": 1e300},
            {**report(1), "hosts": "h1"},
            {**report(1), "hosts": [1]},
            {**report(1), "cost_seconds": "much"},
        ],
    )
    def test_nonsense_is_refused(self, agent: Agent, driver: Container, nonsense: Any) -> None:
        assert self.send(agent, driver, nonsense) == 400
        assert self.send(agent, driver, *([report(1)] * 51)) == 400
        assert agent.post(f"containers/{driver.name}/rings", {}).status_code == 400
        assert not RankGroup.objects.exists()

    def test_only_its_own_node_may_report_and_only_of_a_driver(self, agent: Agent, driver: Container) -> None:
        assert self.send(Agent("other"), driver, report(1, "h0")) == 404
        host = Container.objects.get(attempt=driver.attempt, role="host")
        assert self.send(agent, host, report(1, "h0")) == 404
        assert not RankGroup.objects.exists()

    def test_a_driver_that_goes_round_in_circles_does_not_fill_the_database(
        self, agent: Agent, driver: Container, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("portal.jobs.resize_timeline.reports.MAX_GROUPS", 3)
        for number in range(1, 8):
            assert self.send(agent, driver, report(number, "h0")) == 200
        assert RankGroup.objects.count() == 3


# --- who may see it ---------------------------------------------------------------------------------------------


class TestShowing:
    pytestmark = pytest.mark.django_db

    @pytest.fixture
    def alice(self) -> User:
        return world.make_user("alice")

    @pytest.fixture
    def nodes(self) -> list[Node]:
        return [world.make_node("alpha", gpus=2), world.make_node("beta", gpus=4)]

    def resized(self, owner: User, nodes: list[Node]) -> Job:
        """A job on 2 GPUs, then on 4, now on 3."""
        job = world.make_job(world.make_project(owner), elastic=True, max_gpus=6)
        attempt = world.place(job, list(nodes[0].gpus.all()), driver=True)
        driver = Container.objects.get(attempt=attempt, role="driver")
        more = [world.add_host(attempt, index, nodes[1], [gpu]) for index, gpu in enumerate(nodes[1].gpus.all()[:2], 5)]
        for container in attempt.containers.all():
            world.run(container)
        lifecycle.stop_container(more[0], "drained")
        base = ["h0", "h0"]
        start = timezone.now() - timedelta(minutes=30)
        for number, (hosts, cost) in enumerate(((base, None), ([*base, "h5", "h6"], 4.25), ([*base, "h6"], 0.84)), 1):
            moment = start + timedelta(minutes=10 * (number - 1))
            RankGroup.objects.create(driver=driver, number=number, at=moment, hosts=hosts, cost_seconds=cost)
        return job

    def page(self, user: User, job: Job) -> str:
        client = Client()
        client.force_login(user)
        answer = client.get(f"/jobs/{job.pk}/")
        assert answer.status_code == 200
        return answer.content.decode()

    def test_the_jobs_page_has_the_timeline_and_the_same_as_a_table(self, alice: User, nodes: list[Node]) -> None:
        page = self.page(alice, self.resized(alice, nodes))
        assert "Number of CPU slots over time: 2, then 4, then 3." in page
        assert "2 idle CPU slots of beta joined." in page and "Node beta is being drained." in page
        assert "4.2 s" in page and "0.8 s" in page and "not training during changes: 5 s in all" in page

    def test_a_job_that_cannot_change_has_no_timeline(self, alice: User, nodes: list[Node]) -> None:
        job = world.make_job(world.make_project(alice))
        for container in world.place(job, list(nodes[0].gpus.all())).containers.all():
            world.run(container)
        assert "Number of CPU slots" not in self.page(alice, job)

    def test_the_api_answers_those_who_may_see_the_job(self, alice: User, nodes: list[Node]) -> None:
        job = self.resized(alice, nodes)
        client = Client()
        client.force_login(alice)
        answer = client.get(f"/api/v1/jobs/{job.pk}/band/").json()
        assert [each["gpus"] for each in answer["stretches"]] == [2, 4, 3]
        assert answer["stretches"][1]["nodes"] == [{"node": "alpha", "gpus": 2}, {"node": "beta", "gpus": 2}]
        assert [each["cost_seconds"] for each in answer["changes"]] == [4.25, 0.84]
        client.force_login(world.make_user("charlie"))
        assert client.get(f"/api/v1/jobs/{job.pk}/band/").status_code == 404

    def test_a_job_that_never_ran_has_an_empty_one(self, alice: User) -> None:
        job = world.make_job(world.make_project(alice), elastic=True)
        assert timeline_of(job) == ResizeTimeline((), ())
        assert "Number of CPU slots" not in self.page(alice, job)
        assert not Attempt.objects.exists()
