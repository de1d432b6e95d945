"""The simulator: the policies, the check and the rules of the live loop, in a virtual clock.

    from scheduling.registry import build
    from scheduling.simulate import Options, Submission, lasts, simulate
    from scheduling.types import Job, Node

    nodes = [Node("a", "a", 4, 4), Node("b", "b", 4, 4)]
    jobs = [Job(str(n), "alice", 60.0 * n, min_gpus=1, max_gpus=4, elastic=True) for n in range(10)]
    result = simulate(
        build("elastic_fifo", {}),
        nodes,
        [Submission(job, lasts(600, gpus=2)) for job in jobs],
        options=Options(release_seconds=10),
    )
    result.summary().turnaround.p50

* ``Submission(job, truth)``: a job as a policy would see it, and what really happens when it runs. A job with ``now_on``
  runs already at ``now``: a live snapshot's jobs go in as they are, with ``assumed(job)`` for a truth. It also says how
  long its start and its end take, and what a change of its GPUs does to it (``Interruption``).
* A ``Truth`` makes a ``Run`` that advances under a placement and a batch, tells when it would end, and what a policy may
  know of it (``Known``). ``Plain`` (work and a speed curve) is the simple one, made by ``lasts`` (seen to take so long on
  so many GPUs) and ``assumed`` (a live job's estimates; ``longer=`` draws another future); ``pollux`` has a measured one.
* ``Options``: how long giving back takes, losses of nodes, ``until``, the policy's memory; ``round_seconds`` for rounds.
* ``Result``: ``jobs`` (``JobResult``) and ``summary()``; ``to_json()``.

Everything is decided by its arguments: no clock, no randomness. A ``clock`` is passed in to time the decisions.
"""

from typing import TYPE_CHECKING

from scheduling.renamed import renamed
from scheduling.simulate.inputs import Interruption, Loss, Options, Submission
from scheduling.simulate.result import JobResult, Result, Spread, Summary
from scheduling.simulate.settle import InvalidPlanError, settle
from scheduling.simulate.simulation import accounts_of, simulate
from scheduling.simulate.truth import JobFacts, Plain, TrainingRun, Truth, assumed, lasts, linear

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"Known": "JobFacts", "Refused": "InvalidPlanError", "Run": "TrainingRun"})

__all__ = [
    "Interruption",
    "JobResult",
    "JobFacts",
    "Loss",
    "Options",
    "Plain",
    "InvalidPlanError",
    "Result",
    "TrainingRun",
    "Spread",
    "Submission",
    "Summary",
    "Truth",
    "accounts_of",
    "assumed",
    "lasts",
    "linear",
    "settle",
    "simulate",
]
