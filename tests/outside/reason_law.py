"""The reasons of waiting jobs are true: no sentence contradicts itself, the job, its place, or what is visibly free."""

import re
from collections.abc import Iterator

from tests.outside.record import Job, Poll, Record, Violation, pairs

LAW = "every reason is true"
STEADY_SECONDS = 4.0
"""Only what has not changed for so long is compared: a reason is as old as the last cycle."""

NEEDS = re.compile(r"[Nn]eeds (\d+) GPUs?\b")
ONLY_FREE = re.compile(r"needs (\d+) GPUs? at once and only (\d+) (?:is|are) free")
LARGEST = re.compile(r"needs (\d+) GPUs? at once; the largest group of free ones is (\d+), on node (\S+?)[.;]")
HAVE_ONLY = re.compile(r"needs (\d+) GPUs? (?:at once|on one node), but .* (?:have|has) only (\d+)")
LIMIT = re.compile(r"[Tt]he limit of (\d+) GPUs? for ([^:]+?) is reached: (\d+) (?:is|are) in use and it needs (\d+)")
OWN_LIMIT = re.compile(r"needs (\d+) GPUs?, but the limit for ([^:]+?) is (\d+)")
AHEAD = re.compile(r"\b(\d+) jobs? (?:is|are) ahead of it")
ALL_IN_USE = re.compile(r"(?:[Aa]ll (\d+) GPUs|[Tt]he only GPU) (?:is|are) in use(?! or)")
STILL_HELD = re.compile(r"booked (\d+) GPUs? for now, but others have not given them back yet")


def every_reason_is_true(record: Record) -> Iterator[Violation]:
    reported: set[tuple[int, str]] = set()
    for before, poll in pairs(record.polls):
        for job in poll.jobs.values():
            if not job.waits or not job.reason:
                continue
            problems = [*contradictions(job), *_wrong_limits(record, job, poll)]
            if _is_steady(record, job, before, poll):
                problems += _contradicted(job, poll)
            for problem in problems:
                kind = problem.partition(":")[0]
                if (job.id, kind) not in reported:
                    reported.add((job.id, kind))
                    text = f"{problem} (“{job.reason}”, place {job.place}, under {poll.policy})"
                    yield Violation(LAW, poll.began, text, job.id)


def contradictions(job: Job) -> Iterator[str]:
    """Within the sentence, and with what the job itself asked for and its place."""
    for pattern, what in ((ONLY_FREE, "free"), (LARGEST, "free together"), (HAVE_ONLY, "there")):
        if (match := pattern.search(job.reason)) and int(match[1]) <= int(match[2]):
            yield f"enough is {what}: it needs {match[1]} of {match[2]}"
    if (match := LIMIT.search(job.reason)) and int(match[3]) + int(match[4]) <= int(match[1]):
        yield f"the limit is not reached: {match[3]} and {match[4]} are within {match[1]}"
    if (match := OWN_LIMIT.search(job.reason)) and int(match[1]) <= int(match[3]):
        yield f"its own limit lets it start: {match[1]} are within {match[3]}"
    if (match := NEEDS.search(job.reason)) and not job.min_gpus <= int(match[1]) <= job.max_gpus:
        yield f"it does not need so many: it asked for {job.min_gpus} to {job.max_gpus}"
    if (match := AHEAD.search(job.reason)) and job.place is not None and int(match[1]) != job.place - 1:
        yield f"not as many are ahead: it names {match[1]}"


def _contradicted(job: Job, poll: Poll) -> Iterator[str]:
    """By what everybody can see on the pages."""
    free = poll.free()
    reserved = {item.node for item in poll.reservations}
    above = [each for each in poll.jobs.values() if each.waits and each.id != job.id and _goes_before(each, job)]
    open_free = sum(gpus for node, gpus in free.items() if node not in reserved)
    largest = max((gpus for node, gpus in free.items() if node not in reserved), default=0)
    usable = largest if job.launcher == "command" else open_free
    if (match := ONLY_FREE.search(job.reason)) and int(match[2]) > sum(free.values()):
        yield f"fewer are free: {sum(free.values())}"
    if (match := LARGEST.search(job.reason)) and match[3] in free and int(match[2]) > free[match[3]]:
        yield f"fewer are free there: {free[match[3]]} on {match[3]}"
    if ALL_IN_USE.search(job.reason) and open_free and not above:
        yield f"some are not in use: {free}, and none of a higher tier or an earlier place waits"
    if STILL_HELD.search(job.reason) and usable >= job.max_gpus and not above:
        yield f"enough are free: {free}"


def _goes_before(other: Job, job: Job) -> bool:
    if other.layer != job.layer:
        return other.layer < job.layer
    return (other.place or 0) < (job.place or 0)


def _wrong_limits(record: Record, job: Job, poll: Poll) -> Iterator[str]:
    """A limit that is named is in force, or was a moment ago."""
    since = poll.began - STEADY_SECONDS
    for pattern, value_at in ((LIMIT, 1), (OWN_LIMIT, 3)):
        match = pattern.search(job.reason)
        if match is None or record.is_scheduler_down(since, poll.ended):
            continue
        known = record.limits_between(match[2], since, poll.ended)
        if int(match[value_at]) not in known:
            yield f"that is not the limit of {match[2]}: it is {known}"


def _is_steady(record: Record, job: Job, before: Poll, poll: Poll) -> bool:
    """Whether nothing that the sentence may be about has changed for a while."""
    polls = record.between(poll.began - STEADY_SECONDS, poll.ended)
    if before not in polls or len(polls) < 3 or record.is_scheduler_down(poll.began - STEADY_SECONDS, poll.ended):
        return False
    return all(
        job.id in each.jobs
        and each.jobs[job.id].reason == job.reason
        and each.nodes == poll.nodes
        and each.reservations == poll.reservations
        and each.policy == poll.policy
        and each.jobs.keys() == poll.jobs.keys()
        for each in polls
    )
