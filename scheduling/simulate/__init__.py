"""The simulator: the policies, the checks and the rules of the scheduler, with a virtual clock.

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

* ``Submission(job, truth)``: a job as a policy sees it, and what really happens when it runs. A job with ``now_on``
  runs already at ``now``: jobs of a live snapshot can be passed as they are, with ``assumed(job)`` as their truth. It also
  has the time of its start and its end, and the effect of a change of its GPUs (``Interruption``).
* A ``Truth`` creates a ``TrainingRun``, which advances under a placement and a batch, and knows when it would end and what
  a policy may know of it (``JobFacts``). ``Plain`` (work and a speed curve) is the simple one, created by ``lasts`` (a
  known duration on some GPUs) and ``assumed`` (the estimates of a live job; ``longer=`` draws another future); ``pollux``
  has a measured one.
* ``Options``: how long releasing GPUs takes, losses of nodes, ``until``, the initial state of the policy; ``round_seconds``
  for rounds.
* ``Result``: ``jobs`` (``JobResult``) and ``summary()``; ``to_json()``.

The result depends on the arguments alone: no clock, no randomness. Pass a ``clock`` to time the decisions.
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
