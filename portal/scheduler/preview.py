"""What a switch to another policy would change now, shown before it is confirmed; and the confirming.

A preview is of one snapshot and one configuration in force. It gives out a ``ticket``, a signed note of what was shown.
A switch with a ticket is refused, to be looked at again, when what it stood on is *materially* different: another
configuration is in force, or other running jobs would be stopped or resized than were shown. Jobs that came or ended
meanwhile, and others that start or wait, are no reason: that is what a scheduler does all day.
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
from portal.scheduler.models import SchedulerConfig
from portal.scheduler.recording import sha256_of
from scheduling import registry
from scheduling.changes import DISTURBED, KINDS, Change, Kind, changes
from scheduling.decide import decide
from scheduling.simulate import Options, Submission, assumed, settle, simulate
from scheduling.simulate import Refused as NotAllowed
from scheduling.types import JobId, Plan, Policy, Snapshot
from scheduling.wire import snapshot_to_text

THINK_SECONDS = 15.0
"""For bringing the world to rest under a policy: a few decisions."""
ETA_SECONDS = 3.0
"""For simulating on under each policy; what is not known by then stays open."""
HORIZON_SECONDS = 30 * 86_400.0
TICKET_SECONDS = 3600
SALT = "portal.control.preview"  # as before the module moved: previews that are open outlive an upgrade
LOOK_AGAIN = "Nothing was switched. Look again, then confirm."
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Eta:
    """When a job is expected to start and to end, in seconds since the epoch; None where the simulation cannot tell."""

    starts: float | None = None
    ends: float | None = None


@dataclass(frozen=True, slots=True)
class Preview:
    policy: str
    params: Mapping[str, Any]
    config: int
    """``services.config_identity`` of the one in force that it was made beside."""
    snapshot: Snapshot
    sha256: str
    changes: tuple[Change, ...] = ()
    present: Mapping[JobId, Kind] = field(default_factory=dict)
    """What the policy in force would do now; empty when it cannot decide."""
    before: Mapping[JobId, Eta] = field(default_factory=dict)
    after: Mapping[JobId, Eta] = field(default_factory=dict)
    wrong: str = ""
    """Why the new policy could not decide; then there is nothing to confirm."""

    @property
    def counts(self) -> dict[Kind, int]:
        found = Counter(change.kind for change in self.changes)
        return {kind: found[kind] for kind in KINDS}

    @property
    def material(self) -> str:
        """A digest of which running jobs are stopped or resized, and how."""
        touched = sorted((change.job, change.kind) for change in self.changes if change.kind in DISTURBED)
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
    """Raises ValueError with plain sentences when there is no such policy or a parameter is wrong."""
    values = registry.complete(key, params)
    policy = registry.build(key, values)
    config = services.current_config()
    kept = services.state_of(config)
    seen = snapshots.take(state=kept)
    preview = Preview(key, values, services.config_identity(config), seen, sha256_of(snapshot_to_text(seen)))
    fresh = replace(seen, state={})  # a switch starts afresh
    try:
        plan, rest = within(THINK_SECONDS, lambda: _at_rest(policy, fresh))
    except PolicyFailedError as error:
        return replace(preview, wrong=str(error))
    preview = replace(preview, changes=changes(seen, _placed(rest), plan.reasons))
    try:
        present = registry.build(config.policy, config.params)
        plan, rest = within(THINK_SECONDS, lambda: _at_rest(present, seen))
    except (ValueError, PolicyFailedError):
        return replace(preview, after=_etas(policy, fresh)) if etas else preview
    now = {change.job: change.kind for change in changes(seen, _placed(rest), plan.reasons)}
    preview = replace(preview, present=now)
    return replace(preview, before=_etas(present, seen), after=_etas(policy, fresh)) if etas else preview


def confirm(actor: User | None, key: str, params: Mapping[str, Any], ticket: str) -> SchedulerConfig:
    """Switches as it was shown. Raises Refused with code ``conflict`` when it has to be looked at again."""
    try:
        shown = signing.loads(ticket, salt=SALT, max_age=TICKET_SECONDS)
    except signing.SignatureExpired:
        raise Refused(f"What you were shown is more than an hour old. {LOOK_AGAIN}", "conflict") from None
    except signing.BadSignature:
        raise Refused(f"This does not say what you were shown. {LOOK_AGAIN}", "conflict") from None
    now = compute(key, params, etas=False)
    if now.wrong:
        raise Refused(now.wrong, "conflict")
    if (shown["policy"], shown["params"]) != (key, dict(now.params)):
        raise Refused(f"These are not the parameters whose effects you were shown. {LOOK_AGAIN}", "conflict")
    if shown["config"] != now.config:
        raise Refused(f"{services.who_switched()} {LOOK_AGAIN}", "conflict")
    if shown["material"] != now.material:
        raise Refused(
            f"Meanwhile other running jobs would be stopped or resized than you were shown. {LOOK_AGAIN}", "conflict"
        )
    return services.switch_policy(actor, key, params, expected=now.config, snapshot_sha256=shown["sha256"])


class PolicyFailedError(Exception):
    """The policy could not decide; the message says why."""


def within(seconds: float, work: Callable[[], T]) -> T:
    """What ``work`` gives. Raises PolicyFailedError when it fails or takes longer: a thread cannot be ended, but left behind."""
    answer: list[T] = []
    trouble: list[Exception] = []

    def think() -> None:
        try:
            answer.append(work())
        except Exception as error:
            trouble.append(error)

    thread = threading.Thread(target=think, name="preview", daemon=True)
    thread.start()
    thread.join(seconds)
    if answer:
        return answer[0]
    if not trouble:
        raise PolicyFailedError(f"This policy did not decide on the lab as it is within {seconds:g} seconds.")
    if isinstance(trouble[0], NotAllowed):
        raise PolicyFailedError(f"Its plan for the lab as it is is not allowed: {trouble[0]}")
    raise PolicyFailedError(f"It failed on the lab as it is: {type(trouble[0]).__name__}: {trouble[0]}")


def _at_rest(policy: Policy, snapshot: Snapshot) -> tuple[Plan, Snapshot]:
    """Where the next turns lead, with GPUs asked back given back at once.

    Damping only delays this, so it is left out: the preview shows the jobs that are stopped as soon as they may be.
    """
    until = time.monotonic() + THINK_SECONDS

    def ask(world: Snapshot) -> Plan:
        if time.monotonic() > until:
            raise TimeoutError("it takes too many turns")
        return decide(policy, world)

    return settle(policy, replace(snapshot, damping_seconds=0.0), ask=ask)


def _placed(rest: Snapshot) -> dict[JobId, Mapping[str, int]]:
    return {job.id: job.now_on for job in rest.jobs}


class _StopSimulation(Exception):  # noqa: N818
    """The time for looking ahead is over."""


def _etas(policy: Policy, snapshot: Snapshot) -> dict[JobId, Eta]:
    """From simulating on, with each job's estimates taken for the truth. None for jobs that already run starts."""
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
            ),
            on_turn=watch,
        )
    except _StopSimulation:
        ends: dict[JobId, float | None] = {}
    except NotAllowed:
        return {}
    else:
        ends = {row.id: row.ended_at for row in result.jobs}
    return {job.id: Eta(starts.get(job.id), ends.get(job.id)) for job in snapshot.jobs}
