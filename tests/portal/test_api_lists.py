"""Lists of the API: query parameters that do not exist are refused, and following pages gives each row once."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from portal.accounts.models import User
from portal.api import v1
from portal.jobs.models import Job, JobState
from portal.projects.models import Membership, Project
from portal.rest import KnownParameters
from tests.laws.people import World, make_world
from tests.laws.route_matrix import names
from tests.portal.api_client import Script
from tests.portal.jobs_world import make_job, make_project

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


def readable() -> Iterator[str]:
    """Yield the pattern of each route below /api/v1/ that can be read."""
    for pattern in v1:
        view: Any = pattern.callback
        if "get" in getattr(view, "actions", {}) or hasattr(view.cls, "get"):
            yield str(pattern.pattern)


def filled_in(pattern: str, values: dict[str, Any]) -> str:
    own = values["ids"].get(pattern.split("/")[0], 1)
    return re.sub(r"<(?:\w+:)?(\w+)>", lambda found: str(values.get(found[1], own)), pattern)


@pytest.fixture
def world() -> World:
    return make_world()


def test_every_view_knows_its_parameters() -> None:
    views: list[Any] = [pattern.callback for pattern in v1]
    assert not [view for view in views if not issubclass(view.cls, KnownParameters)]


def test_a_parameter_that_does_not_exist_is_refused_by_every_address(world: World) -> None:
    known = names(world)
    values = {"project_pk": known["project"], "job_pk": known["job"], "number": 1, "key": "cpu", "index": 0}
    values |= {"username": "alice", "name": "vision", "path": "train.py"}
    values["ids"] = {"projects": known["project"], "jobs": known["job"]}
    seen = 0
    for address in readable():
        full = filled_in(address, values)
        answer = Script(world.ada).get(f"{full}?colour=red")
        if answer.status_code == 404:
            assert "<" in address, full  # the row is not in this world
            continue
        assert answer.status_code == 400, full
        assert "There is no parameter of this name." in answer.json()["error"]["fields"]["colour"][0]
        assert Script(world.ada).get(f"{full}?format=json").status_code in (200, 400, 404), full
        seen += 1
    assert seen > 25


@pytest.mark.parametrize(
    ("address", "wrong", "nearest"),
    [
        ("jobs/", "stat", "state"),
        ("jobs/", "submitted_afer", "submitted_after"),
        ("jobs/", "pagesize", "page_size"),
        ("projects/", "named", "name"),
        ("usage/", "untill", "until"),
        ("gpus/", "nodes", "node"),
        ("simulations/", "state", "status"),
    ],
)
def test_the_nearest_name_is_proposed(world: World, address: str, wrong: str, nearest: str) -> None:
    refused = Script(world.ada).get(f"{address}?{wrong}=1").json()["error"]
    assert refused["code"] == "invalid" and nearest in refused["fields"][wrong][0]


def test_names_that_a_list_has_and_pages_of_people_are_left_alone(world: World) -> None:
    script = Script(world.ada)
    for query in ("page=1", "page_size=5", "state=RUNNING", "q=x&tags=a", "submitted_after=2026-01-01T00:00:00Z"):
        assert script.get(f"jobs/?{query}").status_code == 200, query
    script.force_login(world.ada)
    assert script.get("/jobs/?colour=red").status_code == 200


def test_who_may_not_see_a_thing_learns_nothing_from_parameters(world: World) -> None:
    assert Script().get("jobs/?colour=red").status_code == 401
    assert Script(world.charlie).get("policy/history/?colour=red").status_code == 404


class TestContinuation:
    @pytest.fixture
    def alice(self) -> User:
        return User.objects.create_user("alice")

    @pytest.fixture
    def project(self, alice: User) -> Project:
        return make_project(alice)

    def follow(self, script: Script, address: str, *, between: Any) -> list[int]:
        found: list[int] = []
        while address:
            answer = script.get(address).json()
            found += [row["id"] for row in answer["results"]]
            address = (answer["next"] or "").removeprefix("http://testserver")
            between()
        return found

    def test_rows_that_arrive_meanwhile_repeat_none(self, alice: User, project: Project) -> None:
        there = [make_job(project).pk for _ in range(7)]
        found = self.follow(Script(alice), "jobs/?page_size=2", between=lambda: make_job(project))
        assert found == sorted(there, reverse=True)

    def test_filters_and_size_stay_in_the_link(self, alice: User, project: Project) -> None:
        for _ in range(5):
            make_job(project)
        answer = Script(alice).get("jobs/?state=QUEUED&page_size=2").json()
        assert answer["count"] == 5 and "state=QUEUED" in answer["next"] and "page_size=2" in answer["next"]
        after = Script(alice).get(answer["next"].removeprefix("http://testserver")).json()
        assert after["count"] == 5 and after["previous"] is None and len(after["results"]) == 2

    def test_numbered_pages_work_as_before(self, alice: User, project: Project) -> None:
        newest = [make_job(project).pk for _ in range(5)][::-1]
        second = Script(alice).get("jobs/?page=2&page_size=2").json()
        assert [row["id"] for row in second["results"]] == newest[2:4]
        assert "page=3" in second["next"] and second["previous"] and "before" not in second["next"]

    def test_the_end_and_ids_of_others_give_what_is_there(self, alice: User, project: Project) -> None:
        job = make_job(project)
        assert Script(alice).get(f"jobs/?before={job.pk}").json()["results"] == []
        assert len(Script(alice).get(f"jobs/?before={'9' * 18}").json()["results"]) == Job.objects.count()

    @pytest.mark.parametrize("query", ["before=x", "before=-1", f"before={'9' * 19}", "before=3&page=2", "before=٣"])
    def test_nonsense_is_refused(self, alice: User, query: str) -> None:
        refused = Script(alice).get(f"jobs/?{query}")
        assert refused.status_code == 400 and refused.json()["error"]["fields"]["before"]


class TestFiltersOfJobs:
    @pytest.fixture
    def jobs(self) -> dict[str, Job]:
        alice, bob = (User.objects.create_user(name) for name in ("alice", "bob"))
        project = make_project(alice)
        Membership.objects.create(project=project, user=bob, role=Membership.Role.MEMBER)

        def on(day: int) -> datetime:
            return datetime(2026, 11, day, 12, tzinfo=UTC)

        def ended(day: int) -> dict[str, Any]:
            return {"state": JobState.SUCCEEDED, "started_at": on(1), "finished_at": on(day)}

        return {
            "first": make_job(project, name="first", submitted_at=on(3), **ended(9)),
            "second": make_job(project, name="second", submitted_at=on(1), **ended(5)),
            "bobs": make_job(project, name="bobs", submitted_at=on(2), submitted_by=bob, **ended(7)),
            "waiting": make_job(project, name="waiting", submitted_at=on(4)),
        }

    def found(self, jobs: dict[str, Job], query: str) -> list[str]:
        answer = Script(jobs["first"].submitted_by).get(f"jobs/?{query}")
        assert answer.status_code == 200, answer.content
        return [row["name"] for row in answer.json()["results"]]

    @pytest.mark.parametrize(
        ("ordering", "names"),
        [
            ("id", ["first", "second", "bobs", "waiting"]),
            ("-id", ["waiting", "bobs", "second", "first"]),
            ("submitted_at", ["second", "bobs", "first", "waiting"]),
            ("-submitted_at", ["waiting", "first", "bobs", "second"]),
            ("finished_at", ["second", "bobs", "first", "waiting"]),
            ("-finished_at", ["waiting", "first", "bobs", "second"]),
        ],
    )
    def test_ordering_is_by_an_indexed_column(self, jobs: dict[str, Job], ordering: str, names: list[str]) -> None:
        assert self.found(jobs, f"ordering={ordering}") == names

    def test_ordered_pages_are_numbered(self, jobs: dict[str, Job]) -> None:
        script = Script(jobs["first"].submitted_by)
        first = script.get("jobs/?ordering=submitted_at&page_size=3").json()
        assert first["count"] == 4 and "page=2" in first["next"] and "ordering=submitted_at" in first["next"]
        rest = script.get(first["next"].removeprefix("http://testserver")).json()
        assert [row["name"] for row in rest["results"]] == ["waiting"] and rest["next"] is None

    def test_the_ones_finished_since_a_moment_are_found(self, jobs: dict[str, Job]) -> None:
        assert self.found(jobs, "finished_after=2026-11-07T12:00:00Z") == ["bobs", "first"]
        assert self.found(jobs, "finished_after=2026-11-07T12:00:01Z&submitted_after=2026-11-03T00:00:00Z") == ["first"]
        assert self.found(jobs, "finished_after=2026-11-09T14:00:00%2B01:00") == []

    def test_ones_own_and_those_of_others_are_found(self, jobs: dict[str, Job]) -> None:
        assert self.found(jobs, "mine=true") == ["waiting", "second", "first"]
        assert self.found(jobs, "mine=false") == ["bobs"]

    @pytest.mark.parametrize(
        ("query", "field"),
        [
            ("ordering=name", "ordering"),
            ("ordering=--id", "ordering"),
            ("ordering=id&sort=time", "ordering"),
            ("ordering=id&before=3", "before"),
            ("mine=perhaps", "mine"),
            ("finished_after=yesterday", "finished_after"),
            ("finished_after=2026-11-20T00:00:00+01:00", "finished_after"),
            ("project=1.5", "project"),
            ("finished_after=0001-01-01T00:00:00Z", "finished_after"),
        ],
    )
    def test_nonsense_is_refused(self, jobs: dict[str, Job], query: str, field: str) -> None:
        refused = Script(jobs["first"].submitted_by).get(f"jobs/?{query}")
        assert refused.status_code == 400 and refused.json()["error"]["fields"][field]

    def test_a_plus_that_was_sent_as_a_space_is_explained(self, jobs: dict[str, Job]) -> None:
        refused = Script(jobs["first"].submitted_by).get("jobs/?finished_after=2026-11-20T00:00:00+01:00")
        assert "written %2B" in refused.json()["error"]["fields"]["finished_after"][0]
