"""The entry point of the simulator."""

from collections.abc import Callable, Iterable

from scheduling.simulate.engine import Engine
from scheduling.simulate.inputs import Options, Submission
from scheduling.simulate.result import Result
from scheduling.simulate.rounds import run_in_rounds
from scheduling.types import Account, Limit, Node, Plan, Policy, Reservation, Snapshot


def simulate(
    policy: Policy,
    nodes: Iterable[Node],
    submissions: Iterable[Submission],
    *,
    now: float = 0.0,
    limits: Iterable[Limit] = (),
    accounts: Iterable[Account] = (),
    reservations: Iterable[Reservation] = (),
    options: Options | None = None,
    clock: Callable[[], float] | None = None,
    on_turn: Callable[[Snapshot, Plan], None] | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> Result:
    """Simulate all submissions. Raises InvalidPlanError when a plan breaks a rule.

    Jobs with ``now_on`` run at ``now`` with the facts in their ``Job``; GPUs of ``nodes`` that are ``leaving`` are free
    after ``release_seconds``. ``limits`` and ``accounts`` list all their jobs, whenever these are submitted; the policy
    sees the jobs that exist. ``clock`` (``time.perf_counter``) times the decisions, ``on_turn`` is called with each of
    them, and ``on_progress`` from time to time with the fraction done; it may raise to end the simulation.
    """
    options = options or Options()
    engine = Engine(
        policy, nodes, submissions, now=now, limits=limits, accounts=accounts, reservations=reservations,
        options=options, clock=clock, on_turn=on_turn, on_progress=on_progress,
    )  # fmt: skip
    if options.round_seconds is None:
        engine.run()
    else:
        run_in_rounds(engine, options.round_seconds)
    return engine.result()


def accounts_of(submissions: Iterable[Submission], weights: dict[str, float] | None = None) -> tuple[Account, ...]:
    """Return an account for each owner, below one for each group, with weight 1 unless ``weights`` has another one."""
    jobs: dict[str, set[str]] = {}
    parents: dict[str, str] = {}
    for submission in submissions:
        job = submission.job
        jobs.setdefault(job.owner, set()).add(job.id)
        if job.group:
            parents[job.owner] = job.group
            jobs.setdefault(job.group, set()).add(job.id)
    return tuple(
        Account(name, (weights or {}).get(name, 1.0), frozenset(jobs[name]), parent=parents.get(name, ""))
        for name in sorted(jobs)
    )
