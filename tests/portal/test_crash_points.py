"""kill -9 before and after every commit and every call of an engine while jobs are placed, run, end, are cancelled, held,
preempted, resized, lost, and placed again.

A first run of each story without kills counts the points and names them. Then each is visited twice: its process dies
before what it does there lasts, and after. A run has several kills, some seconds after all have recovered from the one
before. ``make test`` visits every fourth point, ``make test-all`` each. In one order of events the deaths before are on PostgreSQL and those after on SQLite; ``CRASH_SEEDS=25`` does
both on either, in so many orders; ``-v`` prints the points.
"""

import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from portal.jobs.models import Allocation, Container
from runners.agent.journal import ContainerJournal
from runners.agent.reconcile import JournalEntry
from tests.examples import HUNT
from tests.portal.crashes import stories
from tests.portal.crashes.lab import Lab, Story
from tests.portal.crashes.points import Kill, When

SEEDS = range(1, 1 + int(os.environ.get("CRASH_SEEDS", "1")))
MAX_FRUITLESS_RUNS = 20
"""Runs in a row, each with another order of events, that may come to none of the points that are left."""
Plan = dict[tuple[str, When], int]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(1800), pytest.mark.both_databases]


def counted(home: Path, story: Story, seed: int) -> Mapping[str, int]:
    """How often the story passes each point when no process is killed."""
    with Lab(home, story, seed) as lab:
        lab.play()
    assert not lab.judge.complaints, (story.__name__, seed, lab.judge.complaints)
    return lab.points.passed


def visited(home: Path, story: Story, seed: int, plan: Plan) -> list[Kill]:
    """Carries all kills of a plan out, in as many runs as it takes."""
    left, done, fruitless = dict(plan), list[Kill](), 0
    for number in range(len(plan) + MAX_FRUITLESS_RUNS):  # each kills a process or comes to no point
        order = seed + 1000 * fruitless
        with Lab(home / str(number), story, order, left) as lab:
            lab.play()
        kills = lab.points.kills
        assert not lab.judge.complaints, (story.__name__, order, kills, lab.judge.complaints)
        for kill in kills:
            del left[kill.point, kill.when]
        done += kills
        if not left:
            break
        if not kills:
            fruitless += 1
            left = dict.fromkeys(left, 1)
            assert fruitless < MAX_FRUITLESS_RUNS, f"{story.__name__} with seed {seed} does not come to {left} again"
    return done


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.thorough
def test_a_death_at_any_point_loses_nothing_and_runs_nothing_twice(
    tmp_path: Path, seed: int, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(seed)
    whens: list[When] = ["after", "before"]
    if len(SEEDS) == 1:
        whens.remove("before" if connection.vendor == "sqlite" else "after")
    passed = {story: counted(tmp_path / story.__name__, story, seed) for story in stories.STORIES}
    where = {}
    for point in sorted(set().union(*passed.values()))[:: 1 if HUNT else 4]:
        # Likelier where it is passed more often: there it is also passed when a kill has changed the order of events.
        [where[point]] = chance.choices(list(passed), [times.get(point, 0) for times in passed.values()])
    plans: defaultdict[Story, Plan] = defaultdict(dict)
    for point, story in where.items():
        for when in whens:
            plans[story][point, when] = chance.randint(1, passed[story][point])
    kills: list[Kill] = []
    for story, plan in plans.items():
        kills += visited(tmp_path / f"{story.__name__}-kills", story, seed, plan)
    assert sorted((kill.point, kill.when) for kill in kills) == [(point, when) for point in where for when in whens]
    if request.config.get_verbosity() > 0:
        with capsys.disabled():
            print(f"\nseed {seed}: {len(where)} points, {len(kills)} kills")
            for point, story in where.items():
                times = sum(each[point] for each in passed.values())
                print(f"{times:5} x  {point}  (killed in: {story.__name__})")


# --- the lab finds what it is to find ----------------------------------------------------------------------------


def released_later(part: Container, now: Any) -> None:
    """GPUs are given back by a message about the end, not with it."""
    rows = Allocation.objects.filter(container=part, released_at=None)
    transaction.on_commit(lambda: rows.update(released_at=now))


def held_later(rows: Iterable[Allocation]) -> None:
    """GPUs are taken after the commit that gives them to a job."""
    for row in rows:
        transaction.on_commit(row.save)


def noted_later(self: ContainerJournal, name: str, **changes: Any) -> JournalEntry:
    """A start is noted when it has come back, not before."""
    if changes == {"started": True}:
        return self._entries[name]
    return change(self, name, **changes, **({"started": True} if "running_at" in changes else {}))


change = ContainerJournal.change


@pytest.mark.parametrize(
    ("target", "mistake", "action", "found"),
    [
        ("portal.jobs.lifecycle._release_gpus", released_later, "web: commit of ended", "has ended and holds a GPU"),
        pytest.param(
            "portal.scheduler.apply.Allocation.objects.bulk_create",
            held_later,
            "scheduler: commit of placed",
            "had {'",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "runners.agent.journal.ContainerJournal.change",
            noted_later,
            "agent: engine start",
            "not Expected(",
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["a GPU given back later", "a GPU taken later", "a start noted later"],
)
def test_a_mistake_that_only_a_death_shows_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    mistake: Callable[..., Any],
    action: str,
    found: str,
) -> None:
    monkeypatch.setattr(target, mistake)
    passed = counted(tmp_path / "counted", stories.finish, 1)

    def complaints() -> Iterator[str]:
        for point in (point for point in passed if point.startswith(action)):
            with Lab(tmp_path / str(abs(hash(point))), stories.finish, 1, {(point, "after"): 1}) as lab:
                lab.play()
            assert len(lab.points.kills) == 1
            yield from lab.judge.complaints

    assert any(found in complaint for complaint in complaints())
