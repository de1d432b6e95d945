"""The layers of the test suite: what each runs, what it needs, and which command includes it.

``make check`` runs lint and the layer *core*. ``make test`` runs every other layer without the tests marked
``thorough``. ``make test-all`` runs all tests, with new random examples for the property tests.
"""

from dataclasses import dataclass
from enum import StrEnum

from tests.run.packages import Need


class Level(StrEnum):
    CHECK = "check"
    TEST = "test"
    ALL = "all"


ELSEWHERE = "postgres or docker or bubblewrap or horovod or system or outside or cluster or browser or gpu"
"""Markers of tests that need more than Python; each has a layer of its own."""
WORKERS = ("-n", "2", "--dist=worksteal")
WORKERS_BY_MODULE = ("-n", "2", "--dist=loadfile", "--no-loadscope-reorder")
"""For modules whose tests look at one run of something long, or share a portal."""
CORE = (
    "tests/architecture",
    "tests/scheduling",
    "tests/training",
    "tests/portal/accounts/test_services.py",
    "tests/portal/projects/test_services.py",
    "tests/portal/cluster/test_services.py",
    "tests/portal/jobs/test_rules.py",
    "tests/portal/jobs/test_lifecycle.py",
    "tests/portal/jobs/test_services.py",
    "tests/portal/jobs/test_views.py",
    "tests/portal/scheduler/test_cycle.py",
    "tests/portal/scheduler/test_snapshot.py",
    "tests/portal/usage/test_rollups.py",
    "tests/portal/monitoring/test_samples.py",
    "tests/portal/forecast/test_futures.py",
    "tests/portal/whatif/test_job_history.py",
    "tests/runners/agent/test_reconcile.py",
    "tests/runners/agent/test_log_shipper.py",
)
"""Pure tests, and at least one test module of each app of the portal."""


@dataclass(frozen=True)
class Layer:
    """One run of pytest.

    ``marks`` is pytest's marker expression. ``needs`` names what must be installed or started first. ``database`` is
    True for the layer that runs on PostgreSQL and Redis; all others run on SQLite or start servers by themselves.
    """

    name: str
    title: str
    paths: tuple[str, ...]
    marks: str
    options: tuple[str, ...] = ()
    needs: frozenset[Need] = frozenset()
    levels: frozenset[Level] = frozenset({Level.TEST, Level.ALL})
    database: bool = False

    @property
    def waits(self) -> bool:
        """Mostly waits for containers, browsers and clocks, so it may run beside a layer that computes."""
        return Need.ENGINE in self.needs

    def arguments(self, level: Level) -> list[str]:
        """The arguments of pytest."""
        marks = self.marks if level == Level.ALL else f"({self.marks}) and not thorough"
        return ["-m", marks, *self.options, *self.paths]


# Layers that wait run in this order beside those that compute, also in this order (``make test-all`` runs them afterwards).
# ``cluster`` leaves most of the processors to ``portal``, and ``runners`` most of them to ``browser`` and ``docker``.
LAYERS = (
    Layer(
        "core",
        "pure tests, and the core of each app on SQLite",
        CORE,
        f"not ({ELSEWHERE})",
        WORKERS,
        levels=frozenset({Level.CHECK}),
    ),
    Layer(
        "pure",
        "scheduling, the rules of the training library, the judges of other tests, and the repository itself",
        ("tests/scheduling", "tests/training", "tests/architecture", "tests/cluster", "tests/outside"),
        f"not ({ELSEWHERE})",
        WORKERS,
    ),
    Layer(
        "portal",
        "the portal on SQLite",
        ("tests/laws", "tests/portal"),
        f"not ({ELSEWHERE})",
        WORKERS,
    ),
    Layer(
        "runners",
        "agents and supervisors as processes",
        ("tests/runners",),
        f"not ({ELSEWHERE})",
        WORKERS,
    ),
    Layer(
        "bubblewrap",
        "jobs as processes inside bubblewrap",
        ("tests/runners", "tests/portal/projects/git"),
        "bubblewrap and not horovod",
        WORKERS,
        frozenset({Need.BUBBLEWRAP}),
    ),
    Layer(
        "databases",
        "the portal on PostgreSQL and Redis",
        ("tests/laws", "tests/portal"),
        "not (docker or horovod or system or cluster or browser or gpu)",
        WORKERS,
        frozenset({Need.SERVERS}),
        database=True,
    ),
    Layer(
        "outside",
        "a running lab under a random load, judged over its REST API",
        ("tests/outside",),
        "outside",
        levels=frozenset({Level.ALL}),
    ),
    Layer(
        "cluster",
        "several machines, each with an engine of its own",
        ("tests/cluster",),
        "cluster",
        ("--timeout=900",),
        frozenset({Need.ENGINE, Need.SERVERS, Need.NAMESPACES}),
    ),
    Layer(
        "browser",
        "Chromium, as members and admins use it",
        ("tests/browser", "tests/js"),
        "browser",
        (*WORKERS_BY_MODULE, "--timeout=900"),
        frozenset({Need.ENGINE, Need.SERVERS, Need.CHROMIUM}),
    ),
    Layer(
        "docker",
        "containers on a Docker Engine",
        ("tests/runners",),
        "docker",
        needs=frozenset({Need.ENGINE}),
    ),
    Layer(
        "system",
        "the whole product in containers",
        ("tests/system", "tests/releases", "tests/runners"),
        "system",
        ("--timeout=900",),
        frozenset({Need.ENGINE, Need.SERVERS, Need.NAMESPACES}),
    ),
    Layer(
        "horovod",
        "Horovod and torchrun with real ranks",
        ("tests/runners", "tests/training"),
        "horovod and not docker",
        WORKERS_BY_MODULE,
        frozenset({Need.ENGINE, Need.BUBBLEWRAP}),
    ),
    Layer(
        "gpu",
        "CUDA devices, in containers and in training",
        ("tests/gpu",),
        "gpu",
        needs=frozenset({Need.ENGINE, Need.BUBBLEWRAP, Need.GPU}),
    ),
)


def layers_of(level: Level) -> list[Layer]:
    return [layer for layer in LAYERS if level in layer.levels]


def named(name: str) -> Layer:
    return next(layer for layer in LAYERS if layer.name == name)
