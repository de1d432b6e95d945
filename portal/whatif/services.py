"""Simulations: requested by admins, run one at a time by ``tasks``, and kept for a while."""

import json
import logging
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from portal.accounts.models import User
from portal.refused import Refused
from portal.scheduler import services as scheduler_services
from portal.whatif import figures, messages, progress, simulation_runs
from portal.whatif.figures import Outcome
from portal.whatif.history import World
from portal.whatif.models import Simulation
from scheduling import registry
from scheduling.failures import PlanRefused
from scheduling.messages import Message, Text
from scheduling.simulate import InvalidPlanError
from scheduling.types import Plan, Snapshot

logger = logging.getLogger(__name__)

WINDOWS = (7, 14, 30)
MAX_POLICIES = 4
"""Including the policy in force."""
MAX_KEPT = 50
MAX_QUEUED = 10
DEAD_AFTER = timedelta(minutes=3)
"""A running simulation saves its progress every second, except in long decisions; after this it counts as dead."""
SAVE_SECONDS = 1.0
MAX_SECONDS = 1800.0
MAX_QUOTED = 500
State = Simulation.State
ACTIVE_STATES = (State.QUEUED, State.RUNNING)
Choice = tuple[str, Mapping[str, Any]]


def queue_simulation(actor: User, days: int, choices: Iterable[Choice]) -> Simulation:
    """Queue a simulation of the policy in force and of the chosen ones. Raises Refused with a sentence."""
    if days not in WINDOWS:
        raise Refused(f"Choose the last {WINDOWS[0]}, {WINDOWS[1]} or {WINDOWS[2]} days.", field="days")
    wanted = [_complete_choice(key, params) for key, params in choices]
    if not wanted:
        raise Refused("Choose at least one policy to simulate.", field="policies")
    with transaction.atomic():
        config = scheduler_services.config_in_force()
        if config.policy not in registry.POLICIES:
            raise Refused(f"The policy in force, {config.policy}, is no longer in the code: switch first.", "conflict")
        policies = [_complete_choice(config.policy, config.params)]
        policies += [each for place, each in enumerate(wanted) if each not in policies + wanted[:place]]
        if len(policies) > MAX_POLICIES:
            raise Refused(f"At most {MAX_POLICIES} policies at once, including the one in force.", field="policies")
        if Simulation.objects.filter(status=State.QUEUED).count() >= MAX_QUEUED:
            raise Refused("Ten simulations are waiting already: cancel some, or wait for them.", "limit")
        now = timezone.now()
        return Simulation.objects.create(
            created_by=actor, config=config, days=days, start=now - timedelta(days=days), end=now, policies=policies
        )


def _complete_choice(key: str, params: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {"policy": key, "params": registry.complete(key, params)}
    except ValueError as error:
        raise Refused(str(error), field="policies") from error


def cancel(simulation: Simulation) -> None:
    """Cancel a simulation; one that runs ends within about a second. Raises Refused when it is already over."""
    rows = Simulation.objects.filter(pk=simulation.pk, status__in=ACTIVE_STATES)
    if not rows.update(status=State.CANCELLED, over_at=timezone.now()):
        raise Refused("This simulation is already over.", "conflict")
    simulation.refresh_from_db()


def ahead_of(simulation: Simulation) -> int:
    """Return how many simulations come before a queued one."""
    return Simulation.objects.filter(status__in=ACTIVE_STATES, pk__lt=simulation.pk).count()


# --- running -----------------------------------------------------------------------------------------------------


class SimulationCancelledError(Exception):
    """The simulation was cancelled while it ran."""


class SimulationTimeoutError(Exception):
    """The simulation took longer than ``MAX_SECONDS``."""


def run_queued() -> int:
    """Run the queued simulations one after the other; return how many. Several processes may call it at once."""
    count = 0
    while (simulation := _claim()) is not None:
        count += 1
        try:
            _finish(simulation, status=State.DONE, result=_simulate_policies(simulation), progress=1.0)
        except SimulationCancelledError:
            logger.info("simulation %s was cancelled", simulation.pk)
        except Refused as refusal:
            _fail(simulation, Text(str(refusal)))
        except SimulationTimeoutError:
            _fail(simulation, messages.TookTooLong(round(MAX_SECONDS / 60)))
        except Exception as error:
            logger.exception("simulation %s failed", simulation.pk)
            _fail(simulation, messages.Broke(type(error).__name__))
        _delete_old()
    return count


def _fail(simulation: Simulation, why: Message) -> None:
    _finish(simulation, status=State.FAILED, error=why.data())


def _claim() -> Simulation | None:
    """Claim the next queued simulation and return it; None when there is none or another one runs."""
    now = timezone.now()
    Simulation.objects.filter(status=State.RUNNING, seen_at__lt=now - DEAD_AFTER).update(
        status=State.FAILED,
        over_at=now,
        error=messages.Interrupted().data(),
    )
    following = Simulation.objects.filter(status=State.QUEUED).order_by("pk").first()
    if following is None or Simulation.objects.filter(status=State.RUNNING).exists():
        return None
    try:
        with transaction.atomic():  # the constraint lets only one run
            rows = Simulation.objects.filter(pk=following.pk, status=State.QUEUED)
            claimed = rows.update(status=State.RUNNING, begun_at=now, seen_at=now)
    except IntegrityError:
        return None
    following.refresh_from_db()
    return following if claimed else None


def _finish(simulation: Simulation, **values: Any) -> None:
    rows = Simulation.objects.filter(pk=simulation.pk, status=State.RUNNING)
    rows.update(over_at=timezone.now(), **values)


def _delete_old() -> None:
    over = Simulation.objects.exclude(status__in=ACTIVE_STATES).order_by("-pk").values_list("pk", flat=True)
    Simulation.objects.filter(pk__in=list(over[MAX_KEPT:])).delete()


class _ProgressReporter:
    """Saves the progress of a simulation, and notices whether it was cancelled or takes too long."""

    def __init__(self, simulation: Simulation, world: World) -> None:
        self.simulation, self.submission_times = simulation, progress.submission_times(world)
        self.titles = [each["policy"] for each in simulation.policies]
        self.policy, self.progress = 0, 0.0
        self.parts = progress.initial_parts(simulation, len(world.jobs))
        self.saved = self.began = self.since = time.monotonic()

    def begin(self, policy: int) -> None:
        self.policy, self.since = policy, time.monotonic()
        self._update_part(0.0)
        self.save()

    def on_cycle(self, snapshot: Snapshot, plan: Plan) -> None:
        now = time.monotonic()
        if now - self.began > MAX_SECONDS:
            raise SimulationTimeoutError
        if now - self.saved >= SAVE_SECONDS:
            self._update_part(min(0.999, progress.simulated_share(self.submission_times, snapshot)))
            self.save()

    def end(self, *, whole: bool) -> None:
        """End a policy. Unless ``whole`` it failed, and is no measure of how long others will take."""
        self._update_part(1.0)
        if not whole:
            self.parts[self.policy]["jobs"] = 0
        self.save()

    def _update_part(self, part: float) -> None:
        seconds = max(0.001, time.monotonic() - self.since)  # 0 would mean that it has not begun
        self.parts[self.policy] |= {"part": round(part, 4), "seconds": round(seconds, 3)}

    def save(self) -> None:
        """Save the progress. It never goes back, even if the simulation turns out to take longer than expected."""
        self.saved = time.monotonic()
        self.simulation.parts = self.parts
        self.progress = max(self.progress, progress.share_done(progress.steps(self.simulation, self.titles)))
        rows = Simulation.objects.filter(pk=self.simulation.pk, status=State.RUNNING)
        if not rows.update(progress=self.progress, parts=self.parts, seen_at=timezone.now()):
            raise SimulationCancelledError


def _simulate_policies(simulation: Simulation) -> dict[str, Any]:
    world = simulation_runs.read_world(simulation.start, simulation.end)
    reporter = _ProgressReporter(simulation, world)
    simulated: list[dict[str, Any]] = []
    in_force: list[Outcome] | None = None
    for place, each in enumerate(simulation.policies):
        reporter.begin(place)
        policy = registry.build(each["policy"], each["params"])
        try:
            result = simulation_runs.simulate_world(world, policy, on_turn=reporter.on_cycle)
            outcomes = figures.simulated_outcomes(world, result)
            found = figures.summarise(world, outcomes)
            if place == 0:
                in_force = outcomes
            elif in_force is not None:
                found["starts"] = figures.compare_starts(outcomes, in_force)
            simulated.append(found)
        except (SimulationCancelledError, SimulationTimeoutError):
            raise
        except InvalidPlanError as error:
            simulated.append({"wrong": PlanRefused.from_violations(error.violations).data()})
        except Exception as error:
            logger.exception("policy %s failed in simulation %s", each["policy"], simulation.pk)
            simulated.append(
                {"wrong": messages.FailedOnHistory(f"{type(error).__name__}: {error}"[:MAX_QUOTED]).data()}
            )
        reporter.end(whole="wrong" not in simulated[-1])
    report = {
        "really": figures.summarise(world, figures.actual_outcomes(world)),
        "simulated": simulated,
        "gpu_hours_offered": round(world.capacity_gpu_seconds / 3600, 3),
        "nodes": len(world.nodes),
    }
    plain: dict[str, Any] = json.loads(json.dumps(report))
    return plain
