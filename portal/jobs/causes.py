"""Finds why an attempt did not succeed; ``portal/sentences/causes.py`` has the words for it, with one next step.

``classify`` is pure: it returns a cause for the facts and the end of the log. The log counts more than the exit code,
because the exit code of a killed or crashed rank rarely names the reason.
"""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from portal.cluster.models import Environment
from portal.jobs import logs, rules, silence, survival
from portal.jobs.models import Attempt, Container, Job, JobState, Outcome, StopReason
from portal.sentences import agents


@dataclass(frozen=True, slots=True)
class Cause:
    """Why an attempt did not succeed; stored as JSON."""

    code: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    detail: Any = ""
    """A quotation of the log, or the ``detail`` of a container."""
    ended_early: bool = False
    """A host ended without an error while others still worked."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The stored facts about an attempt that has ended."""

    outcome: str
    stop_reason: str = ""
    exit_code: int | None = None
    exit_reason: str = ""
    detail: Any = ""
    """As ``Container.detail`` has it."""
    node: str = ""
    """The node of the container to blame."""
    final: bool = False
    """The job has failed with this attempt: no other follows."""
    some_ended_early: bool = False
    """A host ended without an error while others still worked."""
    time_limit_seconds: int = 0
    was_silent: bool = False
    """A silence of this attempt was reported."""
    resumable: bool = False
    memory_mib: int = 0
    offered_by: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The titles of the environments that have a package, by its import name."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A cause that is recognised in the log. The named groups are its parameters."""

    code: str
    regex: re.Pattern[str]


def _pattern(code: str, regex: str) -> Pattern:
    return Pattern(code, re.compile(regex, re.MULTILINE))


PATTERNS = (
    # An error of one rank comes first: it makes the other ranks report a broken connection.
    _pattern("ranks_diverged", r"^.*RanksDivergedError: .+?\.(?= |$)"),
    _pattern(
        "gpu_out_of_memory",
        r"^.*(?:OutOfMemoryError|CUDA out of memory|CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED).*$",
    ),
    _pattern("import_error", r"^ModuleNotFoundError: No module named '(?P<module>[\w.]+)'"),
    _pattern("import_error", r"^ImportError: .+$"),
    _pattern("syntax_error", r"^(?:SyntaxError|IndentationError|TabError): .+$"),
    _pattern("file_not_found", r"^FileNotFoundError: .*?'(?P<file>[^'\n]+)'"),
    _pattern("file_not_found", r"can't open file '(?P<entry>[^'\n]+)'"),
    _pattern("disk_full", r"^.*(?:No space left on device|Disk quota exceeded).*$"),
    _pattern("not_writable", r"^(?:PermissionError|OSError): .*(?:Permission denied|Read-only file system).*$"),
    _pattern(
        "shared_memory",
        r"^.*(?:killed by signal: Bus error|unable to (?:open|allocate|mmap).*shared memory|out of shared memory).*$",
    ),
    _pattern(
        "gpu_hardware",
        r"^.*(?:uncorrectable ECC error|CUDA error: unspecified launch failure|GPU has fallen off the bus|Xid).*$",
    ),
    _pattern(
        "no_gpu",
        r"^.*(?:No CUDA GPUs are available|Found no NVIDIA driver|Torch not compiled with CUDA|driver version is insufficient).*$",
    ),
    _pattern("cuda_error", r"^.*CUDA error: .+$"),
    _pattern(
        "out_of_memory", r"^(?:MemoryError|.*Cannot allocate memory|.*DefaultCPUAllocator: can't allocate memory).*$"
    ),
    _pattern(
        "arguments", r"^[^\n]*: error: (?:unrecognized arguments|the following arguments are required|argument ).+$"
    ),
    _pattern(
        "no_internet",
        r"^.*(?:Temporary failure in name resolution|Name or service not known|Network is unreachable|Max retries exceeded with url|urlopen error).*$",
    ),
    _pattern(
        "rank_hangs", r"^(?:Missing ranks:\n(?:\d+!?: .*\n)+)?.*is stalled for longer than (?P<seconds>\d+) seconds.*$"
    ),
    # Last: the ranks that are left report a broken connection.
    _pattern(
        "ring",
        r"^.*(?:HorovodInternalError|ncclSystemError|ncclInternalError|ncclRemoteError|NCCL error|DistBackendError|connectFullMesh|"
        r"Watchdog caught collective operation timeout|Gloo.*(?:failed|timed? ?out)|Connection (?:reset|closed) by peer).*$",
    ),
)

EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Timeout)\b(?::.*)?$", re.MULTILINE
)
STOPPED_PROCESS = re.compile(
    r"^Process \d+ was stopped by a signal (\d+) s ago and not woken: it is ended$", re.MULTILINE
)
"""The message of the supervisor (``runners/launch``)."""
ENVIRONMENT_CODES = {
    agents.containers.EnvironmentFailed.code,
    agents.containers.EnvironmentMissing.code,
    agents.containers.ImageGone.code,
}
ENVIRONMENT_TEXT = re.compile(r"image|environment", re.IGNORECASE)
"""What agents of earlier releases, which report text, write when an environment is missing."""
RANKS_APART_TEXT = "The ranks have not joined each other"
"""The beginning of the text of a host whose ranks each ran the whole program, as supervisors of earlier releases write it."""


def classify(facts: Facts, tail: str) -> Cause:
    """Return the cause of an attempt that did not succeed."""
    cause = (
        _cause_from_outcome(facts)
        or _cause_from_reason(facts)
        or _cause_from_stopped_process(facts, tail)
        or _cause_from_log(facts, tail)
        or _cause_from_exit(facts, tail)
    )
    return replace(cause, ended_early=facts.some_ended_early)


def _cause_from_outcome(facts: Facts) -> Cause | None:
    match facts.outcome:
        case Outcome.CANCELLED:
            return Cause("cancelled")
        case Outcome.HELD:
            return Cause("held")
        case Outcome.PREEMPTED:
            drained = facts.stop_reason == StopReason.DRAINED
            return Cause("preempted", {"drained": drained, "resumable": facts.resumable})
        case Outcome.TIMED_OUT:
            return Cause("time_limit", {"seconds": facts.time_limit_seconds, "was_silent": facts.was_silent})
        case Outcome.LOST:
            fenced = facts.exit_reason == "fenced"
            return Cause("node_lost", {"node": facts.node, "fenced": fenced, "final": facts.final}, facts.detail)
    return None


def _cause_from_reason(facts: Facts) -> Cause | None:
    if facts.exit_reason == "oom":
        return Cause("out_of_memory", {"over_limit": True, "limit_mib": facts.memory_mib}, facts.detail)
    if facts.exit_reason == "disk":
        return Cause("disk_full", {"over_limit": True}, facts.detail)
    if facts.exit_reason == "create_error":
        if _is_about_environment(facts.detail):
            return Cause("environment", {"final": facts.final}, facts.detail)
        return Cause("node_trouble", {"node": facts.node, "final": facts.final}, facts.detail)
    if facts.stop_reason == StopReason.STUCK:
        return Cause("stuck", {"final": facts.final}, facts.detail)
    return None


def _cause_from_stopped_process(facts: Facts, tail: str) -> Cause | None:
    """Return the cause of an attempt with a process that was stopped by a signal and killed in the end.

    This is checked before the other patterns, since the other ranks report a broken connection. An elastic job may have
    continued without that process, so the exit code must be that of a kill.
    """
    found = STOPPED_PROCESS.search(tail)
    if found is None or facts.exit_code not in (128 + signal.SIGKILL, -signal.SIGKILL):
        return None
    return Cause("stood_still", {"seconds": found.group(1)}, found.group(0))


def _cause_from_log(facts: Facts, tail: str) -> Cause | None:
    for pattern in PATTERNS:
        found = next(reversed(list(pattern.regex.finditer(tail))), None)
        if found is None:
            continue
        parameters: dict[str, Any] = {name: text[:120] for name, text in found.groupdict().items()}
        if module := parameters.get("module"):
            parameters["environments"] = list(facts.offered_by.get(module.partition(".")[0], ()))
        return Cause(pattern.code, parameters, found.group(0).strip()[:500])
    return None


def _cause_from_exit(facts: Facts, tail: str) -> Cause:
    if facts.exit_reason == "launch_error":
        return Cause("launch", {"final": facts.final}, facts.detail)
    code = facts.exit_code
    if code is None:
        return Cause("unknown", detail=facts.detail)
    number = -code if code < 0 else code - 128 if code > 128 else 0
    if number == signal.SIGKILL:
        return Cause("killed", detail=facts.detail)
    exceptions = EXCEPTION.findall(tail)
    if exceptions:
        name = exceptions[-1].partition(":")[0].rpartition(".")[2]
        return Cause("exception", {"name": name}, exceptions[-1][:500])
    if name := _signal_name(number):
        return Cause("signal", {"name": name}, facts.detail)
    return Cause("exit_code", {"number": code}, facts.detail)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def without_detail(stored: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the code and the parameters of a stored cause, for a message about it; None without a cause."""
    return {"code": stored["code"], "parameters": stored["parameters"]} if stored else None


# --- from the rows -----------------------------------------------------------------------------------------------

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
    code, text = _end(detail)
    return code == agents.launch.RanksApart.code or text.startswith(RANKS_APART_TEXT)


def _is_about_environment(detail: Any) -> bool:
    """Whether a container was not created because its node does not have its environment."""
    code, text = _end(detail)
    return code in ENVIRONMENT_CODES or ENVIRONMENT_TEXT.search(text) is not None


def _end(detail: Any) -> tuple[str, str]:
    """Return how a container ended, without a remark: the code of a message and no text, or no code and a text."""
    if not isinstance(detail, dict):
        return "", str(detail or "")
    if detail.get("code") == agents.containers.WithRemark.code:
        return _end(detail.get("end"))
    if detail.get("code") == agents.Quotation.code:
        return "", str(detail.get("quoted", ""))
    return str(detail.get("code", "")), ""


def explain(job: Job, attempt: Attempt, containers: Sequence[Container]) -> dict[str, Any]:
    """Return the cause of an ended attempt, as it is stored, from its rows and logs.

    For an attempt that succeeded it is a hint, and empty for most.
    """
    if attempt.outcome == Outcome.SUCCEEDED:
        return _hint(containers)
    rule = survival.survival_rule_for(job, attempt)
    container = _container_to_blame(rules.judged_containers(job.elastic, containers, rule))  # as the outcome is judged
    offered_by: dict[str, list[str]] = {}
    for environment in Environment.objects.filter(retired=False):
        for package in environment.packages:
            offered_by.setdefault(str(package), []).append(environment.title)
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
    )
    return asdict(classify(facts, logs.tail(attempt)))
