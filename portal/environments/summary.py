"""Where environments stand: on which nodes they are ready, what is being built, what failed, how large they are.

For lists, so the number of queries does not grow with the number of environments.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Case, Exists, Max, OuterRef, Q, QuerySet, Subquery, TextField, Value, When
from django.utils import timezone

from portal.environments.builds import in_progress, message_in
from portal.environments.models import Build, Environment, Lock, NodeEnvironment
from portal.sentences import agents

REQUESTED_FOR = timedelta(days=1)
"""How long nodes keep up with a build that a user asked for, although no job needs it."""
ON_LIVE_NODE = Q(node__removed_at=None, node__approved_at__isnull=False)
UNSUCCESSFUL = (Build.State.FAILED, Build.State.CANCELLED, Build.State.LOST)


@dataclass(frozen=True, slots=True)
class Summary:
    """Where one environment stands."""

    environment: Environment
    places: tuple[NodeEnvironment, ...]
    """Its state on each node of the lab that has reported one, by the node's name."""
    last_build: Build | None
    """The newest build of its recipe."""
    running: Build | None
    """The furthest of those that run; there may be one for each kind of node."""
    lock: Lock | None
    """The newest lock, without its text."""

    @property
    def ready_on(self) -> list[str]:
        """The names of the nodes that have it ready."""
        return [place.node.name for place in self.places if place.state == NodeEnvironment.State.READY]

    @property
    def failed(self) -> NodeEnvironment | None:
        """A node that could not get it."""
        return next((place for place in self.places if place.state == NodeEnvironment.State.FAILED), None)

    @property
    def preparing(self) -> NodeEnvironment | None:
        """The node that is furthest in getting it, of those that have begun."""
        begun = [place for place in self.places if place.state == NodeEnvironment.State.PREPARING]
        return max(begun, key=lambda place: place.progress_percent, default=None)

    @property
    def behind(self) -> NodeEnvironment | None:
        """A node that gets it after others."""
        waiting = (place for place in self.places if place.state == NodeEnvironment.State.WAITING)
        return next((place for place in waiting if is_behind_others(place.detail)), None)

    @property
    def failed_build(self) -> Build | None:
        """The newest build, if it ended without success and was not requested again since."""
        last = self.last_build
        if last is None or last.state not in UNSUCCESSFUL or last.generation < self.environment.generation:
            return None
        return last

    @property
    def build_failure(self) -> Any:
        """Why the newest build ended without success, if it did."""
        return message_in(self.failed_build, self.environment) if self.failed_build is not None else None

    @property
    def is_planned(self) -> bool:
        """Whether nothing of its recipe was built yet, so that its packages are those that it probably will have."""
        return bool(self.environment.recipe) and self.lock is None and not self.ready_on

    @property
    def failure(self) -> Any:
        """Why no job can use it, as it is stored: its only builds failed, or nodes could not prepare it. None otherwise."""
        if self.state != "failed" or self.lock is not None:
            return None
        failed = self.build_failure if self.failed_build else self.failed.detail if self.failed else ""
        return failed or "No reason was reported. See the log of the agent on the node."

    @property
    def is_requested(self) -> bool:
        """Whether nodes build it as soon as they can, although no job needs it."""
        asked = self.environment.requested_at
        return asked is not None and asked > timezone.now() - REQUESTED_FOR and not self.environment.retired

    @property
    def state(self) -> str:
        """One of ``STATES``, the first that is true."""
        if self.environment.retired:
            return "removed"
        if self.ready_on:
            return "ready"
        if self.running is not None or self.preparing is not None:
            return "building"
        if self.failed_build is not None or self.failed is not None:
            return "failed"
        return "requested" if self.is_requested else "not_built"


def is_behind_others(detail: Any) -> bool:
    """Whether a node reports of an environment that it prepares others first."""
    return isinstance(detail, dict) and detail["code"] == agents.environments.BehindOthers.code


STATES = ("ready", "building", "failed", "requested", "not_built", "removed")


def summaries(environments: Iterable[Environment]) -> dict[int, Summary]:
    """Return where environments stand, by their numbers. Four queries."""
    rows = list(environments)
    recipes = {row.recipe for row in rows if row.recipe}
    places: dict[int, list[NodeEnvironment]] = defaultdict(list)
    known = NodeEnvironment.objects.filter(ON_LIVE_NODE, environment__in=rows).select_related("node")
    for place in known.defer("node__facts").order_by("node__name"):  # which are long
        places[place.environment_id].append(place)
    newest = newest_builds(Build.objects.filter(recipe__in=recipes)).select_related("environment")
    last = {build.recipe: build for build in newest}
    running: dict[str, Build] = {}
    for build in Build.objects.filter(in_progress(), recipe__in=recipes).order_by("progress_percent"):
        running[build.recipe] = build
    done = Build.objects.filter(recipe__in=recipes, state=Build.State.DONE).select_related("lock")
    locks = {build.recipe: build.lock for build in newest_builds(done.defer("lock__text", "lock__modules"))}
    return {
        row.pk: Summary(
            row,
            tuple(places[row.pk]),
            last.get(row.recipe),
            running.get(row.recipe),
            locks.get(row.recipe),
        )
        for row in rows
    }


def summary_of(environment: Environment) -> Summary:
    return summaries([environment])[environment.pk]


def builds_of(environment: Environment) -> QuerySet[Build]:
    """Return the builds of an environment's recipe, which others with the same packages share; none without a recipe."""
    return Build.objects.filter(recipe=environment.recipe) if environment.recipe else Build.objects.none()


def newest_builds(builds: QuerySet[Build], *, per_kind: bool = False) -> QuerySet[Build]:
    """Return the newest of these builds for each recipe, or for each recipe and kind of node."""
    by = ("recipe", "kind") if per_kind else ("recipe",)
    newest = builds.select_related(None).order_by().values(*by).annotate(newest=Max("pk")).values("newest")
    return builds.filter(pk__in=newest)


def current_builds(environment: Environment) -> list[Build]:
    """Return, for each kind of node, the build whose packages jobs use, with its lock. By the kind."""
    done = builds_of(environment).filter(state=Build.State.DONE, lock__isnull=False)
    return list(newest_builds(done, per_kind=True).select_related("lock").order_by("kind"))


def builds_in_use(environments: Iterable[Environment]) -> dict[str, list[Build]]:
    """Return what ``current_builds`` does for several environments, by their recipes. One query.

    Texts of packages, which are long, are left out; ``image`` has that of an image.
    """
    recipes = {row.recipe for row in environments if row.recipe}
    done = Build.objects.filter(recipe__in=recipes, state=Build.State.DONE, lock__isnull=False)
    rows = newest_builds(done, per_kind=True).select_related("lock").defer("lock__text", "lock__modules")
    image = Case(When(lock__facts__has_key="content", then="lock__text"), default=Value(""), output_field=TextField())
    found: dict[str, list[Build]] = defaultdict(list)
    for build in rows.annotate(image=image).order_by("kind"):
        found[build.recipe].append(build)
    return found


def with_size(environments: QuerySet[Environment]) -> QuerySet[Environment]:
    """Annotate environments with ``size``: the bytes of the packages that they add to their base, of the newest build."""
    done = Build.objects.filter(recipe=OuterRef("recipe"), state=Build.State.DONE).exclude(recipe="")
    return environments.annotate(size=Subquery(done.order_by("-pk").values("lock__unpacked_bytes")[:1]))


# --- filters -----------------------------------------------------------------------------------------------------


def _on_a_node(*states: str) -> Any:
    return Exists(NodeEnvironment.objects.filter(ON_LIVE_NODE, environment=OuterRef("pk"), state__in=states))


def _is_built() -> Any:
    return Exists(Build.objects.filter(in_progress(), recipe=OuterRef("recipe")))


def _ended_without_success() -> Any:
    later = Build.objects.filter(recipe=OuterRef("recipe"), pk__gt=OuterRef("pk"))
    ended = Build.objects.filter(recipe=OuterRef("recipe"), state__in=UNSUCCESSFUL).filter(~Exists(later))
    return Exists(ended.filter(generation__gte=OuterRef("generation")))


def has_failed() -> Q:
    """Return the condition of environments that no job can use, because all their builds failed or nodes could not prepare
    them (``Summary.failure``)."""
    failed, ready, building = (CONDITIONS[name][1]() for name in ("failed", "ready", "building"))
    built = Q(Exists(Build.objects.filter(recipe=OuterRef("recipe"), state=Build.State.DONE)))
    return failed & ~ready & ~building & ~built


CONDITIONS: dict[str, tuple[str, Callable[[], Q]]] = {
    "ready": ("ready on a node", lambda: Q(_on_a_node(NodeEnvironment.State.READY))),
    "building": (
        "being built",
        lambda: Q(_on_a_node(NodeEnvironment.State.PREPARING)) | ~Q(recipe="") & Q(_is_built()),
    ),
    "failed": (
        "failed",
        lambda: Q(_on_a_node(NodeEnvironment.State.FAILED)) | ~Q(recipe="") & Q(_ended_without_success()),
    ),
    "not_built": ("ready on no node", lambda: ~Q(_on_a_node(NodeEnvironment.State.READY))),
}
"""What a list may be narrowed to: the words, and the condition. More than one may hold for an environment."""
