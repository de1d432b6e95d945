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
from portal.ops.demo.inserts import insert
from portal.ops.demo.play import END
from portal.ops.demo.rows import Ran, Written
from portal.ui import counted
from runners.agent.reconcile import JournalEntry
from runners.demo import programs
from runners.demo.nodes import MODEL, SimulatedRun
from runners.demo.programs import ENDINGS, SILENT_BEFORE_TRAINING, Training
from runners.host.node_files import NodeFiles
from runners.messages.launch import Running
from runners.spec import RunSpec

LINES = 36
"""The maximum of lines about training in a log."""
OTHERS_LINES = 5
"""Lines in the log of a rank other than the first."""
MAX_LOGGED_RANKS = 4
POINTS = 24
"""The maximum of points in a curve."""
MIN_SECONDS = 240.0
"""Attempts that trained for a shorter time have no curves."""
WITH_OUTPUTS = 150
"""How many of the last jobs that succeeded have output files."""


@dataclass(slots=True)
class Text:
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


def trajectories(written: Written) -> dict[int, Trajectory]:
    """Return the trajectory of each attempt that trained, by attempt."""
    parts: dict[int, tuple[float, float]] = {}
    reached: dict[int, float] = {}
    trainings: dict[int, Training] = {}
    began = [(ran, ran.began) for ran in written.ran if ran.began is not None]
    for ran, since in began:
        ask = ran.story.ask
        until = _until(ran)
        first = reached.get(ran.job.pk, 0.0) if ran.job.resumable else 0.0
        if ran.simulated.ended is None:
            last = first + (1 - first) * (until - since) / (until - since + ran.story.left_seconds)
        elif ran.attempt.outcome == Outcome.SUCCEEDED:
            last = 1.0
        elif ran.attempt.outcome == Outcome.FAILED:
            last = ask.seconds / ask.whole_seconds
        else:
            last = first + (1 - first) * min(0.9, (until - since) / ask.whole_seconds)
        last = min(1.0, max(first, last))
        parts[ran.attempt.pk], reached[ran.job.pk] = (first, last), last
        trainings[ran.job.pk] = _training(ran, since, first)  # all attempts of a job have that of its last one
    return {
        ran.attempt.pk: Trajectory(since, _until(ran), *parts[ran.attempt.pk], trainings[ran.job.pk])
        for ran, since in began
    }


def _until(ran: Ran) -> float:
    return ran.simulated.stopped_at or ran.simulated.ended or END


def _training(ran: Ran, since: float, first: float) -> Training:
    """Return the job's training, with as many steps as fit into its time if it runs at the end of the month."""
    ask = ran.story.ask
    seconds = ask.whole_seconds
    if ran.simulated.ended is None:
        seconds = (END - since + ran.story.left_seconds) / (1 - first)
    return Training.for_job(ask.number, seconds, ask.min_gpus, diverges=ask.fate == "nan")


# --- logs --------------------------------------------------------------------------------------------------------


def write_logs(written: Written, found: Mapping[int, Trajectory]) -> None:
    """Write a log for every container that ran."""
    rows: list[LogStream] = []
    for ran in written.ran:
        for part, texts in _texts(ran, found.get(ran.attempt.pk)):
            running = part.state != "EXITED"
            home = _scribe(part) if running else None
            rows += [_store(part, text, written, closed=not running, copy_to=home) for text in texts if text.printed]
    LogStream.objects.bulk_create(rows, batch_size=500)


def _texts(ran: Ran, trajectory: Trajectory | None) -> Iterator[tuple[Container, list[Text]]]:
    if ran.driver is not None and trajectory is not None:
        yield ran.driver, [_drivers(ran, trajectory)]
    rank = 0
    for piece, part in zip(ran.simulated.pieces, ran.hosts, strict=True):
        if trajectory is None or part.running_at is None:
            continue
        since = trajectory.since if piece.since == ran.simulated.placed else piece.since + 12.0
        until = min(piece.asked_back or piece.until or END, trajectory.until)
        command = " ".join(part.spec["command"])
        setup = Text(
            "setup", "set-up", [(since - 2, "Code is unpacked in /workspace.\n"), (since - 1, f"Starting {command}\n")]
        )
        texts = [setup]
        for slot in range(int(part.spec["slots"])):
            text = Text(str(slot), f"rank {rank}")
            if rank == 0:
                _first_rank(ran, trajectory, text)
            elif rank < MAX_LOGGED_RANKS and ran.story.ask.fate not in SILENT_BEFORE_TRAINING:
                _other_rank(trajectory, text, rank, since, until)
            texts.append(text)
            rank += 1
        _end_of_setup(ran, part, setup, until)
        yield part, texts


def _drivers(ran: Ran, trajectory: Trajectory) -> Text:
    printed = [(trajectory.since - 3, f"The job now has {counted(_ranks(ran, trajectory.since), 'rank')}.\n")]
    for when, before, after in ran.simulated.resizes:
        if trajectory.since <= when < trajectory.until:
            change = f"{abs(after - before)} {'more' if after > before else 'fewer'} than before"
            printed.append((when + 3, f"The job now has {counted(after, 'rank')}, {change}.\n"))
    return Text("setup", "set-up", printed)


def _ranks(ran: Ran, when: float) -> int:
    """Return how many GPUs the attempt had then."""
    return sum(
        piece.gpus
        for piece in ran.simulated.pieces
        if piece.since <= when < (piece.asked_back or piece.until or END + 1)
    )


def _first_rank(ran: Ran, trajectory: Trajectory, text: Text) -> None:
    ask, training = ran.story.ask, trajectory.training
    if ask.fate not in SILENT_BEFORE_TRAINING or ran.attempt.outcome != Outcome.FAILED:
        text.printed.append((trajectory.since, programs.first_lines(1000 * (6 + ask.number % 90), ask.number)))
        if trajectory.first > 0:
            text.printed.append((trajectory.since + 1, f"Restored the checkpoint of step {trajectory.step(0):,}.\n"))
        lines = max(1, min(LINES, int((trajectory.until - trajectory.since) / 40)))
        for number in range(1, lines + 1):
            part = number / (lines + 1)
            text.printed.append(
                (
                    trajectory.at(part),
                    training.progress_line(trajectory.step(part), _ranks(ran, trajectory.at(part)) or 1),
                )
            )
            if ran.job.resumable and number % 12 == 0:
                text.printed.append((trajectory.at(part), f"Saved a checkpoint at step {trajectory.step(part):,}.\n"))
    if ran.attempt.outcome == Outcome.FAILED and ask.fate in ENDINGS:
        text.printed.append((trajectory.until, ENDINGS[ask.fate].text))
    elif ran.attempt.outcome == Outcome.SUCCEEDED:
        text.printed.append((trajectory.until, programs.last_lines(training)))


def _other_rank(trajectory: Trajectory, text: Text, rank: int, since: float, until: float) -> None:
    span = max(1e-9, trajectory.until - trajectory.since)
    for number in range(1, OTHERS_LINES + 1):
        when = since + (until - since) * number / (OTHERS_LINES + 1)
        text.printed.append(
            (when, trajectory.training.waiting_line(trajectory.step((when - trajectory.since) / span), rank))
        )


def _end_of_setup(ran: Ran, part: Container, setup: Text, until: float) -> None:
    if part.exit_reason == "exited" and part.exit_code:
        setup.printed.append((until + 1, f"The command ended with exit code {part.exit_code}.\n"))
    elif part.exit_reason == "stopped":
        setup.printed.append((until, "The container was asked to stop: SIGTERM is sent to the program.\n"))
    if part.exit_reason == "stopped" and ran.job.resumable:
        setup.printed.append((until + 2, "A checkpoint was written before the program ended.\n"))


def _store(part: Container, text: Text, written: Written, *, closed: bool, copy_to: Path | None) -> LogStream:
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


def write_curves(written: Written, found: Mapping[int, Trajectory]) -> None:
    points: list[Point] = []
    progress: list[Progress] = []
    steps: list[StepStat] = []
    for ran in written.ran:
        trajectory = found.get(ran.attempt.pk)
        if trajectory is None or trajectory.until - trajectory.since < MIN_SECONDS:
            continue
        mine = list(_points(ran, trajectory, written))
        points += mine
        progress.append(_progress(ran, trajectory, written, len(mine)))
        steps += _steps(ran, trajectory, written)
    insert(MetricPoint, ("attempt", "name", "step", "at", "value"), points)
    Progress.objects.bulk_create(progress, batch_size=500)
    StepStat.objects.bulk_create(steps, batch_size=500)


Point = tuple[int, str, int, datetime, float]
"""(Attempt, name, step, moment, value)."""


def _points(ran: Ran, trajectory: Trajectory, written: Written) -> Iterator[Point]:
    count = max(6, min(POINTS, int((trajectory.until - trajectory.since) / 180)))
    training = trajectory.training
    for number in range(count + 1):
        part = number / count
        step, when = trajectory.step(part), written.at(trajectory.at(part))
        gpus = _ranks(ran, min(trajectory.at(part), trajectory.until - 1)) or 1
        values = {
            metrics.LOSS: training.loss(step),
            metrics.THROUGHPUT: training.batch / training.step_seconds(step, gpus),
        }
        if number % 4 == 0:
            values["validation/accuracy"] = training.accuracy(step)
        for name, value in values.items():
            yield ran.attempt.pk, name, step, when, value


def _progress(ran: Ran, trajectory: Trajectory, written: Written, points: int) -> Progress:
    training, step = trajectory.training, trajectory.step(1.0)
    gpus = _ranks(ran, trajectory.until - 1) or 1
    seconds = training.step_seconds(step, gpus)
    each = [seconds * (0.9 + 0.02 * (rank * 7 % 5)) for rank in range(gpus)]
    columns = {
        "samples": [float((training.batch + rank) // gpus) for rank in range(gpus)],
        "computing": [round(one, 4) for one in each],
        "waiting": [round(seconds - one, 4) for one in each],
    }
    return Progress(
        attempt=ran.attempt, at=written.at(trajectory.until), step=step, epoch=min(19, 20 * step // training.steps), done=trajectory.last,
        total=training.steps * training.batch, batch=training.batch, ranks=gpus, step_seconds=round(seconds, 4),
        loss=training.loss(step), per_rank=columns if gpus > 1 else {}, points=points,
    )  # fmt: skip


def _steps(ran: Ran, trajectory: Trajectory, written: Written) -> Iterator[StepStat]:
    """Yield how long steps took, one row for each number of GPUs that the attempt had."""
    sizes: dict[tuple[int, int], int] = {}
    for number in range(12):
        when = trajectory.at((number + 0.5) / 12)
        nodes = {
            piece.node
            for piece in ran.simulated.pieces
            if piece.since <= when < (piece.asked_back or piece.until or END + 1)
        }
        gpus = _ranks(ran, when)
        if gpus:
            sizes[len(nodes), gpus] = sizes.get((len(nodes), gpus), 0) + 1
    for (nodes_count, gpus), times in sizes.items():
        seconds = trajectory.training.step_seconds(0, gpus)
        yield StepStat(
            attempt=ran.attempt, kind=MODEL, nodes=nodes_count, gpus=gpus, batch=trajectory.training.batch, reports=10 * times,
            seconds=seconds, waiting_seconds=seconds * 0.06 if gpus > 1 else None, asked_batch=trajectory.training.batch,
            max_batch=trajectory.training.batch, at=written.at(trajectory.until),
        )  # fmt: skip


# --- outputs -------------------------------------------------------------------------------------------------------


def write_outputs(written: Written, found: Mapping[int, Trajectory]) -> None:
    """Write output files of the last jobs that succeeded."""
    last = [ran for ran in written.ran if ran.attempt.outcome == Outcome.SUCCEEDED and ran.attempt.pk in found]
    last.sort(key=lambda ran: ran.simulated.ended or 0.0)
    rows = []
    for ran in last[-WITH_OUTPUTS:]:
        training = found[ran.attempt.pk].training
        files = programs.output_files(training)
        for path, content in files.items():
            digest = sha256(content).hexdigest()
            folder = outputs.folder_of(ran.job)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / digest).write_bytes(content)
            rows.append(
                Output(
                    job=ran.job, attempt=ran.attempt, path=path, size=len(content), sha256=digest,
                    stored_at=written.at(ran.simulated.ended or END),
                )
            )  # fmt: skip
    Output.objects.bulk_create(rows, batch_size=500)


# --- what runs at the end ------------------------------------------------------------------------------------------


def _scribe(part: Container) -> Path:
    return NodeFiles(people.node_home(part.node.name)).scribe(part.name)


def hand_over(written: Written, found: Mapping[int, Trajectory], now: datetime) -> None:
    """Give the nodes the jobs that run now: their agents find them as if left by an earlier start."""
    for ran in written.ran:
        trajectory = found.get(ran.attempt.pk)
        if ran.story.status != JobState.RUNNING or ran.simulated.ended is not None or trajectory is None:
            continue
        ends = now + timedelta(seconds=ran.story.left_seconds)
        busy, memory = monitoring.use_of(ran)
        course = SimulatedRun(
            written.at(trajectory.since).timestamp(),
            ends.timestamp(),
            trajectory.training,
            busy_percent=busy,
            memory_mib=memory,
            first_step=trajectory.step(0.0),
        )
        for part in (*([ran.driver] if ran.driver else []), *ran.hosts):
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
                ran.job.pk, ran.attempt.pk, ran.number, created=True, started=True,
                running_at=part.running_at.timestamp(),
            )  # fmt: skip
            files.state(part.name).write_text(json.dumps(asdict(entry)))
