"""Finds the cause of an attempt from its rows and logs."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from portal.environments.models import Environment
from portal.environments.summary import has_failed
from portal.jobs import logs, network_use, rules, silence, survival
from portal.jobs.causes.cause import Cause, Facts
from portal.jobs.causes.classify import classify, end_of
from portal.jobs.causes.output import Line, Output, read_lines
from portal.jobs.environments import frameworks_of
from portal.jobs.models import Attempt, Container, Job, JobState, LogStream, Outcome
from portal.projects import store
from portal.projects.models import CodeVersion
from portal.sentences import agents

RANKS_APART_TEXT = "The ranks have not joined each other"
"""The beginning of the text of a host whose ranks each ran the whole program, as supervisors of earlier releases write it."""
STREAM_BYTES = 256 * 1024
"""What is read of the end of each stream, if all of them together stay within ``TOTAL_BYTES``."""
QUICK_BYTES = 16 * 1024
"""What is read of each while the job is locked, and at least."""
TOTAL_BYTES = 8 * 1024 * 1024
FIRST_LINE_BYTES = 256
RANK_LABEL = re.compile(r"rank (\d{1,6})")
FORMED = re.compile(r"The job now has \d+ rank")
"""The report of an elastic job's launcher that its ranks have changed."""


def without_detail(stored: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the code and the parameters of a stored cause, for a message about it; None without a cause."""
    return {"code": stored["code"], "parameters": stored["parameters"]} if stored else None


EXIT_REASONS_BY_BLAME = ("lost", "fenced", "create_error", "oom", "disk", "exited", "launch_error", "stopped", "")
"""The exit reasons by how much they explain the end of the attempt, the best explanation first."""


def _container_to_blame(containers: Sequence[Container]) -> Container | None:
    """Return the container whose end explains that of the attempt; hosts before the driver, which only reports them."""

    def rank(container: Container) -> tuple[bool, int, bool, int]:
        known = (
            EXIT_REASONS_BY_BLAME.index(container.exit_reason)
            if container.exit_reason in EXIT_REASONS_BY_BLAME
            else len(EXIT_REASONS_BY_BLAME)
        )
        well = container.exit_reason == "exited" and container.exit_code == 0
        return well, known, container.role == Container.Role.DRIVER, container.index

    return min(containers, key=rank, default=None)


def _is_final(job: Job, attempt: Attempt) -> bool:
    """Return whether the job has failed with this attempt, whose outcome may not be stored yet."""
    earlier = job.attempts.filter(number__lt=attempt.number).order_by("number").values_list("outcome", flat=True)
    return rules.job_state(job.intent, job.retries, [*earlier, attempt.outcome]) == JobState.FAILED


def _some_ended_early(containers: Sequence[Container]) -> bool:
    """Return whether some hosts ended well by themselves, not because they were taken from an elastic job, and others failed."""
    hosts = [container for container in containers if container.role == Container.Role.HOST]
    return any(survival.ended_well(host) and host.wanted == Container.Wanted.RUN for host in hosts) and any(
        host.exit_reason == "exited" and host.exit_code != 0 for host in hosts
    )


def _hint(containers: Sequence[Container]) -> dict[str, Any]:
    """Return a hint for the owner of an attempt that succeeded; empty for most."""
    apart = next((container.detail for container in containers if _is_about_ranks_apart(container.detail)), "")
    if not apart:
        return {}
    return asdict(Cause("ranks_apart", detail=apart))


def _is_about_ranks_apart(detail: Any) -> bool:
    """Whether a container ended because its ranks each ran the whole program."""
    code, text = end_of(detail)
    return code == agents.launch.RanksApart.code or text.startswith(RANKS_APART_TEXT)


def explain(
    job: Job, attempt: Attempt, containers: Sequence[Container], stream_bytes: int = STREAM_BYTES
) -> dict[str, Any]:
    """Return the cause of an ended attempt, as it is stored, from its rows and the last ``stream_bytes`` of each log.

    For an attempt that succeeded it is a hint, and empty for most.
    """
    if attempt.outcome == Outcome.SUCCEEDED:
        return _hint(containers)
    rule = survival.survival_rule_for(job, attempt)
    container = _container_to_blame(rules.judged_containers(job.elastic, containers, rule))  # as the outcome is judged
    offered_by, without = _offers(job)
    refused = network_use.last_refused(network_use.of_attempt(attempt)) if attempt.allowed_hosts else None
    facts = Facts(
        outcome=attempt.outcome,
        stop_reason=attempt.stop_reason,
        exit_code=container.exit_code if container else None,
        exit_reason=container.exit_reason if container else "",
        detail=container.detail if container else "",
        node=container.node.name if container else "",
        final=_is_final(job, attempt),
        some_ended_early=attempt.outcome == Outcome.FAILED and _some_ended_early(containers),
        time_limit_seconds=job.time_limit_seconds,
        was_silent=attempt.outcome == Outcome.TIMED_OUT and silence.was_reported(attempt),
        resumable=job.resumable,
        memory_mib=int(container.spec.get("resources", {}).get("memory_mib", 0)) if container else 0,
        offered_by=offered_by,
        without=without,
        allowed_hosts=attempt.allowed_hosts,
        refused_host=refused.host if refused else "",
        refused_reason=refused.reason if refused else "",
        launcher=job.launcher,
        command=job.entry if job.launcher == Job.Launcher.COMMAND else "",
        environment=job.environment.title,
        files=[str(entry["path"]) for entry in job.code.files],
        read_first_line=partial(_first_line, job.code),
    )
    return asdict(classify(facts, _outputs(job, attempt, containers, stream_bytes)))


def _offers(job: Job) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return which environments have a package that the job may lack, and what else of it others with the package lack.

    Only the frameworks that its present environment has are looked at: the code got as far with them.
    """
    needed = frameworks_of(job.code.guess, job.launcher).intersection(job.environment.packages)
    offered_by: dict[str, list[str]] = {}
    without: dict[str, list[str]] = {}
    for environment in Environment.objects.usable_in(job.project).exclude(has_failed()):
        lacking = sorted(needed.difference(environment.packages))
        for package in map(str, environment.packages):
            titles = offered_by.setdefault(package, [])
            if lacking:
                without[package] = lacking
            else:
                titles.append(environment.title)
    return offered_by, without


def _first_line(code: CodeVersion, path: str) -> str:
    try:
        return store.read_file(code, path, FIRST_LINE_BYTES).decode(errors="replace").partition("\n")[0]
    except (KeyError, OSError, store.MissingError):  # not one of its files, or they are gone
        return ""


def _outputs(job: Job, attempt: Attempt, containers: Sequence[Container], stream_bytes: int) -> list[Output]:
    """Return the ends of the streams of an attempt; of an elastic one what was written since its ranks last changed."""
    streams = logs.streams_of(attempt)
    limit = max(QUICK_BYTES, min(stream_bytes, TOTAL_BYTES // max(1, len(streams))))
    ranks = Counter(stream.container_id for stream in streams if stream.name != "setup")
    exit_codes = {container.pk: container.exit_code for container in containers}
    outputs = [
        Output(
            _last_lines(stream, limit),
            host=stream.container.index,
            slot=stream.name,
            rank=_rank_of(stream),
            exit_code=exit_codes.get(stream.container_id) if ranks[stream.container_id] == 1 else None,
        )
        for stream in streams
    ]
    changed = max(
        (line.ms for each in outputs if each.is_setup for line in each.lines if FORMED.match(line.text)), default=0
    )
    if not job.elastic or not changed:
        return outputs
    return [replace(each, lines=[line for line in each.lines if not line.ms or line.ms >= changed]) for each in outputs]


def _last_lines(stream: LogStream, limit: int) -> list[Line]:
    start = max(0, stream.size - limit)
    return read_lines(logs.read(stream, start, limit), start, logs.read_marks(stream))


def _rank_of(stream: LogStream) -> int | None:
    found = RANK_LABEL.fullmatch(logs.label_of(stream))
    return int(found[1]) if found else None
