"""Which environments a job can run in, and which fits a code version best."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import BooleanField, Case, Count, Q, When

from portal.environments.models import Environment, Lock, NodeEnvironment
from portal.environments.summary import Summary, has_failed, summaries
from portal.jobs.models import Container, Job
from portal.projects import inspection
from portal.projects.models import Project

FRAMEWORKS = frozenset({"torch", "tensorflow", "keras", "horovod"})
"""The import names of packages for which there are environments; others come with them."""


def offered_environments(project: Project) -> list[Environment]:
    """Return the environments a job of a project can choose, each with ``ready_on`` and ``known_on``, numbers of nodes,
    and ``has_failed``."""
    on_live = Q(on_nodes__node__removed_at__isnull=True, on_nodes__node__approved_at__isnull=False)
    ready = Q(on_nodes__state=NodeEnvironment.State.READY)
    rows = Environment.objects.usable_in(project).annotate(
        ready_on=Count("on_nodes", filter=on_live & ready),
        known_on=Count("on_nodes", filter=on_live),
        has_failed=Case(When(has_failed(), then=True), default=False, output_field=BooleanField()),
    )
    return list(rows.order_by("position", "key"))


def layers_of(job: Job) -> list[str]:
    """Return the digests of the locks with which a job ran, the last one first; none for an environment without a recipe."""
    containers = Container.objects.filter(attempt__job=job, spec__layer__isnull=False).order_by("-pk")
    digests = dict.fromkeys(containers.values_list("spec__layer", flat=True))
    known = set(Lock.objects.filter(digest__in=digests).values_list("digest", flat=True))
    return [digest for digest in digests if digest in known]


def environment_labels(environments: Sequence[Environment]) -> list[tuple[str, str]]:
    """Return the keys of environments with their titles, and what keeps each from being used at once."""
    known = summaries(environments)
    return [(each.key, f"{each.title}{_standing(known[each.pk])}") for each in environments]


def _standing(summary: Summary) -> str:
    """Return where an environment stands, in brackets; empty if a node has it ready."""
    if summary.state == "ready":
        return ""
    if summary.running is not None:
        return f" (being built, {summary.running.progress_percent} %)"
    texts = {
        "building": "being prepared",
        "requested": "being built",
        "failed": "its build failed" if summary.failed_build else "it could not be prepared",
        "not_built": "prepared when a job needs it",
    }
    return f" ({texts.get(summary.state, summary.state)})"


def best_environment(guess: Mapping[str, Any], environments: Sequence[Environment]) -> Environment | None:
    """Return the offered environment that fits the inspected code best.

    It lacks the fewest frameworks, has not failed if possible, lacks the fewest packages that the code always imports, then the
    fewest of its functions, and is ready if possible.
    """
    return min(environments, key=lambda each: _mismatch(guess, each), default=None)


def frameworks_of(guess: Mapping[str, Any], launcher: str) -> frozenset[str]:
    """Return the frameworks that the inspected code imports, and the one that its launcher needs."""
    needed = (
        {"horovod"} if launcher == Job.Launcher.HOROVOD else {"torch"} if launcher == Job.Launcher.TORCHRUN else set()
    )
    return FRAMEWORKS.intersection(guess.get("imports", {})) | needed


def _mismatch(guess: Mapping[str, Any], environment: Any) -> tuple[int, bool, int, int, bool, int]:
    missing = [each["code"] for each in inspection.missing_modules(dict(guess), environment.packages)]
    always = missing.count(inspection.MISSING)
    frameworks = frameworks_of(guess, str(guess.get("launcher", "")))
    lacking = len(frameworks.difference(environment.packages))
    return (
        lacking,
        environment.has_failed,
        always,
        len(missing),
        not environment.ready_on,
        environment.position,
    )
