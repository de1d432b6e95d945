"""Preview of a switch to another policy, shown before it is confirmed, and the confirmation.

A preview is of one snapshot and one configuration in force. Its ``ticket`` is a signed record of what was shown. A
switch with a ticket is refused when its basis has changed *materially*: another configuration is in force, or other
running jobs would be stopped or resized than were shown. Jobs that were submitted or ended meanwhile, and others that
start or wait, are no reason to refuse: a scheduler handles these all day.
"""

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from django.core import signing

from portal.accounts.models import User
from portal.refused import Refused
from portal.scheduler import services
from portal.scheduler import snapshot as snapshots
from portal.scheduler.cycle import in_units_of_lab
from portal.scheduler.failures import violation_sentences
from portal.scheduler.models import SchedulerConfig
from portal.scheduler.recording import sha256_of
from scheduling import registry
from scheduling.changes import DISRUPTIVE_KINDS, KINDS, JobChange, Kind, changes
from scheduling.decide import decide
from scheduling.simulate import InvalidPlanError, Options, Submission, assumed, settle, simulate
from scheduling.types import JobId, Plan, Policy, Snapshot
from scheduling.wire import snapshot_to_text

DECISION_SECONDS = 15.0
"""Time limit for the few decisions of a policy until nothing changes any more."""
ETA_SECONDS = 3.0
"""Time limit for the simulation of the future under each policy; times that are not known by then stay unknown."""
HORIZON_SECONDS = 30 * 86_400.0
WINDOW_PART = 0.02
"""Times are exact to this part of the time until then: with 300 waiting jobs, a quarter of the cycles suffice."""
TICKET_SECONDS = 3600
SALT = "portal.control.preview"  # from before the module moved: open previews stay valid during an upgrade
CHECK_AGAIN = "Nothing was switched. Check the new preview, then confirm."
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Eta:
    """When a job is expected to start and to end, in seconds since the epoch; None where unknown."""

    starts: float | None = None
    ends: float | None = None


@dataclass(frozen=True, slots=True)
class Preview:
    policy: str
    params: Mapping[str, Any]
    config: int
    """``services.config_identity`` of the configuration that was in force."""
    snapshot: Snapshot
    sha256: str
    changes: tuple[JobChange, ...] = ()
    present: Mapping[JobId, Kind] = field(default_factory=dict)
    """By job, what the policy in force would do now; empty when it cannot decide."""
    before: Mapping[JobId, Eta] = field(default_factory=dict)
    after: Mapping[JobId, Eta] = field(default_factory=dict)
    wrong: str = ""
    """Why the new policy could not decide; the switch cannot be confirmed then."""

    @property
    def counts(self) -> dict[Kind, int]:
        found = Counter(change.kind for change in self.changes)
        return {kind: found[kind] for kind in KINDS}

    @property
    def material(self) -> str:
        """A digest of the running jobs that are stopped or resized, and how."""
        touched = sorted((change.job, change.kind) for change in self.changes if change.kind in DISRUPTIVE_KINDS)
        return hashlib.sha256(json.dumps(touched).encode()).hexdigest()[:16]

    @property
    def ticket(self) -> str:
        shown = {
            "policy": self.policy,
            "params": dict(self.params),
            "config": self.config,
            "material": self.material,
            "sha256": self.sha256,
        }
        return signing.dumps(shown, salt=SALT, compress=True)


def compute(key: str, params: Mapping[str, Any], *, etas: bool = True) -> Preview:
    """Compute the preview. Raises ValueError with a plain sentence for an unknown policy or a wrong parameter."""
    values = registry.complete(key, params)
    policy = registry.build(key, values)
    config = services.current_config()
    seen = snapshots.take(state=services.state_of(config))
    preview = Preview(key, values, services.config_identity(config), seen, sha256_of(snapshot_to_text(seen)))
    fresh = replace(seen, state={})  # a switch starts without state
    try:
        plan, rest = run_with_timeout(DECISION_SECONDS, lambda: _settled_plan(policy, fresh))
    except PolicyFailedError as error:
        return replace(preview, wrong=str(error))
    reasons = {job: in_units_of_lab(reason, seen) for job, reason in plan.reasons.items()}
    preview = replace(preview, changes=changes(seen, _placements(rest), reasons))
    try:
        present = registry.build(config.policy, config.params)
        plan, rest = run_with_timeout(DECISION_SECONDS, lambda: _settled_plan(present, seen))
    except (ValueError, PolicyFailedError):
        return replace(preview, after=_etas(policy, fresh)) if etas else preview
    now = {change.job: change.kind for change in changes(seen, _placements(rest), plan.reasons)}
    preview = replace(preview, present=now)
    return replace(preview, before=_etas(present, seen), after=_etas(policy, fresh)) if etas else preview


def confirm(actor: User | None, key: str, params: Mapping[str, Any], ticket: str) -> SchedulerConfig:
    """Switch as it was shown. Raises Refused with code ``conflict`` when the preview no longer holds."""
    try:
        shown = signing.loads(ticket, salt=SALT, max_age=TICKET_SECONDS)
    except signing.SignatureExpired:
        raise Refused(f"The preview is more than an hour old. {CHECK_AGAIN}", "conflict") from None
    except signing.BadSignature:
        raise Refused(f"The request has no valid preview ticket. {CHECK_AGAIN}", "conflict") from None
    now = compute(key, params, etas=False)
    if now.wrong:
        raise Refused(now.wrong, "conflict")
    if (shown["policy"], shown["params"]) != (key, dict(now.params)):
        raise Refused(f"The preview was for other parameters. {CHECK_AGAIN}", "conflict")
    if shown["config"] != now.config:
        raise Refused(f"{services.switched_sentence()} {CHECK_AGAIN}", "conflict")
    if shown["material"] != now.material:
        raise Refused(
            f"Other running jobs would now be stopped or resized than the preview showed. {CHECK_AGAIN}", "conflict"
        )
    return services.switch_policy(actor, key, params, expected=now.config, snapshot_sha256=shown["sha256"])


class PolicyFailedError(Exception):
    """The policy could not decide; the message has the reason."""


def run_with_timeout(seconds: float, work: Callable[[], T]) -> T:
    """Return the result of ``work``. Raises PolicyFailedError when it fails, or takes longer and is abandoned."""
    answer: list[T] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            answer.append(work())
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="preview", daemon=True)
    thread.start()
    thread.join(seconds)
    if answer:
        return answer[0]
    if not failures:
        raise PolicyFailedError(
            f"The policy did not decide on the present state of the lab within {seconds:g} seconds."
        )
    if isinstance(failures[0], InvalidPlanError):
        wrong = violation_sentences(failures[0].violations)
        raise PolicyFailedError(f"Its plan for the present state of the lab is not allowed: {wrong}")
    raise PolicyFailedError(f"It failed on the present state of the lab: {type(failures[0]).__name__}: {failures[0]}")


def _settled_plan(policy: Policy, snapshot: Snapshot) -> tuple[Plan, Snapshot]:
    """Return the plan and the state to which the next cycles lead, with GPUs that are requested back released at once.

    Damping only delays this, so it is left out: the preview shows jobs as stopped as soon as they may be.
    """
    until = time.monotonic() + DECISION_SECONDS

    def ask(world: Snapshot) -> Plan:
        if time.monotonic() > until:
            raise TimeoutError("it takes too many scheduling cycles")
        return decide(policy, world)

    return settle(policy, replace(snapshot, damping_seconds=0.0), ask=ask)


def _placements(rest: Snapshot) -> dict[JobId, Mapping[str, int]]:
    return {job.id: job.now_on for job in rest.jobs}


class _StopSimulation(Exception):  # noqa: N818
    """Ends a simulation whose time is up."""


def _etas(policy: Policy, snapshot: Snapshot) -> dict[JobId, Eta]:
    """Simulate the future, with each job's estimates taken as true. Jobs that already run have no time of start."""
    waiting = {job.id for job in snapshot.jobs if not job.now_on}
    starts: dict[JobId, float] = {}
    until = time.monotonic() + ETA_SECONDS

    def watch(world: Snapshot, plan: Plan) -> None:
        for job, where in plan.target.items():
            if job in waiting and any(where.values()):
                starts.setdefault(job, world.now)
        if time.monotonic() > until:
            raise _StopSimulation

    try:
        result = simulate(
            policy,
            snapshot.nodes,
            [Submission(job, assumed(job)) for job in snapshot.jobs if not job.stopping],
            now=snapshot.now,
            limits=snapshot.limits,
            accounts=snapshot.accounts,
            reservations=snapshot.reservations,
            options=Options(
                state=snapshot.state,
                until=snapshot.now + HORIZON_SECONDS,
                patience_seconds=snapshot.patience_seconds,
                damping_seconds=snapshot.damping_seconds,
                window_part=WINDOW_PART,
                explain=False,
            ),
            on_turn=watch,
        )
    except _StopSimulation:
        ends: dict[JobId, float | None] = {}
    except InvalidPlanError:
        return {}
    else:
        ends = {row.id: row.ended_at for row in result.jobs}
    return {job.id: Eta(starts.get(job.id), ends.get(job.id)) for job in snapshot.jobs}
