"""Which environments a job can run in, and which fits a code version best."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Count, Q

from portal.environments.models import Environment, NodeEnvironment
from portal.jobs.models import Job
from portal.projects import inspection
from portal.projects.models import Project

FRAMEWORKS = frozenset({"torch", "tensorflow", "keras", "horovod"})
"""The import names of packages for which there are environments; others come with them."""


def offered_environments(project: Project) -> list[Environment]:
    """Return the environments a job of a project can choose, each with ``ready_on`` and ``known_on``: numbers of nodes."""
    on_live = Q(on_nodes__node__removed_at__isnull=True, on_nodes__node__approved_at__isnull=False)
    ready = Q(on_nodes__state=NodeEnvironment.State.READY)
    rows = Environment.objects.usable_in(project).annotate(
        ready_on=Count("on_nodes", filter=on_live & ready), known_on=Count("on_nodes", filter=on_live)
    )
    return list(rows.order_by("position", "key"))


def environment_label(environment: Any) -> str:
    """Return the title of an offered environment, with its state if no node has it ready."""
    if environment.ready_on:
        return f"{environment.title}"
    if environment.known_on:
        return f"{environment.title} (being prepared)"
    return f"{environment.title} ({'prepared when a job asks for it' if environment.on_demand else 'on no node yet'})"


def best_environment(guess: Mapping[str, Any], environments: Sequence[Environment]) -> Environment | None:
    """Return the offered environment that fits the inspected code best.

    It lacks the fewest frameworks, then the fewest packages that the code always imports, then the fewest of its functions, and
    is ready if possible.
    """
    return min(environments, key=lambda each: _mismatch(guess, each), default=None)


def frameworks_of(guess: Mapping[str, Any], launcher: str) -> frozenset[str]:
    """Return the frameworks that the inspected code imports, and the one that its launcher needs."""
    needed = (
        {"horovod"} if launcher == Job.Launcher.HOROVOD else {"torch"} if launcher == Job.Launcher.TORCHRUN else set()
    )
    return FRAMEWORKS.intersection(guess.get("imports", {})) | needed


def _mismatch(guess: Mapping[str, Any], environment: Any) -> tuple[int, int, int, bool, int]:
    missing = [each["code"] for each in inspection.missing_modules(dict(guess), environment.packages)]
    always = missing.count(inspection.MISSING)
    frameworks = frameworks_of(guess, str(guess.get("launcher", "")))
    lacking = len(frameworks.difference(environment.packages))
    return lacking, always, len(missing), not environment.ready_on, environment.position
