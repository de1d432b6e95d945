"""What jobs that are compared have in common and what differs: their parameters, and the results of their curves."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from django.db.models import Max, Min

from portal.accounts.models import User
from portal.charts import format_number
from portal.jobs.models import Job, MetricPoint
from portal.jobs.permissions import env_vars_for

MAX_LABEL_LENGTH = 60
SETTING = re.compile(r"\+{0,2}[A-Za-z_][\w./-]*=")
"""A parameter without dashes, as Hydra and many scripts read them: ``optimizer.lr=0.1``."""
NUMBER = re.compile(r"-\.?\d")
LOWER_IS_BETTER = {
    "loss", "error", "err", "perplexity", "ppl", "mse", "mae", "rmse", "mape", "nll", "wer", "cer", "fid", "eer", "kl", "bpc",
    "bpb", "latency", "regret",
}  # fmt: skip
HIGHER_IS_BETTER = {
    "acc", "accuracy", "f1", "auc", "auroc", "precision", "recall", "bleu", "rouge", "map", "iou", "miou", "dice", "score",
    "reward", "return", "r2", "psnr", "ssim", "top1", "top5", "throughput",
}  # fmt: skip
FASTER = "per second"


@dataclass(frozen=True, slots=True)
class Difference:
    """A parameter in which jobs differ, with the value of each; empty for a job without it."""

    name: str
    values: tuple[str, ...]
    is_option: bool
    """It is on the command line or an environment variable; the others are fields of the form."""


@dataclass(frozen=True, slots=True)
class Result:
    """The last and the best value of a metric in one job, as text; empty for a job that did not report it."""

    last: str = ""
    best: str = ""
    leads: bool = False
    """No other job has a better one."""


@dataclass(frozen=True, slots=True)
class Results:
    """A metric of all jobs that are compared."""

    name: str
    best: str
    """What the best value is: "lowest", "highest", or "range" where neither is known to be better."""
    per_job: tuple[Result, ...]


def options_of(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options of a command line with their values; a flag has the value "yes"."""
    place = 0
    while place < len(words):
        word, following = words[place], words[place + 1] if place + 1 < len(words) else ""
        place += 1
        if SETTING.match(word):
            name, _, value = word.partition("=")
            yield name, value
        elif not word.startswith("-") or NUMBER.match(word) or word in ("-", "--"):
            continue
        elif "=" in word:
            name, _, value = word.partition("=")
            yield name, value
        elif following and (not following.startswith("-") or NUMBER.match(following)) and not SETTING.match(following):
            yield word, following
            place += 1
        else:
            yield word, "yes"


def _words(job: Job) -> list[str]:
    if job.launcher != Job.Launcher.COMMAND:
        return [str(each) for each in job.arguments]
    try:
        return shlex.split(job.command_line)
    except ValueError:  # a shell would refuse it, too
        return job.command_line.split()


def _options(user: User, job: Job) -> dict[str, str]:
    variables = {name: value for name, value in env_vars_for(user, job).items() if value is not None}
    return {**variables, **dict(options_of(_words(job)))}


def _fields(job: Job) -> dict[str, str]:
    gpus = str(job.min_gpus) if job.min_gpus == job.max_gpus else f"{job.min_gpus} to {job.max_gpus}"
    return {
        "Project": job.project.name,
        "Code version": str(job.code.number),
        "Runs": job.entry,
        "Launcher": job.get_launcher_display(),
        "Environment": job.environment.title,
        "GPUs": gpus,
        "Updates": job.get_mode_display() if job.mode else "",
    }


def differences(user: User, jobs: Sequence[Job]) -> list[Difference]:
    """Return the parameters in which the jobs differ: options and variables first."""
    found = []
    for is_option, of_jobs in ((True, [_options(user, job) for job in jobs]), (False, [_fields(job) for job in jobs])):
        for name in dict.fromkeys(name for of_job in of_jobs for name in of_job):
            values = tuple(of_job.get(name, "") for of_job in of_jobs)
            if len(set(values)) > 1:
                found.append(Difference(name, values, is_option))
    return found


def labels(jobs: Sequence[Job], found: Sequence[Difference]) -> dict[int, str]:
    """Return a name for the curves of each job: its number, its name, and the options in which it differs."""
    named = {}
    for place, job in enumerate(jobs):
        options = [_option_text(each.name, each.values[place]) for each in found if each.is_option]
        about = ", ".join(text for text in options if text and text not in job.name)
        if len(about) > MAX_LABEL_LENGTH:
            about = f"{about[:MAX_LABEL_LENGTH].rstrip()}…"
        named[job.pk] = f"#{job.pk} {job.name}" + (f" · {about}" if about else "")
    return named


def _option_text(name: str, value: str) -> str:
    if not value or value == "yes":
        return name if value else ""
    return f"{name} {value}" if name.startswith("-") else f"{name}={value}"


def best_of(name: str) -> str:
    """Return "lowest" or "highest", whichever is better of the metric of this name, and "range" if that is not known."""
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    if words & LOWER_IS_BETTER:
        return "lowest"
    return "highest" if words & HIGHER_IS_BETTER or FASTER in name.lower() else "range"


class _Ends(NamedTuple):
    """Of a metric of a job: the number of its last point, and the range of its values."""

    newest: int
    least: float
    greatest: float


def results(jobs: Sequence[Job], names: Sequence[str]) -> list[Results]:
    """Return the last and best values of each metric, in two queries."""
    points = MetricPoint.objects.filter(attempt__job__in=jobs, name__in=names)
    groups = points.values_list("attempt__job", "name").order_by()
    ends = {
        (job, name): _Ends(*values)
        for job, name, *values in groups.annotate(newest=Max("pk"), least=Min("value"), greatest=Max("value"))
    }
    newest = MetricPoint.objects.filter(pk__in=[each.newest for each in ends.values()])
    last = dict(newest.values_list("pk", "value"))
    return [_results(name, [ends.get((job.pk, name)) for job in jobs], last) for name in names]


def _results(name: str, ends: Sequence[_Ends | None], last: Mapping[int, float]) -> Results:
    kind = best_of(name)
    bests = [_best(each, kind) for each in ends if each]
    leading = (min(bests) if kind == "lowest" else max(bests)) if len(bests) > 1 and kind != "range" else None
    per_job = []
    for each in ends:
        if each is None:
            per_job.append(Result())
            continue
        span = f"{format_number(each.least)} to {format_number(each.greatest)}"
        best = span if kind == "range" else format_number(_best(each, kind))
        per_job.append(Result(format_number(last[each.newest]), best, _best(each, kind) == leading))
    return Results(name, kind, tuple(per_job))


def _best(ends: _Ends, kind: str) -> float:
    return ends.least if kind == "lowest" else ends.greatest
