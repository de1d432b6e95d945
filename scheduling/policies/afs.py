"""Apathetic future share (AFS): the next GPU goes to the shorter job unless a longer one makes much better use of it."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import inf, log2
from typing import ClassVar

from scheduling.messages import Message
from scheduling.params import param
from scheduling.toolkit import estimates, reasons
from scheduling.toolkit.capacity import Capacity, in_queue_order
from scheduling.toolkit.growth import max_size, next_size
from scheduling.toolkit.plan_builder import build_plan
from scheduling.toolkit.sharing import Pool, plan_until_placed, skip_unprofitable_resizes
from scheduling.types import Job, JobId, Knows, Plan, Snapshot

FIRST_CLASS_SECONDS = 600.0
"""Jobs of unknown length count as equal until they were served this long: a smaller difference is not worth a stop."""


@dataclass(frozen=True, slots=True)
class Afs:
    """AFS-L (Hwang et al., NSDI'21) where the work left is known, AFS-P where it is not.

    The pairwise rule is confirmed from Voda's transcription, corrected (there the length of a job was read at the GPU
    count of the other one): let A be the job that ends sooner on its GPUs and B the other (a job without GPUs never
    ends); B gets the GPU if ``(p_B(b+1) - p_B(b)) / p_B(b+1) > (p_A(a+1) - p_A(a)) / p_A(a)``; of two jobs without GPUs
    the shorter gets it.

    Our reconstructions: a step of several GPUs (the minimum of a job, or its next worthwhile size) counts with its gain
    per GPU. AFS-P takes the length of a job as the service it has had, in classes that double, minus the time it has
    waited since. The rule is not transitive, so the winner depends on the order of the matches: ours is a knock-out
    tournament over jobs sorted by length, in which each GPU replays log J matches, where the original scans all J jobs.
    """

    title: ClassVar[str] = "Shorter first, unless a longer one scales better (AFS)"
    explanation: ClassVar[str] = (
        "Each GPU goes to the job that ends soonest, except where a longer job would gain much more from it, so that "
        "most users get their results early. A job of unknown length counts as being as long as it already ran; long jobs "
        "wait."
    )
    good_for: ClassVar[str] = "short turnaround with elastic jobs"
    needs: ClassVar[str] = "the speed of jobs with more GPUs; their length helps"
    knows: ClassVar[Knows] = "job lengths"

    lengths: str = param(
        "known",
        "Length of a job",
        "How it is decided which of two jobs is shorter.",
        choices=[
            ("known", "the remaining work where it is known, else the GPU time used so far"),
            ("served", "always the GPU time used so far"),
        ],
    )
    preempt: bool = param(
        True,
        "Stop longer jobs",
        "Yes: jobs that can restart from a checkpoint are stopped when shorter ones need their GPUs. "
        "No: running jobs continue.",
    )
    pays_within_seconds: float = param(
        300.0,
        "Seconds within which growth must pay off",
        "A running job takes more GPUs only if it makes up for the interruption within this time. "
        "Larger means more frequent changes.",
        minimum=0.0,
        maximum=86_400.0,
    )

    def plan(self, snapshot: Snapshot) -> Plan:
        return plan_until_placed(lambda excluded: self._plan(snapshot, excluded))

    def _plan(self, snapshot: Snapshot, excluded: AbstractSet[JobId]) -> tuple[Plan, set[JobId]]:
        pool = Pool(snapshot, preempt=self.preempt, excluded=excluded)
        jobs = [
            job
            for job in in_queue_order(snapshot.jobs)
            if job.running or (job.waiting and job.id not in pool.impossible)
        ]
        length = {job.id: self._length(job, snapshot.now) for job in jobs}
        jobs.sort(key=lambda job: (-job.priority, length[job.id]))
        given = _run_tournament(jobs, [length[job.id] for job in jobs], pool)
        rest = [job for job in jobs if job.id not in given]
        order = [*(job for job in jobs if job.id in given), *rest]
        wanted = skip_unprofitable_resizes(snapshot, pool.count, self.pays_within_seconds)
        batches = {job.id: estimates.batch(job, wanted.get(job.id, 0)) for job in jobs if job.free_speed}

        unplaced: set[JobId] = set()

        def short(job: Job, capacity: Capacity, ahead: int) -> Message:
            if wanted.get(job.id):
                unplaced.add(job.id)
            return self._waiting_reason(reasons.shortage(job, capacity, ahead), job, length[job.id])

        plan = build_plan(snapshot, order, wanted, why=pool.impossible, batches=batches, short=short)
        return plan, unplaced

    def _length(self, job: Job, now: float) -> float:
        """Return the length of a job in seconds of work on one GPU."""
        if self.lengths == "known" and job.work is not None and job.work.source != "default":
            return max(job.work.value, 1.0)
        waited = now - (job.submitted_at if job.since is None else job.since) if job.waiting else 0.0
        # In whole classes: a job that was just stopped must not be shorter at once than the one it was stopped for.
        credit = waited // FIRST_CLASS_SECONDS * FIRST_CLASS_SECONDS
        served = max(job.served_gpu_seconds - credit, FIRST_CLASS_SECONDS)
        return float(FIRST_CLASS_SECONDS * 2 ** int(log2(served / FIRST_CLASS_SECONDS)))

    def _waiting_reason(self, reason: Message, job: Job, length: float) -> Message:
        if self.lengths == "known" and job.work is not None and job.work.source != "default":
            return ShorterFirst(reason, reasons.rounded_seconds(length))
        return LessServedFirst(reason, reasons.rounded_seconds(job.served_gpu_seconds))


@dataclass(frozen=True)
class ShorterFirst(Message):
    """Jobs with less than its ``seconds`` of work on one GPU go first."""

    code: ClassVar[str] = "shorter_first"
    reason: Message
    seconds: int


@dataclass(frozen=True)
class LessServedFirst(Message):
    """Its length is not known: jobs that had less than its ``seconds`` of one GPU go first."""

    code: ClassVar[str] = "less_served_first"
    reason: Message
    seconds: int


class _Contender:
    """A job in the tournament."""

    __slots__ = ("after", "count", "job", "length", "next", "now", "seconds")

    def __init__(self, job: Job, length: float, count: int, step: int) -> None:
        self.job, self.length = job, length
        self.set_size(count, step)

    def set_size(self, count: int, step: int) -> None:
        """Set its number of GPUs, and the next size ``step`` that it wants; 0 when it wants no more."""
        self.count, self.next = count, step
        speed = estimates.speed(self.job, count, free_batch=True)
        faster = estimates.speed(self.job, step, free_batch=True)
        self.seconds = self.length / speed if speed > 0 else inf
        gain = (faster - speed) / (step - count) if step else 0.0
        self.now = gain / speed if speed > 0 else inf
        self.after = gain / faster if faster > 0 else 0.0


def _winner(one: _Contender | None, two: _Contender | None) -> _Contender | None:
    """Return the winner of a match. ``one`` comes before ``two`` in the order of lengths."""
    if one is None or two is None or not (one.next and two.next):
        return one if one is not None and one.next else two
    if not one.count and not two.count:
        return one
    if one.job.priority != two.job.priority and not (one.count and two.count):
        higher, lower = (one, two) if one.job.priority > two.job.priority else (two, one)
        if not higher.count:
            return higher
    shorter, longer = (one, two) if one.seconds <= two.seconds else (two, one)
    return longer if longer.after > shorter.now else shorter


def _run_tournament(jobs: Sequence[Job], lengths: Sequence[float], pool: Pool) -> dict[str, int]:
    """Give the GPUs of ``pool`` step by step to the winner; return the jobs with any, in the order of their first GPU."""
    half = 1 << max(0, len(jobs) - 1).bit_length()
    tree: list[_Contender | None] = [None] * (2 * half)
    given: dict[str, int] = {}
    for index, job in enumerate(jobs):
        count = pool.count.get(job.id, 0)
        if count:
            given[job.id] = count
        tree[half + index] = _Contender(job, lengths[index], count, _next_size(job, count, pool))
    for node in range(half - 1, 0, -1):
        tree[node] = _winner(tree[2 * node], tree[2 * node + 1])
    index_of = {job.id: index for index, job in enumerate(jobs)}
    while pool.free and (side := tree[1]) is not None and side.next:
        job, size = side.job, side.next
        if pool.take(job, size - side.count):
            given.setdefault(job.id, size)
            side.set_size(size, _next_size(job, size, pool))
        else:
            side.next = 0
        node = (half + index_of[job.id]) // 2
        while node:
            tree[node] = _winner(tree[2 * node], tree[2 * node + 1])
            node //= 2
    return given


def _next_size(job: Job, count: int, pool: Pool) -> int:
    """Return the next size of a job."""
    if count:
        return next_size(job, count, max_size(job))
    return pool.min_gpus[job.id] if job.running else job.min_gpus
