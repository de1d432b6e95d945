"""All faults that are carried out, by their numbers in docs/development/fault-tests.md."""

from tests.cluster import gpu_faults as gpu
from tests.cluster import node_faults as node
from tests.cluster import people_faults as people
from tests.cluster import portal_faults as portal
from tests.cluster import ring_faults as rings
from tests.cluster.judge import Rules
from tests.cluster.scene import Fault

LOSES = Rules(calm=False)
CUTS = Rules(calm=False, cut_logs=True)
KEEPS = Rules(calm=False, whole_logs=True)


def away(minutes: float) -> Fault:
    title, seconds = f"the portal is away for {minutes:g} minutes", minutes * 60
    return Fault("away", title, portal.away(seconds), KEEPS, times=1, seconds=seconds + 120)


FAULTS = (
    Fault("F1", "kill -9 of the web process", portal.web_dies, short=True),
    Fault("F2", "kill -9 of the scheduler", portal.scheduler_dies, short=True),
    Fault("F3", "kill -9 of the leading of two schedulers", portal.leader_dies, prepare=portal.two_schedulers),
    Fault("F4", "a scheduler stopped, deposed, and woken", portal.leader_is_a_zombie, prepare=portal.two_schedulers),
    Fault("F5", "kill -9 of the Celery worker or its child", portal.worker_dies),
    Fault("F6", "Celery's messages three times, shuffled", portal.tasks_come_again),
    Fault("F7", "kill -9 of an agent, back within 15 s", node.agent_dies, short=True),
    Fault("F8a", "kill -9 of dockerd", node.engine_dies, short=True),
    Fault("F8b", "dockerd stopped for up to 15 s", node.engine_stands_still, seconds=12),
    Fault("F9a", "kill -9 of a containerd shim", node.shim_dies, LOSES, short=True),
    Fault("F9b", "kill -9 of a container's first process", node.first_process_dies, LOSES),
    Fault(
        "F10a",
        "power of a machine fails, back within 20 s",
        node.power_fails,
        LOSES,
        power=True,
        short=True,
        seconds=22,
    ),
    Fault(
        "F10b",
        "power of a machine is away",
        node.power_is_away,
        LOSES,
        longest_seconds=20,
        pace_seconds=4,
        power=True,
        seconds=85,
    ),
    Fault(
        "F11a",
        "a machine cut off for up to 25 s",
        node.cable_for_a_moment,
        longest_seconds=20,
        pace_seconds=3,
        short=True,
        seconds=26,
    ),
    Fault(
        "F11b",
        "a machine cut off for longer",
        node.cable_for_long,
        LOSES,
        longest_seconds=20,
        pace_seconds=8,
        seconds=85,
    ),
    Fault(
        "F12",
        "two machines of a ring cut off from each other",
        rings.nodes_are_parted,
        longest_seconds=4,
        pace_seconds=6,
        prepare=rings.grows_at_once,
        environment=rings.ENVIRONMENT,
        seconds=75,
    ),
    Fault("F13", "Redis killed, emptied or frozen", portal.redis_fails, short=True),
    Fault("F14", "PostgreSQL killed or stopped, back within 8 s", portal.postgres_fails, short=True),
    Fault("F16", "a machine's disk is full for up to 15 s", node.disk_is_full, CUTS, prepare=node.small_disk),
    Fault("F17", "wall clocks jump", portal.clock_jumps, prepare=portal.clocks, seconds=16),
    Fault("F18", "a job takes more memory than it may", people.memory_is_short),
    Fault(
        "F19",
        "a rank raises, is killed, hangs, stands still, leaves",
        rings.rank_fails,
        longest_seconds=4,
        pace_seconds=6,
        prepare=rings.grows_at_once,
        environment=rings.ENVIRONMENT,
        seconds=60,
    ),
    Fault("F20", "an error of a pretended GPU", gpu.gpu_fails, LOSES, prepare=gpu.pretended_gpus, seconds=45),
    Fault("F21", "viewers who never read", people.viewers_stand_still),
    Fault("F22", "a job floods its log", people.log_floods),
    Fault("F24", "cancel at any moment", people.cancel_races, short=True),
    Fault("F25", "the policy changes under load", people.policy_changes, LOSES, prepare=people.first_policy_again),
    Fault("F26", "an engine that is slow, cut off or broken", node.engine_is_broken, prepare=node.engine_behind_a_wall),
    Fault("F27a", "unexpected containers and networks", node.orphans_appear, seconds=25),
    Fault("F27b", "a container vanishes", node.container_vanishes, LOSES),
    Fault("F28", "a deploy: all of ours stopped and started", portal.everything_is_deployed, seconds=20),
    Fault(
        "F29",
        "a machine is drained or lost that a ring's minimum needs",
        rings.minimum_is_broken,
        LOSES,
        longest_seconds=4,
        pace_seconds=6,
        prepare=rings.grows_at_once,
        power=True,
        environment=rings.ENVIRONMENT,
        seconds=120,
    ),
    away(10),
)
