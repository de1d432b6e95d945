"""The board: who holds what now and in the last hours, for users and for screens on the wall."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.accounts.models import LabSettings, User
from portal.cluster.models import Node
from portal.hues import mark_of_person
from portal.jobs import lifecycle
from portal.jobs.models import Allocation, Job
from portal.monitoring import board, strips
from portal.monitoring.board import Holding, Machine, Square, Viewer, board_for
from tests.portal import jobs_world as world

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SINCE = NOON - board.HISTORY


def holding(gpu: int, attempt: int, since: float, until: float | None, name: str = "ada", **fields: Any) -> Holding:
    """A holding whose times are hours before noon."""
    mark = mark_of_person(len(name), name) if name else None
    times = NOON - timedelta(hours=since), None if until is None else NOON - timedelta(hours=until)
    return Holding(gpu, attempt, *times, None, "", mark, None, mine=False, hidden_as="another project", **fields)


def machine(gpus: int, *holdings: Holding, joined: datetime = NOON - timedelta(days=9)) -> Machine:
    squares = tuple(Square(pk, pk, f"GPU {pk}", "H100", "idle", None, None) for pk in range(gpus))
    return Machine(1, "alpha", "ready", "up", squares, holdings, "GPU", joined)


class TestStrips:
    def test_gpus_next_to_each_other_of_one_attempt_are_one_bar(self) -> None:
        held = [holding(gpu, 1, 2, None) for gpu in (3, 0, 1, 7)]
        found = strips.bars(machine(8, *held))
        assert [(bar.lane, bar.lanes) for bar in found] == [(0, 2), (3, 1), (7, 1)]

    def test_times_that_differ_are_bars_of_their_own(self) -> None:
        found = strips.bars(machine(2, holding(0, 1, 2, None), holding(1, 1, 1, None), holding(1, 2, 3, 2)))
        assert len(found) == 3

    def test_a_bar_lies_where_its_time_is(self) -> None:
        svg = strips.draw(machine(2, holding(1, 1, 3, 1.5)), SINCE, NOON, "person")
        [rect] = re.findall(r'<rect class="hue-\d" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', svg)
        assert [float(number) for number in rect] == [360, 16, 180, 16]

    def test_what_began_before_is_cut_and_what_is_short_is_visible(self) -> None:
        svg = strips.draw(machine(1, holding(0, 1, 9, 0.0001), holding(0, 2, 0.0001, None)), SINCE, NOON, "person")
        assert re.findall(r' x="([\d.]+)" y="0" width="([\d.]+)"', svg)[0][0] == "0.0"
        assert 'width="1.5"' in svg

    def test_words_describe_it(self) -> None:
        held = [holding(0, 1, 6, 3), holding(1, 2, 3, None, "bob"), holding(0, 3, 1.5, None, "")]
        text = strips.summary(machine(2, *held), SINCE, NOON, "person")
        assert text == "alpha in the last 6 hours: ada 25 %, bob 25 %, another project 12 %, idle 38 %"

    def test_a_machine_that_joined_meanwhile_was_not_idle_before(self) -> None:
        new = machine(1, holding(0, 1, 1, None), joined=NOON - timedelta(hours=2))
        assert strips.summary(new, SINCE, NOON, "person") == "alpha since it joined: ada 50 %, idle 50 %"
        assert '<rect class="absent" width="480.0" height="32"/>' in strips.draw(new, SINCE, NOON, "person")
        brand_new = machine(1, joined=NOON)
        assert strips.summary(brand_new, SINCE, NOON, "person") == "alpha since it joined: idle 100 %"

    def test_names_are_escaped(self) -> None:
        svg = strips.draw(machine(1, holding(0, 1, 1, None, '"><b>')), SINCE, NOON, "person")
        assert "<b>" not in svg and "&lt;b&gt;" in svg

    def test_sixteen_lanes_are_as_high_as_they_need(self) -> None:
        assert 'height="64"' in strips.draw(machine(16), SINCE, NOON, "person")
        assert 'height="32"' in strips.draw(machine(2), SINCE, NOON, "person")


@pytest.mark.django_db
class TestBoard:
    @pytest.fixture
    def alice(self) -> User:
        return world.make_user("alice", first_name="Alice", last_name="Zed")

    @pytest.fixture
    def node(self) -> Node:
        return world.make_node("alpha", gpus=3)

    def place(self, owner: User, node: Node, *indices: int) -> Job:
        job = world.make_job(world.make_project(owner, "Birds"), name="owl")
        for part in world.place(job, [node.gpus.get(index=index) for index in indices]).containers.all():
            lifecycle.advance(part, "RUNNING")
        return job

    def test_marks_and_counts(self, alice: User, node: Node) -> None:
        self.place(alice, node, 0, 2)
        found = board_for(Viewer.of(alice), timezone.now())
        assert (found.busy, found.total, found.machines_up, found.noun) == (2, 3, 1, "CPU slot")
        [(mark, count)] = found.present_marks("person")
        assert (mark.name, mark.code, count) == ("alice", "AZ", 2)
        assert [mark.name for mark, _ in found.present_marks("project")] == ["Birds"]
        assert found.count("idle") == 1 and not found.hidden("person")

    @pytest.mark.parametrize(
        ("names_people", "person"), [pytest.param(True, "alice", id="named"), pytest.param(False, None, id="not named")]
    )
    def test_a_screen_sees_people_at_most(
        self, alice: User, node: Node, names_people: bool, person: str | None
    ) -> None:
        self.place(alice, node, 0)
        [square] = [each for each in board_for(Viewer(None, names_people), timezone.now()).squares if each.holding]
        assert square.holding is not None
        assert square.holding.job is None and square.holding.project is None and square.holding.job_name == ""
        assert (square.holding.person.name if square.holding.person else None) == person

    def test_it_has_the_last_hours_and_not_what_was_before(self, alice: User, node: Node) -> None:
        now = timezone.now()
        part = self.place(alice, node, 2).attempts.get().containers.get()
        for hours_ago, index in ((8, 0), (3, 1)):
            begin = now - timedelta(hours=hours_ago)
            times = {"allocated_at": begin, "released_at": begin + timedelta(hours=1)}
            Allocation.objects.create(gpu=node.gpus.get(index=index), attempt=part.attempt, container=part, **times)
        [machine] = board_for(Viewer.of(alice), now).machines
        assert [each.gpu for each in machine.holdings] == [node.gpus.get(index=index).pk for index in (1, 2)]
        assert machine.busy == 1

    def test_more_than_can_be_drawn_is_cut_and_the_present_stays(
        self, alice: User, node: Node, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(board, "MAX_HOLDINGS", 1)
        present = self.place(alice, node, 0)
        past = self.place(alice, node, 1)
        world.exit(past.attempts.get().containers.get())
        found = board_for(Viewer.of(alice), timezone.now())
        assert found.is_cut and [each.holding.job for each in found.squares if each.holding] == [present.pk]

    @pytest.mark.parametrize(("all_see_queue", "holder"), [(True, "alice"), (False, None)])
    def test_the_api_shows_what_the_page_does(
        self, alice: User, node: Node, all_see_queue: bool, holder: str | None
    ) -> None:
        LabSettings.objects.create(pk=1, queue_for_members=all_see_queue)
        job = self.place(alice, node, 0)
        node.gpus.filter(index=0).update(utilisation_percent=96)
        charlie = world.make_user("charlie")
        answers = []
        for reader in (alice, charlie):
            client = Client()
            client.force_login(reader)
            answers.append(client.get("/api/v1/occupancy/").json())
        assert (answers[0]["busy"], answers[0]["total"]) == (1, 3)
        [shown] = answers[0]["nodes"]
        assert (shown["name"], shown["state"], shown["is_up"]) == ("alpha", "up", True)
        first = shown["gpus"][0]
        assert (first["job"], first["user"], first["project"]) == (job.pk, "alice", job.project_id)
        assert (first["condition"], first["utilisation_percent"], first["name"]) == ("busy", 96, "CPU slot 0")
        assert shown["gpus"][1]["held_since"] is None and shown["gpus"][1]["condition"] == "idle"
        hidden = answers[1]["nodes"][0]["gpus"][0]
        assert (hidden["job"], hidden["user"], hidden["project"]) == (None, holder, None)
        assert hidden["condition"] == "busy" and hidden["held_since"] is not None

    def test_unknown_parameters_are_refused(self, alice: User) -> None:
        client = Client()
        client.force_login(alice)
        assert client.get("/api/v1/occupancy/?by=person").status_code == 400
        assert Client().get("/api/v1/occupancy/").status_code == 401
