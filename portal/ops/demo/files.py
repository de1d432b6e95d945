"""Logs, curves and outputs of the month, and what the nodes need to continue the jobs that run at its end."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path

from django.conf import settings

from portal.jobs import logs, metrics, outputs
from portal.jobs.models import Container, JobState, LogStream, MetricPoint, Outcome, Output, Progress, StepStat
from portal.ops.demo import monitoring, people
from portal.ops.demo.inserts import insert_rows
from portal.ops.demo.rows import AttemptRecord, MonthRows
from portal.ops.demo.simulation import END
from portal.ui import counted
from runners.agent.reconcile import JournalEntry
from runners.demo import programs
from runners.demo.nodes import SimulatedRun
from runners.demo.programs import ENDINGS, SILENT_BEFORE_TRAINING, Training
from runners.host.node_files import NodeFiles
from runners.messages.launch import Running
from runners.spec import RunSpec

MAX_TRAINING_LINES = 36
"""The maximum of lines about training in a log."""
OTHER_RANK_LINES = 5
"""Lines in the log of a rank other than the first."""
MAX_LOGGED_RANKS = 4
MAX_CURVE_POINTS = 24
"""The maximum of points in a curve."""
MIN_CURVE_SECONDS = 240.0
"""Attempts that trained for a shorter time have no curves."""
JOBS_WITH_OUTPUTS = 150
"""How many of the last jobs that succeeded have output files."""


@dataclass(slots=True)
class OutputStream:
    """One output stream: what was printed, and when."""

    name: str
    label: str
    printed: list[tuple[float, str]] = field(default_factory=list)
    """(Seconds since the start of the month, one or several whole lines)."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """How far a training got in one attempt, from 0 to 1, and when."""

    since: float
    until: float
    first: float
    last: float
    training: Training

    def step(self, part: float) -> int:
        """Return the step that was reached after that part of the attempt."""
        return round(self.training.steps * (self.first + (self.last - self.first) * part))

    def at(self, part: float) -> float:
        return self.since + (self.until - self.since) * part


def trajectories(written: MonthRows) -> dict[int, Trajectory]:
    """Return the trajectory of each attempt that trained, by attempt."""
    parts: dict[int, tuple[float, float]] = {}
    reached: dict[int, float] = {}
    trainings: dict[int, Training] = {}
    began = [(record, record.began) for record in written.attempt_records if record.began is not None]
    for record, since in began:
        request = record.demo_job.request
        until = _training_end(record)
        first = reached.get(record.job.pk, 0.0) if record.job.resumable else 0.0
        if record.simulated.ended is None:
            last = first + (1 - first) * (until - since) / (until - since + record.demo_job.remaining_seconds)
        elif record.attempt.outcome == Outcome.SUCCEEDED:
            last = 1.0
        elif record.attempt.outcome == Outcome.FAILED:
            last = request.seconds / request.whole_seconds
        else:
            last = first + (1 - first) * min(0.9, (until - since) / request.whole_seconds)
        last = min(1.0, max(first, last))
        parts[record.attempt.pk], reached[record.job.pk] = (first, last), last
        trainings[record.job.pk] = _training(record, since, first)  # all attempts of a job have that of its last one
    return {
        record.attempt.pk: Trajectory(since, _training_end(record), *parts[record.attempt.pk], trainings[record.job.pk])
        for record, since in began
    }


def _training_end(record: AttemptRecord) -> float:
    return record.simulated.stopped_at or record.simulated.ended or END


def _training(record: AttemptRecord, since: float, first: float) -> Training:
    """Return the job's training, with as many steps as fit into its time if it runs at the end of the month."""
    request = record.demo_job.request
    seconds = request.whole_seconds
    if record.simulated.ended is None:
        seconds = (END - since + record.demo_job.remaining_seconds) / (1 - first)
    return Training.for_job(request.number, seconds, request.min_gpus, diverges=request.fate == "nan")


# --- logs --------------------------------------------------------------------------------------------------------


def write_logs(written: MonthRows, found: Mapping[int, Trajectory]) -> None:
    """Write a log for every container that ran."""
    rows: list[LogStream] = []
    for record in written.attempt_records:
        for part, texts in _streams_by_container(record, found.get(record.attempt.pk)):
            running = part.state != "EXITED"
            home = _scribe(part) if running else None
            rows += [
                _store_stream(part, text, written, closed=not running, copy_to=home) for text in texts if text.printed
            ]
    LogStream.objects.bulk_create(rows, batch_size=500)


def _streams_by_container(
    record: AttemptRecord, trajectory: Trajectory | None
) -> Iterator[tuple[Container, list[OutputStream]]]:
    if record.driver is not None and trajectory is not None:
        yield record.driver, [_driver_stream(record, trajectory)]
    rank = 0
    for holding, part in zip(record.simulated.holdings, record.hosts, strict=True):
        if trajectory is None or part.running_at is None:
            continue
        since = trajectory.since if holding.since == record.simulated.placed else holding.since + 12.0
        until = min(holding.release_requested or holding.until or END, trajectory.until)
        command = " ".join(part.spec["command"])
        setup = OutputStream(
            "setup", "set-up", [(since - 2, "Code is unpacked in /workspace.\n"), (since - 1, f"Starting {command}\n")]
        )
        texts = [setup]
        for slot in range(int(part.spec["slots"])):
            text = OutputStream(str(slot), f"rank {rank}")
            if rank == 0:
                _print_first_rank(record, trajectory, text)
            elif rank < MAX_LOGGED_RANKS and record.demo_job.request.fate not in SILENT_BEFORE_TRAINING:
                _print_other_rank(trajectory, text, rank, since, until)
            texts.append(text)
            rank += 1
        _print_setup_end(record, part, setup, until)
        yield part, texts


def _driver_stream(record: AttemptRecord, trajectory: Trajectory) -> OutputStream:
    printed = [(trajectory.since - 3, f"The job now has {counted(_count_gpus(record, trajectory.since), 'rank')}.\n")]
    for when, before, after in record.simulated.resizes:
        if trajectory.since <= when < trajectory.until:
            change = f"{abs(after - before)} {'more' if after > before else 'fewer'} than before"
            printed.append((when + 3, f"The job now has {counted(after, 'rank')}, {change}.\n"))
    return OutputStream("setup", "set-up", printed)


def _count_gpus(record: AttemptRecord, when: float) -> int:
    """Return how many GPUs the attempt had then."""
    return sum(
        holding.gpus
        for holding in record.simulated.holdings
        if holding.since <= when < (holding.release_requested or holding.until or END + 1)
    )


def _print_first_rank(record: AttemptRecord, trajectory: Trajectory, text: OutputStream) -> None:
    request, training = record.demo_job.request, trajectory.training
    if request.fate not in SILENT_BEFORE_TRAINING or record.attempt.outcome != Outcome.FAILED:
        text.printed.append((trajectory.since, programs.first_lines(1000 * (6 + request.number % 90), request.number)))
        if trajectory.first > 0:
            text.printed.append((trajectory.since + 1, f"Restored the checkpoint of step {trajectory.step(0):,}.\n"))
        lines = max(1, min(MAX_TRAINING_LINES, int((trajectory.until - trajectory.since) / 40)))
        for number in range(1, lines + 1):
            part = number / (lines + 1)
            text.printed.append(
                (
                    trajectory.at(part),
                    training.progress_line(trajectory.step(part), _count_gpus(record, trajectory.at(part)) or 1),
                )
            )
            if record.job.resumable and number % 12 == 0:
                text.printed.append((trajectory.at(part), f"Saved a checkpoint at step {trajectory.step(part):,}.\n"))
    if record.attempt.outcome == Outcome.FAILED and request.fate in ENDINGS:
        text.printed.append((trajectory.until, ENDINGS[request.fate].text))
    elif record.attempt.outcome == Outcome.SUCCEEDED:
        text.printed.append((trajectory.until, programs.last_lines(training)))


def _print_other_rank(trajectory: Trajectory, text: OutputStream, rank: int, since: float, until: float) -> None:
    span = max(1e-9, trajectory.until - trajectory.since)
    for number in range(1, OTHER_RANK_LINES + 1):
        when = since + (until - since) * number / (OTHER_RANK_LINES + 1)
        text.printed.append(
            (when, trajectory.training.waiting_line(trajectory.step((when - trajectory.since) / span), rank))
        )


def _print_setup_end(record: AttemptRecord, part: Container, setup: OutputStream, until: float) -> None:
    if part.exit_reason == "exited" and part.exit_code:
        setup.printed.append((until + 1, f"The command ended with exit code {part.exit_code}.\n"))
    elif part.exit_reason == "stopped":
        setup.printed.append((until, "The container was asked to stop: SIGTERM is sent to the program.\n"))
    if part.exit_reason == "stopped" and record.job.resumable:
        setup.printed.append((until + 2, "A checkpoint was written before the program ended.\n"))


def _store_stream(
    part: Container, text: OutputStream, written: MonthRows, *, closed: bool, copy_to: Path | None
) -> LogStream:
    """Write a stream's bytes and time marks to the log store's files; return its row, which is not saved yet."""
    data, marks = bytearray(), bytearray()
    for when, printed in text.printed:
        marks += logs.MARK.pack(len(data), int(written.at(when).timestamp() * 1000))
        data += printed.encode()
    _write(settings.HOME / "logs" / part.name, text.name, bytes(data), bytes(marks))
    if copy_to is not None:  # as the supervisor left them, so that the node continues from there
        _write(copy_to / "log", text.name, bytes(data), bytes(marks))
        labels = copy_to / "log" / "streams.json"
        known = json.loads(labels.read_text()) if labels.exists() else {}
        labels.write_text(json.dumps({**known, text.name: {"label": text.label}}))
    return LogStream(
        container=part, name=text.name, label=text.label, folder=part.name, size=len(data), marks=len(text.printed),
        first_at=written.at(text.printed[0][0]), last_at=written.at(text.printed[-1][0]), closed=closed,
    )  # fmt: skip


def _write(folder: Path, name: str, data: bytes, marks: bytes) -> None:
    os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103 - pathlib takes several times as long
    for suffix, content in (("log", data), ("idx", marks)):
        with open(f"{folder}/{name}.{suffix}", "wb") as file:  # noqa: PTH123
            file.write(content)


# --- curves --------------------------------------------------------------------------------------------------------


def write_curves(written: MonthRows, found: Mapping[int, Trajectory]) -> None:
    points: list[Point] = []
    progress: list[Progress] = []
    steps: list[StepStat] = []
    for record in written.attempt_records:
        trajectory = found.get(record.attempt.pk)
        if trajectory is None or trajectory.until - trajectory.since < MIN_CURVE_SECONDS:
            continue
        mine = list(_points(record, trajectory, written))
        points += mine
        progress.append(_progress(record, trajectory, written, len(mine)))
        steps += _step_stats(record, trajectory, written)
    insert_rows(MetricPoint, ("attempt", "name", "step", "at", "value"), points)
    Progress.objects.bulk_create(progress, batch_size=500)
    StepStat.objects.bulk_create(steps, batch_size=500)


Point = tuple[int, str, int, datetime, float]
"""(Attempt, name, step, moment, value)."""


def _points(record: AttemptRecord, trajectory: Trajectory, written: MonthRows) -> Iterator[Point]:
    count = max(6, min(MAX_CURVE_POINTS, int((trajectory.until - trajectory.since) / 180)))
    training = trajectory.training
    for number in range(count + 1):
        part = number / count
        step, when = trajectory.step(part), written.at(trajectory.at(part))
        gpus = _count_gpus(record, min(trajectory.at(part), trajectory.until - 1)) or 1
        values = {
            metrics.LOSS: training.loss(step),
            metrics.THROUGHPUT: training.batch / training.step_seconds(step, gpus),
        }
        if number % 4 == 0:
            values["validation/accuracy"] = training.accuracy(step)
        for name, value in values.items():
            yield record.attempt.pk, name, step, when, value


def _progress(record: AttemptRecord, trajectory: Trajectory, written: MonthRows, points: int) -> Progress:
    training, step = trajectory.training, trajectory.step(1.0)
    gpus = _count_gpus(record, trajectory.until - 1) or 1
    seconds = training.step_seconds(step, gpus)
    each = [seconds * (0.9 + 0.02 * (rank * 7 % 5)) for rank in range(gpus)]
    columns = {
        "samples": [float((training.batch + rank) // gpus) for rank in range(gpus)],
        "computing": [round(one, 4) for one in each],
        "waiting": [round(seconds - one, 4) for one in each],
    }
    return Progress(
        attempt=record.attempt, at=written.at(trajectory.until), step=step, epoch=min(19, 20 * step // training.steps),
        done=trajectory.last,
        total=training.steps * training.batch, batch=training.batch, ranks=gpus, step_seconds=round(seconds, 4),
        loss=training.loss(step), per_rank=columns if gpus > 1 else {}, points=points,
    )  # fmt: skip


def _step_stats(record: AttemptRecord, trajectory: Trajectory, written: MonthRows) -> Iterator[StepStat]:
    """Yield how long steps took, one row for each number of GPUs that the attempt had."""
    sizes: dict[tuple[int, int], int] = {}
    for number in range(12):
        when = trajectory.at((number + 0.5) / 12)
        nodes = {
            holding.node
            for holding in record.simulated.holdings
            if holding.since <= when < (holding.release_requested or holding.until or END + 1)
        }
        gpus = _count_gpus(record, when)
        if gpus:
            sizes[len(nodes), gpus] = sizes.get((len(nodes), gpus), 0) + 1
    for (nodes_count, gpus), times in sizes.items():
        seconds = trajectory.training.step_seconds(0, gpus)
        kind = written.gpus_of[id(record.simulated.holdings[0])][0].model
        yield StepStat(
            attempt=record.attempt, kind=kind, nodes=nodes_count, gpus=gpus, batch=trajectory.training.batch,
            reports=10 * times, seconds=seconds, waiting_seconds=seconds * 0.06 if gpus > 1 else None, asked_batch=trajectory.training.batch,
            max_batch=trajectory.training.batch, at=written.at(trajectory.until),
        )  # fmt: skip


# --- outputs -------------------------------------------------------------------------------------------------------


def write_outputs(written: MonthRows, found: Mapping[int, Trajectory]) -> None:
    """Write output files of the last jobs that succeeded."""
    last = [
        record
        for record in written.attempt_records
        if record.attempt.outcome == Outcome.SUCCEEDED and record.attempt.pk in found
    ]
    last.sort(key=lambda record: record.simulated.ended or 0.0)
    rows = []
    for record in last[-JOBS_WITH_OUTPUTS:]:
        training = found[record.attempt.pk].training
        files = programs.output_files(training)
        for path, content in files.items():
            digest = sha256(content).hexdigest()
            folder = outputs.folder_of(record.job)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / digest).write_bytes(content)
            rows.append(
                Output(
                    job=record.job, attempt=record.attempt, path=path, size=len(content), sha256=digest,
                    stored_at=written.at(record.simulated.ended or END),
                )
            )  # fmt: skip
    Output.objects.bulk_create(rows, batch_size=500)


# --- what runs at the end ------------------------------------------------------------------------------------------


def _scribe(part: Container) -> Path:
    return NodeFiles(people.node_home(part.node.name)).scribe(part.name)


def hand_over_running_jobs(written: MonthRows, found: Mapping[int, Trajectory], now: datetime) -> None:
    """Give the nodes the jobs that run now: their agents find them as if left by an earlier start."""
    for record in written.attempt_records:
        trajectory = found.get(record.attempt.pk)
        if record.demo_job.status != JobState.RUNNING or record.simulated.ended is not None or trajectory is None:
            continue
        ends = now + timedelta(seconds=record.demo_job.remaining_seconds)
        busy, memory = monitoring.gpu_usage(record)
        course = SimulatedRun(
            written.at(trajectory.since).timestamp(),
            ends.timestamp(),
            trajectory.training,
            busy_percent=busy,
            memory_mib=memory,
            first_step=trajectory.step(0.0),
        )
        for part in (*([record.driver] if record.driver else []), *record.hosts):
            if part.running_at is None or part.exited_at is not None:
                continue
            files = NodeFiles(people.node_home(part.node.name))
            files.make()
            folders = files.make_container(RunSpec.from_json(part.spec))
            (folders.control / "job.json").write_text(json.dumps(part.spec))
            status = {"message": Running().data(), "ranks": part.spec["slots"]}
            (folders.scribe / "status.json").write_text(json.dumps(status))
            course.write(files.container(part.name))
            entry = JournalEntry(
                record.job.pk, record.attempt.pk, record.number, created=True, started=True,
                running_at=part.running_at.timestamp(),
            )  # fmt: skip
            files.state(part.name).write_text(json.dumps(asdict(entry)))
