"""Workloads from files: the formats of published traces, and a simple one of our own.

Ours is CSV with a header, or JSON, a list of objects with the same names:

    id, submitted, seconds, gpus                   required: when (seconds, or date and time), and the duration on these GPUs
    owner, group, min_gpus, max_gpus, priority, tier, weight, script, batch, deadline, elastic, preemptible, opportunistic,
    restart_seconds, resize_seconds, start_seconds, checkpoint_seconds                                    as in types.Job
    gpu_memory_gib, gpu_kinds (with | between them), same_gpu_kind                        which GPUs the job accepts: any by default
"""

import csv
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scheduling.simulate import pollux
from scheduling.simulate.inputs import Submission
from scheduling.simulate.pollux import Mode
from scheduling.simulate.truth import Knowledge, Plain, lasts, linear
from scheduling.toolkit import estimates
from scheduling.types import ANY_GPU, Curve, GpuRequest, Job

Throughputs = Mapping[str, Mapping[int, Curve]]
"""Curves by model and total batch."""
ELASTIC_TIMES = 4
"""The maximum of elastic jobs, in multiples of the GPUs asked for, where a trace has no range."""


def read(
    path: Path,
    profiles: Path | None = None,
    mode: Mode | None = None,
    *,
    knowledge: Knowledge = "oracle",
    whole_seconds: bool = False,
    node_gpus: int = pollux.NODE_GPUS,
) -> list[Submission]:
    """Read the jobs of a trace in any of these formats. Raises ValueError with a sentence for any other file.

    ``profiles`` is a folder of measured speeds, Pollux's or ElasticFlow's. Without ``mode`` jobs are as in the trace, and
    rigid by default.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"The trace {path} cannot be read: {error}.") from error
    rows, kind = _parse_rows(text, path)
    try:
        if kind == "pollux":
            if profiles is None:
                raise ValueError(
                    "This trace names applications: pass the folder of their measured speeds with --profiles."
                )
            applications = pollux.read_profiles(profiles)
            return pollux.read_workload(
                text, applications, mode or "rigid",
                knowledge=knowledge, whole_seconds=whole_seconds, node_gpus=node_gpus,
            )  # fmt: skip
        if kind == "philly":
            return [_with_mode(item, mode) for item in _philly(rows, knowledge)]
        if kind == "prototype":
            return [_with_mode(item, mode) for item in _prototype(rows, knowledge)]
        speeds = read_throughputs(profiles) if profiles is not None else {}
        return [_with_mode(item, mode) for item in _plain(rows, speeds, knowledge)]
    except KeyError as error:
        raise ValueError(f"The trace {path} has no column {error}.") from error


def _parse_rows(text: str, path: Path) -> tuple[list[dict[str, Any]], str]:
    if text.lstrip().startswith("["):
        try:
            rows = json.loads(text)
        except ValueError as error:
            raise ValueError(f"The trace {path} is not valid JSON: {error}.") from error
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError(f"The trace {path} must be a list of objects, one for each job.")
        return rows, "plain"
    reader = csv.DictReader(text.splitlines())
    names = set(reader.fieldnames or ())
    known = {
        "pollux": {"name", "time", "application", "num_replicas", "batch_size"},
        "philly": {"timestamp", "duration", "num_gpus"},
        "prototype": {"job", "framework", "required_gpus", "submitted_s", "started_s", "completed_s"},
        "plain": {"id", "submitted", "seconds", "gpus"},
    }
    for kind, needed in known.items():
        if needed <= names:
            return list(reader), kind
    raise ValueError(f"The trace {path} is in an unknown format; scheduling/simulate/traces.py lists the known ones.")


def _philly(rows: Iterable[Mapping[str, str]], knowledge: Knowledge) -> Iterable[Submission]:
    """Read Microsoft's Philly trace, condensed: virtual clusters count as owners, and all jobs are preemptible."""
    some = [row for row in rows if float(row["num_gpus"]) >= 1 and float(row["duration"]) > 0]
    first = min((_parse_time(row["timestamp"]) for row in some), default=0.0)
    for number, row in enumerate(some):
        gpus = int(float(row["num_gpus"]))
        owner = row.get("cluster") or "philly"
        yield Submission(
            Job(
                id=f"philly-{number}",
                owner=owner,
                submitted_at=_parse_time(row["timestamp"]) - first,
                min_gpus=gpus,
                max_gpus=gpus,
                asked_gpus=gpus,
                preemptible=True,
            ),
            lasts(float(row["duration"]), gpus, linear(gpus * ELASTIC_TIMES, estimates.DEFAULT_EXPONENT), knowledge=knowledge),
        )  # fmt: skip


def _prototype(rows: list[dict[str, str]], knowledge: Knowledge) -> Iterable[Submission]:
    """Read a recorded run of the thesis prototype.

    GPUs were booked twice then, so all runs of a framework on the same number of GPUs get their mean duration.
    """
    runs: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        seconds = float(row["completed_s"]) - float(row["started_s"])
        runs[row["framework"]][int(row["required_gpus"])].append(seconds)
    curves: dict[str, tuple[float, Curve]] = {}
    for framework, by_gpus in runs.items():
        means = {gpus: sum(values) / len(values) for gpus, values in by_gpus.items()}
        rates = {gpus: 1 / mean for gpus, mean in means.items()}
        speeds = _interpolate_rates(rates)
        curves[framework] = (1 / speeds[0], Curve(tuple(speed / speeds[0] for speed in speeds), source="history"))
    for row in rows:
        work, curve = curves[row["framework"]]
        gpus = int(row["required_gpus"])
        yield Submission(
            Job(
                id=row["job"],
                owner="lab",
                submitted_at=float(row["submitted_s"]),
                min_gpus=gpus,
                max_gpus=gpus,
                asked_gpus=gpus,
                script=row["framework"],
            ),
            Plain(work, curve, knowledge=knowledge),
        )


def _plain(rows: Iterable[Mapping[str, Any]], speeds: Throughputs, knowledge: Knowledge) -> Iterable[Submission]:
    for row in rows:
        given = {name: value for name, value in row.items() if value not in (None, "")}
        asked = int(given["gpus"])
        minimum, maximum = int(given.get("min_gpus", asked)), int(given.get("max_gpus", asked))
        if not 1 <= minimum <= asked <= maximum:
            raise ValueError(f"Job {given['id']} of the trace must have 1 <= min_gpus <= gpus <= max_gpus.")
        script, batch = str(given.get("script", "")), int(given.get("batch", 0))
        curve = _nearest_curve(speeds, script, batch) or linear(maximum, estimates.DEFAULT_EXPONENT)
        tier = given.get("tier", "standard")
        if tier not in ("premium", "standard", "basic"):
            raise ValueError(f"Job {given['id']} of the trace has an unknown tier: {tier}.")
        checkpoint = given.get("checkpoint_seconds")
        yield Submission(
            Job(
                id=str(given["id"]),
                owner=str(given.get("owner", "lab")),
                submitted_at=_parse_time(given["submitted"]),
                min_gpus=minimum,
                max_gpus=maximum,
                asked_gpus=asked,
                priority=int(given.get("priority", 0)),
                elastic=_parse_flag(given.get("elastic", minimum != maximum)),
                preemptible=_parse_flag(given.get("preemptible", False)),
                group=str(given.get("group", "")),
                tier=tier,
                opportunistic=_parse_flag(given.get("opportunistic", False)),
                weight=float(given.get("weight", 1.0)),
                restart_seconds=float(given.get("restart_seconds", 30.0)),
                resize_seconds=float(given.get("resize_seconds", 10.0)),
                script=script,
                batch=batch,
                deadline=_parse_time(given["deadline"]) if "deadline" in given else None,
                gpu_request=_gpu_request(given),
            ),
            lasts(float(given["seconds"]), asked, curve, knowledge=knowledge),
            start_seconds=float(given.get("start_seconds", 0.0)),
            checkpoint_seconds=None if checkpoint is None else float(checkpoint),
        )


def _gpu_request(given: Mapping[str, Any]) -> GpuRequest:
    memory, kinds = given.get("gpu_memory_gib", 0), given.get("gpu_kinds", ())
    if isinstance(kinds, str):
        kinds = [kind.strip() for kind in kinds.split("|")]
    request = GpuRequest(round(1024 * float(memory)), tuple(kinds), _parse_flag(given.get("same_gpu_kind", False)))
    return ANY_GPU if request == ANY_GPU else request


def _with_mode(item: Submission, mode: Mode | None) -> Submission:
    """Return the job as rigid or elastic. Where other batch sizes were not measured, ``free`` is like ``fixed``."""
    job = item.job
    if mode is None:
        return item
    if mode == "rigid":
        job = replace(job, min_gpus=job.asked, max_gpus=job.asked, elastic=False)
    elif not job.elastic:
        job = replace(job, min_gpus=1, max_gpus=job.asked * ELASTIC_TIMES, elastic=True)
    return replace(item, job=job)


def read_throughputs(folder: Path) -> dict[str, dict[int, Curve]]:
    """Read ElasticFlow's tables: ``<model>.csv`` with steps per second by total batch and number of GPUs."""
    found: dict[str, dict[int, Curve]] = {}
    for path in sorted(folder.glob("*.csv")):
        for row in csv.DictReader(path.read_text().splitlines()):
            if "global_batch_size" not in row:
                raise ValueError(f"{path} is not a table of throughputs: it has no column global_batch_size.")
            rates = {int(name): float(value or 0) for name, value in row.items() if name.isdecimal()}
            rates = {gpus: rate for gpus, rate in rates.items() if math.isfinite(rate) and rate > 0}
            if rates:
                speeds = _interpolate_rates(rates)
                curve = Curve(tuple(speed / speeds[0] for speed in speeds), source="measured")
                found.setdefault(path.stem, {})[int(row["global_batch_size"])] = curve
    if not found:
        raise ValueError(f"There are no tables of throughputs in {folder}.")
    return found


def _interpolate_rates(rates: Mapping[int, float]) -> list[float]:
    """Return the rate on 1, 2, ... GPUs by linear interpolation; below the first measured one in proportion."""
    known = sorted(rates)
    speeds = []
    for gpus in range(1, known[-1] + 1):
        above = next(n for n in known if n >= gpus)
        below = max((n for n in known if n <= gpus), default=0)
        low, high = rates.get(below, 0.0), rates[above]
        speeds.append(high if above == below else low + (high - low) * (gpus - below) / (above - below))
    return speeds


def _nearest_curve(speeds: Throughputs, script: str, batch: int) -> Curve | None:
    """Return the curve of the model with the nearest measured batch."""
    by_batch = speeds.get(script)
    return by_batch[min(by_batch, key=lambda known: (abs(known - batch), known))] if by_batch else None


def _parse_time(value: Any) -> float:
    try:
        return float(value)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError(f"{value!r} is not a time: give seconds, or a date and time.") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _parse_flag(value: Any) -> bool:
    return str(value).strip().lower() in ("1", "true", "yes")
