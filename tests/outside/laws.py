"""Laws about who holds which GPU: each a function from a record to what breaks it."""

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from tests.outside.record import LAYERS, RUNNING, Job, Poll, Record, Reservation, Span, Violation, pairs

SEEN_SECONDS = 3.5
"""So long after a change the scheduler has seen it: its period is 3 s, and a call wakes it sooner."""
LEAVING_SECONDS = 5.0
CLEAR_SECONDS = 20.0
"""When a reservation begins, others who can be stopped are gone after this."""
TOGETHER_SECONDS, SOON_SECONDS = 0.3, 2.0
"""GPUs given within this time were given in one cycle; and in one soon after."""
QUIET_SECONDS = 3.0
MACHINE = re.compile(r"\bn\d+\b")
EDGE_SECONDS = 0.05
RECENT_SECONDS = 6.0
COMMIT_SECONDS = 1.0
"""A moment is written before its transaction ends: so long afterwards others may not see what happened then."""


def no_gpu_is_held_twice(record: Record) -> Iterator[Violation]:
    """By the timeline, and by when containers ran."""
    lanes: defaultdict[tuple[str, int], list[tuple[float, float, int, str]]] = defaultdict(list)
    for span in record.spans:
        until = span.until if span.until is not None else float("inf")
        lanes[span.node, span.index].append((span.since, until, span.job, f"attempt {span.attempt}"))
    runs: defaultdict[tuple[str, int], list[tuple[float, float, int, str]]] = defaultdict(list)
    for job, attempts in record.attempts.items():
        for part in (part for attempt in attempts for part in attempt.parts):
            if part.running_at is not None:
                until = part.exited_at if part.exited_at is not None else float("inf")
                for index in part.gpus:
                    runs[part.node, index].append((part.running_at, until, job, part.name))
    for source, found in (("timeline", lanes), ("containers", runs)):
        for (node, index), held in found.items():
            for (_, until, job, who), (since, _, other, next_who) in pairwise(sorted(held)):
                if since < until:
                    text = f"GPU {index} of {node}: job {job} ({who}) held it when job {other} ({next_who}) got it ({source})"
                    yield Violation("no GPU is held twice", since, text, other)


def limits_are_kept(record: Record) -> Iterator[Violation]:
    """Whenever a job gets a GPU, its person and each of their groups are within the largest limit of the last seconds.

    A job that leaves a machine that is being drained has both its old and its new GPUs for a moment; the old do not count.
    """
    for span in record.spans:
        for who in record.limited(_owner(record, span.job)):
            allowed = record.limits_between(who, span.since - SEEN_SECONDS, span.since + EDGE_SECONDS)
            most = max((value for value in allowed if value is not None), default=0)
            held = [each for each in record.held_at(span.since) if _owner(record, each.job) in record.people(who)]
            kept = sum(not _moves_away(record, each, span.since) for each in held)
            if None not in allowed and kept > most:
                text = f"{who} held {kept} GPUs when job {span.job} got GPU {span.index} of {span.node}; the limit is {most}"
                yield Violation("limits are kept", span.since, text, span.job)


def _moves_away(record: Record, span: Span, at: float) -> bool:
    """Whether its job's history names this machine as one that it leaves while it runs."""
    return any(
        event.kind == "moving"
        and span.since < event.at <= at + TOGETHER_SECONDS
        and span.node in MACHINE.findall(event.text)
        for event in record.events.get(span.job, ())
    )


def reservations_are_kept(record: Record) -> Iterator[Violation]:
    """While a reservation is on, no one else gets a GPU that it needs, and those who can be stopped leave."""
    for item, known_since, over in _reservations(record):
        for span in record.spans:
            if span.node != item.node or _owner(record, span.job) in item.users:
                continue
            if _uses_own_reservation(record, span):
                continue
            if not max(item.start, known_since + SEEN_SECONDS) + EDGE_SECONDS < span.since < over - EDGE_SECONDS:
                continue
            others = _others(record, span.since, item.node, item.users)
            if len(others) > record.node_gpus - item.gpus:
                text = (
                    f"job {span.job} of {_owner(record, span.job)} got GPU {span.index} of {item.node}, so that others held"
                    f" {len(others)} of {record.node_gpus}; {item.gpus} are reserved for {', '.join(sorted(item.users))}"
                )
                yield Violation("reservations are kept", span.since, text, span.job)
        due = max(item.start, known_since) + CLEAR_SECONDS
        if due < over and not record.is_scheduler_down(due - CLEAR_SECONDS, due):
            stay = _others(record, due, item.node, item.users)
            late = [each for each in stay if record.jobs[each.job].can_be_stopped and each.since < due - CLEAR_SECONDS]
            if len(stay) > record.node_gpus - item.gpus and late:
                text = (
                    f"job {late[0].job} can be stopped and still holds a GPU of {item.node} that is reserved for others"
                )
                yield Violation("reservations are kept", due, text, late[0].job)


def _reservations(record: Record) -> Iterator[tuple[Reservation, float, float]]:
    """Each that was seen, since when it was known, and when it was over."""
    first: dict[int, tuple[Reservation, float]] = {}
    last: dict[int, float] = {}
    for poll in record.polls:
        for item in poll.reservations:
            first.setdefault(item.id, (item, poll.ended))
            last[item.id] = poll.began
    for id, (item, known_since) in first.items():
        end_seen = last[id] if last[id] < record.polls[-1].began else item.end
        yield item, known_since, min(item.end, end_seen)


def _uses_own_reservation(record: Record, span: Span) -> bool:
    """Whether its owner then held no more of the machine than is reserved for them. Of two reservations, what an earlier
    job keeps that cannot be stopped is lacking in one."""
    owner = _owner(record, span.job)
    theirs = [
        item
        for item, known_since, over in _reservations(record)
        if item.node == span.node and owner in item.users and max(item.start, known_since) < span.since < over
    ]
    held = sum(each.node == span.node and _owner(record, each.job) == owner for each in record.held_at(span.since))
    return held <= sum(item.gpus for item in theirs)


def _others(record: Record, at: float, node: str, users: frozenset[str]) -> list[Span]:
    """GPUs of the node that others hold and keep: what they give back at that moment goes to who reserved it."""
    return [
        span
        for span in record.held_at(at)
        if span.node == node
        and _owner(record, span.job) not in users
        and (span.until is None or span.until > at + LEAVING_SECONDS)
    ]


def no_lower_layer_passes_one_that_fits(record: Record) -> Iterator[Violation]:
    """Premium before standard before basic before opportunistic: where all that wait above would fit, none below starts."""
    reported: set[tuple[int, int]] = set()
    for span in record.spans:
        lower = record.jobs[span.job].layer
        before, _ = record.around(span.since - EDGE_SECONDS)
        _, after = record.around(span.since + 1.0)
        if before is None or after is None or before.began < span.since - 2.5 or lower == 0:
            continue
        above = _steady_waiters(record, before, after, span.since, lower)
        if not above:
            continue
        free = _free_for(record, before, span, min(job.layer for job in above))
        once = (span.job, int(span.since))
        if free and once not in reported and all(_fits(record, job, free, before, span.since) for job in above):
            reported.add(once)
            names = ", ".join(f"job {job.id} ({LAYERS[job.layer]}, {job.max_gpus} GPUs)" for job in above)
            text = f"job {span.job} ({LAYERS[lower]}) got a GPU of {span.node} although {names} fitted into {free}"
            yield Violation("no lower layer passes one that fits", span.since, text, span.job)


def no_one_passes_a_strict_line_for_good(record: Record) -> Iterator[Violation]:
    """Where jobs start strictly in order, a lower layer starts only what can be stopped again."""
    for id, attempts in record.attempts.items():
        job = record.jobs[id]
        for attempt in attempts:
            at = attempt.created_at
            policy = record.policy_between(at - SEEN_SECONDS, at + EDGE_SECONDS) or ""
            if '"strict": true' not in policy or job.can_be_stopped:
                continue
            before, _ = record.around(at - EDGE_SECONDS)
            _, after = record.around(at + 1.0)
            if before is None or after is None or before.reservations:
                continue
            line = [
                each
                for each in _steady_waiters(record, before, after, at, job.layer)
                if _could_run(record, each, before, at)
            ]
            if line:
                text = f"job {id} ({LAYERS[job.layer]}, cannot be stopped) started past job {line[0].id} ({LAYERS[line[0].layer]})"
                yield Violation("no one passes a strict line for good", at, text, id)


def _steady_waiters(record: Record, before: Poll, after: Poll, at: float, lower: int) -> list[Job]:
    """Jobs of layers above that waited for a while before, and still do afterwards."""
    found = []
    for job in before.jobs.values():
        if job.layer >= lower or not job.waits or job.submitted_at > at - SEEN_SECONDS:
            continue
        polls = [*record.between(at - SEEN_SECONDS, before.ended), after]
        if all(job.id in poll.jobs and poll.jobs[job.id].waits for poll in polls):
            found.append(job)
    return found


def _free_for(record: Record, before: Poll, span: Span, layer: int) -> dict[str, int]:
    """What was free just before that cycle, less what the layers from the first to this one got then or soon after.

    A job that is about to start has GPUs kept for it while others give back the rest.
    """
    reserved = {item.node for item in before.reservations}
    free = {node.name: record.node_gpus for node in before.nodes if node.open and node.name not in reserved}
    batch = [each for each in record.spans if abs(each.since - span.since) <= TOGETHER_SECONDS]
    began = min(each.since for each in batch)
    given = [
        each
        for each in record.spans
        if began <= each.since <= span.since + SOON_SECONDS and record.jobs[each.job].layer <= layer
    ]
    for each in (*record.held_at(began - 0.01), *given):
        if each.node in free:
            free[each.node] -= 1
    return {node: gpus for node, gpus in free.items() if gpus > 0}


def _fits(record: Record, job: Job, free: dict[str, int], poll: Poll, at: float) -> bool:
    """With as many GPUs as it may have at most, so that no policy has a reason to wait for more."""
    room = max(free.values()) if job.launcher == "command" else sum(free.values())
    return job.max_gpus <= room and _is_within_limits(record, job, job.max_gpus, poll, at)


def _could_run(record: Record, job: Job, poll: Poll, at: float) -> bool:
    """On the open nodes, were they empty."""
    sizes = [len(node.holders) for node in poll.nodes if node.open]
    most = max(sizes, default=0) if job.launcher == "command" else sum(sizes)
    return job.min_gpus <= most and _is_within_limits(record, job, job.min_gpus, poll, at)


def _is_within_limits(record: Record, job: Job, gpus: int, poll: Poll, at: float) -> bool:
    """Under the smallest limits of the last seconds, with the most that their people held meanwhile."""
    for who in record.limited(job.owner):
        values = [
            value for value in record.limits_between(who, at - SEEN_SECONDS, at + EDGE_SECONDS) if value is not None
        ]
        held = max(
            sum(_owner(record, span.job) in record.people(who) for span in record.held_at(moment))
            for moment in (poll.began, at - EDGE_SECONDS, at + EDGE_SECONDS)
        )
        if values and held + gpus > min(values):
            return False
    return True


def the_timeline_equals_the_polls(record: Record) -> Iterator[Violation]:
    """Each GPU, at each poll, is held by whom the timeline names for that moment."""
    for poll in record.polls:
        if poll.nodes_ended - poll.began > 2.0:
            continue  # too slow an answer to say which moment it shows
        began, ended = poll.began - COMMIT_SECONDS, poll.nodes_ended + EDGE_SECONDS
        moments = [began, ended, *(span.since for span in record.spans if began <= span.since <= ended)]
        moments += [span.until for span in record.spans if span.until is not None and began <= span.until <= ended]
        possible: defaultdict[tuple[str, int], set[int | None]] = defaultdict(set)
        lanes = [(node.name, index) for node in poll.nodes for index in range(len(node.holders))]
        for moment in moments:
            now = {(span.node, span.index): span.job for span in record.held_at(moment)}
            for lane in lanes:
                possible[lane].add(now.get(lane))
        for node in poll.nodes:
            for index, holder in enumerate(node.holders):
                if holder not in possible[node.name, index]:
                    text = f"GPU {index} of {node.name} was seen held by {holder}; the timeline has {possible[node.name, index]}"
                    yield Violation("the timeline equals the polls", poll.began, text, holder)


def no_job_runs_below_its_minimum_in_silence(record: Record) -> Iterator[Violation]:
    """Fewer GPUs than its minimum for a while, and nothing in its history about it.

    One whose hosts end by themselves is at its end. Without any GPU: ``running_jobs_hold_gpus``.
    """
    below: dict[int, Poll] = {}
    found: set[int] = set()
    for poll in record.polls:
        now = [id for id, job in poll.jobs.items() if job.state == RUNNING and 0 < poll.held_by(id) < job.min_gpus]
        below = {id: below.get(id, poll) for id in now}
        for id, first in below.items():
            since = first.began - RECENT_SECONDS
            if poll.began - first.began < QUIET_SECONDS or id in found or _is_explained(record, id, since, poll.ended):
                continue
            found.add(id)
            held, lasted = poll.held_by(id), poll.began - first.began
            text = f"it ran on {held} GPUs for {lasted:.1f} s; its minimum is {poll.jobs[id].min_gpus}"
            yield Violation("no job runs below its minimum in silence", poll.began, text, id)


def _is_explained(record: Record, job: int, since: float, until: float) -> bool:
    parts = [part for attempt in record.attempts.get(job, ()) for part in attempt.parts]
    ends = [part.exited_at for part in parts if part.exit_reason == "exited" and part.exited_at is not None]
    return any(since < at < until for at in [*ends, *(event.at for event in record.events.get(job, ()))])


def every_waiting_job_has_a_reason(record: Record) -> Iterator[Violation]:
    """And a place in the queue, once the scheduler had time to see it."""
    waits_since: dict[int, float] = {}
    found: set[int] = set()
    for before, poll in pairs(record.polls):
        waiting = {id: job for id, job in poll.jobs.items() if job.waits}
        waits_since = {id: waits_since.get(id, before.began if id in before.jobs else poll.began) for id in waiting}
        for id, job in waiting.items():
            begun = (
                event.at for event in record.events.get(id, ()) if event.kind == "state" and event.at <= poll.ended
            )
            since = max(waits_since[id], *begun, 0.0)  # it may have been on hold, or run, between two polls
            if poll.began - since < SEEN_SECONDS + QUIET_SECONDS or id in found:
                continue
            if record.is_scheduler_down(poll.began - SEEN_SECONDS - QUIET_SECONDS, poll.ended):
                continue
            if not job.reason or job.place is None:
                found.add(id)
                text = f"it has waited for {poll.began - since:.1f} s with the reason “{job.reason}” and the place {job.place}"
                yield Violation("every waiting job has a reason", poll.began, text, id)


def _owner(record: Record, job: int) -> str:
    return record.jobs[job].owner
