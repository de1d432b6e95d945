"""First come, first served."""

from dataclasses import dataclass
from typing import ClassVar

from scheduling import reasons
from scheduling.capacity import Capacity, queue
from scheduling.params import param
from scheduling.types import Job, JobId, Plan, Snapshot


@dataclass(frozen=True, slots=True)
class Fifo:
    title: ClassVar[str] = "First come, first served"
    explanation: ClassVar[str] = (
        "Jobs start in the order they came, higher priority first, and keep their GPUs until they end. "
        "Easy to foresee; a large job at the head of the queue may leave GPUs idle."
    )
    good_for: ClassVar[str] = "a small lab that wants to foresee who is next"
    needs: ClassVar[str] = "nothing"

    strict: bool = param(
        True,
        "Strictly in order",
        "Yes: when the first job of the queue does not fit, all behind it wait, so that large jobs get their turn. "
        "No: jobs behind it may start first, so that fewer GPUs stand idle.",
    )
    size: str = param(
        "most",
        "GPUs at the start",
        "What a job that asked for a range of GPUs is given when it starts.",
        choices=[("most", "as many as are free, up to its most"), ("least", "its least")],
    )

    def plan(self, snapshot: Snapshot) -> Plan:
        capacity = Capacity(snapshot)
        why: dict[JobId, str] = {}
        line: list[Job] = []
        for job in queue(snapshot):
            if alone := reasons.impossible(job, capacity) or reasons.limited(job, capacity):
                why[job.id] = alone  # nobody else has to wait for what only this job lacks
            elif self.strict and line:
                why[job.id] = reasons.in_line(line[0], len(line))
                line.append(job)
            elif where := capacity.best_fit(job, job.max_gpus if self.size == "most" else job.min_gpus):
                capacity.give(job, where)
            else:
                why[job.id] = reasons.shortage(job, capacity, len(line))
                line.append(job)
        return Plan(capacity.held, why)
