"""Each law about who holds which GPU finds what was planted against it, and nothing where all is well."""

from dataclasses import replace
from typing import Any

import pytest

from tests.outside import laws
from tests.outside.judging import LAWS, report, violations
from tests.outside.planted import (
    START,
    STRICT,
    act,
    attempt,
    changed,
    job,
    poll,
    quiet,
    record,
    repeated,
    reservation,
    span,
    waiting,
)
from tests.outside.record import Event, Part

AT = START + 10.0


def test_a_quiet_lab_breaks_no_law() -> None:
    assert violations(quiet()) == []


def test_every_law_has_a_name_and_is_judged_once() -> None:
    assert len({law.__name__ for law in LAWS}) == len(LAWS) == 19


def test_a_violation_is_reported_with_the_seed_the_moment_and_the_polls_around_it() -> None:
    broken = changed(quiet(), spans=[*quiet().spans, span(2, "n1", 0, since=AT + 0.2)])
    found = violations(broken, [laws.no_gpu_is_held_twice])
    lines = report(broken, found).splitlines()
    assert lines[1].startswith("- 00:16:50.200 (seed 7) no GPU is held twice: job 2")
    assert [line.strip() for line in lines if line.startswith("    poll")] == [
        "poll 00:16:50.000 under fifo: n1[1 1 - -] n2[2 2 2 2]",
        "poll 00:16:50.500 under fifo: n1[1 1 - -] n2[2 2 2 2]",
    ]


class TestGpuHeldTwice:
    def test_by_the_timeline(self) -> None:
        both = record([job(1), job(2)], spans=[span(1, until=AT), span(2, since=AT - 0.1)])
        (found,) = laws.no_gpu_is_held_twice(both)
        assert (found.at, found.job) == (AT - 0.1, 2)
        assert not list(
            laws.no_gpu_is_held_twice(record([job(1), job(2)], spans=[span(1, until=AT), span(2, since=AT)]))
        )

    def test_by_containers_that_ran(self) -> None:
        first = attempt(parts=(Part("a", "host", "n1", (0,), START, AT + 1),))
        second = attempt(parts=(Part("b", "host", "n1", (0,), AT, None),))
        (found,) = laws.no_gpu_is_held_twice(record([job(1), job(2)], attempts={1: [first], 2: [second]}))
        assert found.job == 2 and "b" in found.text


class TestLimits:
    def held(self, *acts: object) -> list[str]:
        spans = [span(1), span(2, index=1, since=AT)]
        groups = {"group vision": frozenset({"alice", "bob"})}
        made = record([job(1), job(2, owner="bob")], spans=spans, acts=acts, groups=groups)
        return [found.text for found in laws.limits_are_kept(made)]

    def test_a_person_or_a_group_over_its_limit(self) -> None:
        (text,) = self.held(act("limit", START, who="group vision", value=1))
        assert text == "group vision held 2 GPUs when job 2 got GPU 1 of n1; the limit is 1"
        assert self.held(act("limit", START, who="bob", value=0))
        assert not self.held(
            act("limit", START, who="group vision", value=2), act("limit", START, who="alice", value=0)
        )

    def test_a_limit_of_this_moment_is_not_yet_known(self) -> None:
        assert not self.held(act("limit", AT - 1, who="bob", value=0))
        assert not self.held(act("limit", START, who="bob", value=0), act("limit", AT - 1, who="bob", value=None))
        assert self.held(act("limit", START, who="bob", value=5), act("limit", AT - 6, who="bob", value=0))

    def test_a_job_that_leaves_a_drained_machine_has_its_old_gpus_for_a_moment(self) -> None:
        moving = Event(4, AT + 0.01, "moving", "It leaves n1 for other nodes while it runs, because of a drain.")
        fields: dict[str, Any] = {
            "spans": [span(1), span(1, "n2", since=AT)],
            "acts": [act("limit", START, who="alice", value=1)],
        }
        assert list(laws.limits_are_kept(record([job(1)], **fields)))
        assert not list(laws.limits_are_kept(record([job(1)], events={1: [moving]}, **fields)))


class TestReservations:
    def test_another_user_starts_on_reserved_gpus(self) -> None:
        spans = [span(1), span(1, index=1), span(2, index=2, since=AT)]
        jobs = [job(1), job(2)]
        kept = record(jobs, polls=repeated(jobs=jobs, reservations=(reservation(),)), spans=spans)
        (found,) = laws.reservations_are_kept(kept)
        assert (found.job, found.at) == (2, AT)
        assert "others held 3 of 4; 2 are reserved for bob" in found.text
        mine = replace(kept, jobs={1: job(1), 2: job(2, owner="bob")})
        assert not list(laws.reservations_are_kept(mine))

    def test_of_two_reservations_one_may_lack_what_another_job_keeps(self) -> None:
        """Alice's job cannot be stopped; two GPUs are reserved for bob, and one for carol, who uses it."""
        jobs = [job(1), job(2, owner="carol")]
        both = (reservation(), reservation(id=2, gpus=1, users=("carol",)))
        spans = [span(1), span(1, index=1), span(2, index=2, since=AT)]
        kept = record(jobs, polls=repeated(jobs=jobs, reservations=both), spans=spans)
        assert not list(laws.reservations_are_kept(kept))
        more = replace(kept, spans=[*spans, span(2, index=3, since=AT)])
        assert {found.job for found in laws.reservations_are_kept(more)} == {2}

    def test_who_can_be_stopped_does_not_leave(self) -> None:
        for resumable in (True, False):
            jobs = [job(1, resumable=resumable)]
            spans = [span(1, index=index) for index in range(3)]
            made = record(jobs, polls=repeated(jobs=jobs, reservations=(reservation(start=START + 1),)), spans=spans)
            assert [found.job for found in laws.reservations_are_kept(made)] == [1] * resumable

    def test_a_cancelled_reservation_no_longer_counts(self) -> None:
        jobs = [job(1), job(2)]
        polls = repeated(jobs=jobs, reservations=(reservation(gpus=4),))[:16] + repeated(jobs=jobs)[16:]
        assert not list(laws.reservations_are_kept(record(jobs, polls=polls, spans=[span(1, since=AT)])))


class TestLayers:
    @pytest.mark.parametrize(
        ("above", "below", "broken"),
        [
            ({"tier": "premium"}, {"tier": "standard"}, True),
            ({"tier": "standard"}, {"tier": "basic"}, True),
            ({"tier": "basic"}, {"opportunistic": True}, True),
            ({"tier": "standard"}, {"tier": "standard"}, False),
            ({"tier": "premium", "min_gpus": 8, "max_gpus": 8, "launcher": "torchrun"}, {"tier": "basic"}, False),
            ({"tier": "premium", "min_gpus": 5, "max_gpus": 5}, {"tier": "basic"}, False),
            ({"tier": "premium", "submitted_at": AT - 1}, {"tier": "basic"}, False),
        ],
    )
    def test_a_lower_layer_passes_one_that_fits(
        self, above: dict[str, Any], below: dict[str, Any], broken: bool
    ) -> None:
        jobs = [waiting(1, **above), job(2, **below)]
        made = record(jobs, polls=repeated(jobs=jobs), spans=[span(2, since=AT), span(3, "n2")])
        made = replace(made, jobs={**made.jobs, 3: job(3)})
        assert [found.job for found in laws.no_lower_layer_passes_one_that_fits(made)] == [2] * broken

    def test_what_is_kept_for_one_that_is_about_to_start_is_not_free(self) -> None:
        first, second = (
            waiting(1, tier="premium", min_gpus=4, max_gpus=4),
            waiting(4, tier="premium", min_gpus=4, max_gpus=4),
        )
        before, after = [first, second, job(2)], [job(1, tier="premium"), second, job(2)]
        polls = repeated(jobs=before)[:22] + repeated(jobs=after)[22:]
        spans = [span(2, since=AT), *(span(1, "n2", index, since=AT + 0.8) for index in range(4)), span(3, index=1)]
        made = record([*after, job(3)], polls=polls, spans=spans)
        assert not list(laws.no_lower_layer_passes_one_that_fits(made))
        assert list(laws.no_lower_layer_passes_one_that_fits(replace(made, spans=spans[:1])))

    def test_one_over_its_limit_is_not_passed(self) -> None:
        jobs = [waiting(1, tier="premium", owner="bob"), job(2)]
        made = record(jobs, spans=[span(2, since=AT)], acts=[act("limit", START - 50, who="bob", value=0)])
        assert not list(laws.no_lower_layer_passes_one_that_fits(made))

    @pytest.mark.parametrize(
        ("policy", "stoppable", "broken"), [(STRICT, False, True), (STRICT, True, False), ("srjf {}", False, False)]
    )
    def test_who_cannot_be_stopped_passes_a_strict_line(self, policy: str, stoppable: bool, broken: bool) -> None:
        jobs = [waiting(1, min_gpus=8, max_gpus=8, launcher="torchrun"), job(2, tier="basic", resumable=stoppable)]
        acts = [act("policy", START, text=policy)]
        made = record(jobs, acts=acts, attempts={2: [attempt(AT)]})
        assert [found.job for found in laws.no_one_passes_a_strict_line_for_good(made)] == [2] * broken


class TestTimeline:
    def test_a_holder_that_only_one_of_them_has(self) -> None:
        for holders, spans in (({"n1": [1, None, None, None]}, []), ({}, [span(1)])):
            made = record([job(1)], polls=repeated(holders, [job(1)])[:2], spans=spans)
            found = list(laws.the_timeline_equals_the_polls(made))
            assert len(found) == 2 and found[0].at == START

    def test_a_change_during_the_look_may_be_seen_or_not(self) -> None:
        for held in (None, 1):
            made = record(
                [job(1)], polls=[poll(AT, {"n1": [held, None, None, None]}, [job(1)])], spans=[span(1, until=AT + 0.01)]
            )
            assert not list(laws.the_timeline_equals_the_polls(made))


class TestBelowMinimum:
    def test_a_job_runs_on_too_few_gpus_and_its_history_is_silent(self) -> None:
        few = [job(1, min_gpus=3, max_gpus=4)]
        made = record(few, polls=repeated({"n1": [1, 1, None, None]}, few))
        (found,) = laws.no_job_runs_below_its_minimum_in_silence(made)
        assert found.job == 1 and "2 GPUs for 3.0 s; its minimum is 3" in found.text
        explained = replace(made, events={1: [Event(3, START + 0.5, "lost", "The part on n2 was lost.")]})
        assert not list(laws.no_job_runs_below_its_minimum_in_silence(explained))
        ending = attempt(parts=(Part("sl-1-a1-1", "host", "n2", (0,), START - 9, START - 1, "exited"),))
        assert not list(laws.no_job_runs_below_its_minimum_in_silence(replace(made, attempts={1: [ending]})))


class TestReasonIsThere:
    @pytest.mark.parametrize("missing", [{"reason": ""}, {"place": None}])
    def test_a_job_waits_without_one(self, missing: dict[str, Any]) -> None:
        jobs = [replace(waiting(1), **missing)]
        (found,) = laws.every_waiting_job_has_a_reason(record(jobs))
        assert found.job == 1
        down = record(jobs, acts=[act("kill", START - 5)])
        assert not list(laws.every_waiting_job_has_a_reason(down))
        just = record(jobs, polls=repeated(jobs=jobs)[:8])
        assert not list(laws.every_waiting_job_has_a_reason(just))

    def test_a_job_that_was_stopped_again_between_two_polls_has_just_begun_to_wait(self) -> None:
        polls = repeated(jobs=[waiting(1, "It needs 4 GPUs at once and 2 are free.")])
        polls[-1] = poll(polls[-1].began, None, [waiting(1, "")])
        assert list(laws.every_waiting_job_has_a_reason(record(polls=polls)))
        queued = Event(4, polls[-1].began - 0.1, "state", "The job is queued again.")
        assert not list(laws.every_waiting_job_has_a_reason(record(polls=polls, events={1: [queued]})))
