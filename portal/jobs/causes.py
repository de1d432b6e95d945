"""Finds why an attempt did not succeed, in words for the user who submitted it, with one next step.

``classify`` is pure: it returns a cause for the facts and the end of the log. The log counts more than the exit code,
because the exit code of a killed or crashed rank rarely names the reason.
"""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from portal.cluster.models import Environment
from portal.jobs import logs, rules, silence, survival
from portal.jobs.models import Attempt, Container, Job, JobState, Outcome, StopReason


class Cause(TypedDict):
    code: str
    title: str
    detail: str
    advice: str


@dataclass(frozen=True, slots=True)
class Facts:
    """The stored facts about an attempt that has ended."""

    outcome: str
    stop_reason: str = ""
    exit_code: int | None = None
    exit_reason: str = ""
    detail: str = ""
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
    """A cause that is recognised in the log. ``{1}`` stands for the text of the first group."""

    code: str
    regex: re.Pattern[str]
    title: str
    advice: str


def _pattern(code: str, regex: str, title: str, advice: str) -> Pattern:
    return Pattern(code, re.compile(regex, re.MULTILINE), title, advice)


GPU_MEMORY = (
    "Use a smaller batch, or more GPUs so that each holds less. With schedulearn_train Run(..., most_samples=N) computes "
    "what does not fit at once in several passes."
)
PATTERNS = (
    # An error of one rank comes first: it makes the other ranks report a broken connection.
    _pattern(
        "ranks_diverged",
        r"^.*RanksDivergedError: .+?\.(?= |$)",
        "The ranks no longer trained the same model",
        "Update parameters by run.step alone, and write or initialise weights with the same random numbers on all ranks. Where "
        "parameters are meant to differ, pass Run(..., check_divergence=False).",
    ),
    _pattern(
        "gpu_out_of_memory",
        r"^.*(?:OutOfMemoryError|CUDA out of memory|CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED).*$",
        "The GPU's memory was not enough",
        GPU_MEMORY,
    ),
    _pattern(
        "import_error",
        r"^ModuleNotFoundError: No module named '([\w.]+)'",
        "The package {1} is missing",
        "",  # depends on the environments that have it
    ),
    _pattern(
        "import_error",
        r"^ImportError: (.+)$",
        "An import failed",
        "Check that your code fits the versions in this environment; its page lists them.",
    ),
    _pattern(
        "syntax_error",
        r"^(?:SyntaxError|IndentationError|TabError): (.+)$",
        "Python could not read the code",
        "Fix the line shown at the end of the log and upload the code again.",
    ),
    _pattern(
        "file_not_found",
        r"^FileNotFoundError: .*?'([^'\n]+)'",
        "The file {1} was not there",
        "Upload it with the code (files are in /workspace) or check its name, capital letters included.",
    ),
    _pattern(
        "file_not_found",
        r"can't open file '([^'\n]+)'",
        "The file {1} was not there",
        "Choose one of the uploaded files as the entry.",
    ),
    _pattern(
        "disk_full",
        r"^.*(?:No space left on device|Disk quota exceeded).*$",
        "The disk was full",
        "Write less: keep fewer checkpoints, and delete files you no longer need while the job runs.",
    ),
    _pattern(
        "not_writable",
        r"^(?:PermissionError|OSError): .*(?:Permission denied|Read-only file system)(?:: '([^'\n]+)')?.*$",
        "The job may not write there",
        "Write results to the folder in SCHEDULEARN_OUTPUTS and checkpoints to the one in SCHEDULEARN_CHECKPOINTS.",
    ),
    _pattern(
        "shared_memory",
        r"^.*(?:killed by signal: Bus error|unable to (?:open|allocate|mmap).*shared memory|out of shared memory).*$",
        "Shared memory was not enough",
        "Give your DataLoader fewer workers (num_workers=0 uses none).",
    ),
    _pattern(
        "gpu_hardware",
        r"^.*(?:uncorrectable ECC error|CUDA error: unspecified launch failure|GPU has fallen off the bus|Xid).*$",
        "A GPU reported a fault",
        "Submit it again; if it happens on the same node, report it to an admin.",
    ),
    _pattern(
        "no_gpu",
        r"^.*(?:No CUDA GPUs are available|Found no NVIDIA driver|Torch not compiled with CUDA|driver version is insufficient).*$",
        "The code asked for a CUDA GPU where there is none",
        "Choose the device by torch.cuda.is_available(), or an environment made for the lab's GPUs.",
    ),
    _pattern(
        "cuda_error",
        r"^.*CUDA error: (.+)$",
        "A CUDA operation failed",
        "Often an index out of range, e.g. a label beyond the last class. Run it once on the CPU: the message will be clearer.",
    ),
    _pattern(
        "out_of_memory",
        r"^(?:MemoryError|.*Cannot allocate memory|.*DefaultCPUAllocator: can't allocate memory).*$",
        "The machine's memory was not enough",
        "Load less data at once, or use fewer DataLoader workers.",
    ),
    _pattern(
        "arguments",
        r"^[^\n]*: error: ((?:unrecognized arguments|the following arguments are required|argument ).+)$",
        "The script did not accept its arguments",
        "Compare the arguments of the job with what the script expects.",
    ),
    _pattern(
        "no_internet",
        r"^.*(?:Temporary failure in name resolution|Name or service not known|Network is unreachable|Max retries exceeded with url|urlopen error).*$",
        "The job tried to reach the Internet",
        "Jobs have no access to it. Upload the data with the code, or ask an admin to put it under /data.",
    ),
    _pattern(
        "rank_hangs",
        r"^(?:Missing ranks:\n(?:\d+!?: .*\n)+)?.*is stalled for longer than (\d+) seconds.*$",
        "A rank let the others wait for more than {1} s",
        "All ranks must take the same steps. If one really takes longer alone, give the job the variable "
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS with more seconds (0: the others wait without limit).",
    ),
    # Last: the ranks that are left report a broken connection.
    _pattern(
        "ring",
        r"^.*(?:HorovodInternalError|ncclSystemError|ncclInternalError|ncclRemoteError|NCCL error|DistBackendError|connectFullMesh|"
        r"Watchdog caught collective operation timeout|Gloo.*(?:failed|timed? ?out)|Connection (?:reset|closed) by peer).*$",
        "The ranks lost each other",
        "Look for the rank that ended first. If none reports an error, submit it again and report it to an admin.",
    ),
)

EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Timeout)\b(?::.*)?$", re.MULTILINE
)
NOT_TRIED_AGAIN = "It has happened too often in a row to be tried again. Report it to an admin, and submit the job again when it is fixed."
LONGER = "Submit it again with a longer time limit; it can restart from what it wrote to /checkpoints only if the code does so."
MAY_HAVE_HUNG = (
    "It ran without output for a long time (see its history), so it may have hung: look at the end of its log first. If it "
    "was still computing, submit it again with a longer time limit."
)
STOOD_STILL = re.compile(r"^Process \d+ was stopped by a signal (\d+) s ago and not woken: it is ended$", re.MULTILINE)
"""The message of the supervisor (``runners/launch``)."""
APART = "The ranks have not joined each other"
"""The beginning of the message of a host whose ranks each ran the whole program (``runners/launch``)."""
EARLY = "A rank ended without an error while others still worked: all ranks must run the same number of steps."


def classify(facts: Facts, tail: str) -> Cause:
    """Return the cause of an attempt that did not succeed."""
    cause = (
        _by_outcome(facts)
        or _by_reason(facts)
        or _by_standstill(facts, tail)
        or _by_log(facts, tail)
        or _by_exit(facts, tail)
    )
    if facts.some_ended_early:
        cause["detail"] = f"{cause['detail']}\n{EARLY}".strip()
    return cause


def _by_outcome(facts: Facts) -> Cause | None:
    match facts.outcome:
        case Outcome.CANCELLED:
            return Cause(code="cancelled", title="Cancelled", detail="", advice="")
        case Outcome.HELD:
            return Cause(
                code="held",
                title="Put on hold",
                detail="",
                advice="Release the job to restart it from its checkpoints.",
            )
        case Outcome.PREEMPTED:
            drained = facts.stop_reason == StopReason.DRAINED
            title = "Its node is being drained" if drained else "Stopped to make room for others"
            then = "restarts from its checkpoint" if facts.resumable else "restarts from the beginning"
            return Cause(code="preempted", title=title, detail="", advice=f"Nothing: it {then} automatically.")
        case Outcome.TIMED_OUT:
            return Cause(
                code="time_limit",
                title=f"It reached its time limit of {duration(facts.time_limit_seconds)}",
                detail="",
                advice=MAY_HAVE_HUNG if facts.was_silent else LONGER,
            )
        case Outcome.LOST:
            where = f" {facts.node}" if facts.node else ""
            title = f"The node{where} was cut off" if facts.exit_reason == "fenced" else f"The node{where} was lost"
            return Cause(
                code="node_lost",
                title=title,
                detail=facts.detail,
                advice=NOT_TRIED_AGAIN if facts.final else "Nothing: it restarts on another node.",
            )
    return None


def _by_reason(facts: Facts) -> Cause | None:
    if facts.exit_reason == "oom":
        limit = f" of {facts.memory_mib} MiB" if facts.memory_mib else ""
        return Cause(
            code="out_of_memory",
            title=f"It needed more memory than its limit{limit}",
            detail=facts.detail,
            advice="Load less data at once, use fewer DataLoader workers, or a smaller batch.",
        )
    if facts.exit_reason == "disk":
        return Cause(
            code="disk_full",
            title="It wrote more than its disk limit",
            detail=facts.detail,
            advice="Keep fewer checkpoints, and delete files you no longer need while the job runs.",
        )
    if facts.exit_reason == "create_error":
        image = re.search(r"image|environment", facts.detail, re.IGNORECASE)
        return Cause(
            code="environment" if image else "node_trouble",
            title="Its environment was not ready on the node"
            if image
            else f"The node {facts.node} could not start it".replace("  ", " "),
            detail=facts.detail,
            advice=_advice_on_error(facts),
        )
    if facts.stop_reason == StopReason.STUCK:
        return Cause(
            code="stuck",
            title="The node did not get it started in time",
            detail=facts.detail,
            advice=_advice_on_error(facts),
        )
    return None


def _advice_on_error(facts: Facts) -> str:
    then = NOT_TRIED_AGAIN if facts.final else "It is tried again; report it to an admin if that fails too."
    return f"This is not your code's fault. {then}"


def _by_standstill(facts: Facts, tail: str) -> Cause | None:
    """Return the cause of an attempt with a process that was stopped by a signal and killed in the end.

    This is checked before the other patterns, since the other ranks report a broken connection. An elastic job may have
    continued without that process, so the exit code must be that of a kill.
    """
    found = STOOD_STILL.search(tail)
    if found is None or facts.exit_code not in (128 + signal.SIGKILL, -signal.SIGKILL):
        return None
    return Cause(
        code="stood_still",
        title=f"A process stood still for {found.group(1)} s and was ended",
        detail=found.group(0),
        advice="Something sent it SIGSTOP. Check what stops processes in your code; a debugger must detach from them.",
    )


def _by_log(facts: Facts, tail: str) -> Cause | None:
    for pattern in PATTERNS:
        found = next(reversed(list(pattern.regex.finditer(tail))), None)
        if found is None:
            continue
        first = (found.group(1) or "") if pattern.regex.groups else ""
        advice = pattern.advice or _advice_on_import(first, facts.offered_by)
        return Cause(
            code=pattern.code,
            title=pattern.title.replace("{1}", first[:120]),
            detail=found.group(0).strip()[:500],
            advice=advice,
        )
    return None


def _advice_on_import(module: str, offered_by: Mapping[str, Sequence[str]]) -> str:
    titles = offered_by.get(module.partition(".")[0], ())
    if titles:
        return f"Choose the environment {' or '.join(titles)}, which has it."
    return "If it is a file of yours, upload it with the code. If it is a package, ask an admin: no environment has it."


def _by_exit(facts: Facts, tail: str) -> Cause:
    if facts.exit_reason == "launch_error":
        return Cause(
            code="launch",
            title="The ranks could not be brought together",
            detail=facts.detail,
            advice=_advice_on_error(facts),
        )
    code = facts.exit_code
    if code is None:
        return Cause(
            code="unknown",
            title="It ended without a reason",
            detail=facts.detail,
            advice="Look at the end of the log; submit it again if there is no error.",
        )
    number = -code if code < 0 else code - 128 if code > 128 else 0
    if number == signal.SIGKILL:
        return Cause(
            code="killed",
            title="A rank was killed, most likely because it was out of memory",
            detail=facts.detail,
            advice="Load less data at once, or use fewer DataLoader workers.",
        )
    exceptions = EXCEPTION.findall(tail)
    if exceptions:
        return Cause(
            code="exception",
            title=f"The code raised {exceptions[-1].partition(':')[0].rpartition('.')[2]}",
            detail=exceptions[-1][:500],
            advice="The log shows the line it came from, just above the message.",
        )
    if name := _signal_name(number):
        return Cause(
            code="signal",
            title=f"A rank was ended by {name}",
            detail=facts.detail,
            advice="A crash in compiled code. Run it once on one GPU: the log may then show where.",
        )
    return Cause(
        code="exit_code",
        title=f"It ended with exit code {code}",
        detail=facts.detail,
        advice="Look at the end of the log: the last lines usually show why.",
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def duration(seconds: int) -> str:
    """Format a duration in its two largest units: ``90`` is ``1 min 30 s``."""
    parts = []
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


# --- from the rows -----------------------------------------------------------------------------------------------

BLAME = ("lost", "fenced", "create_error", "oom", "disk", "exited", "launch_error", "stopped", "")
"""The exit reasons by how much they explain the end of the attempt, the best explanation first."""


def _to_blame(containers: Sequence[Container]) -> Container | None:
    """Return the container whose end explains that of the attempt; hosts before the driver, which only reports them."""

    def rank(container: Container) -> tuple[bool, int, bool, int]:
        known = BLAME.index(container.exit_reason) if container.exit_reason in BLAME else len(BLAME)
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


def _hint(containers: Sequence[Container]) -> dict[str, object]:
    """Return a hint for the owner of an attempt that succeeded; empty for most."""
    apart = next((container.detail for container in containers if container.detail.startswith(APART)), "")
    if not apart:
        return {}
    hint = Cause(
        code="ranks_apart",
        title="Its ranks did not work together",
        detail=apart,
        advice=(
            "Let it train with schedulearn_train, Horovod or torch.distributed, or submit it as a single rank, "
            "which takes as long. If it divides its work by rank itself, there is nothing to do."
        ),
    )
    return dict(hint)


def explain(job: Job, attempt: Attempt, containers: Sequence[Container]) -> dict[str, object]:
    """Return the cause of an ended attempt from its rows and logs; for one that succeeded a hint, which may be empty."""
    if attempt.outcome == Outcome.SUCCEEDED:
        return _hint(containers)
    rule = survival.survival_rule_for(job, attempt)
    container = _to_blame(rules.judged(job.elastic, containers, rule))  # as the outcome is judged
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
    return dict(classify(facts, logs.tail(attempt)))
