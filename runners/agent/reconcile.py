"""Compute the actions that bring this node to the state that the portal wants. Pure: values in, values out.

The agent calls ``reconcile`` again and again with the last reply of the portal and the last listing of the runtime. Each
action may be repeated, and each brings its container one step nearer to rest; at rest there are no actions. What must not
happen twice (a start) is guarded by the journal entry, which is written to the disk before the action.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address
from typing import Any, Literal

from runners.messages import Message
from runners.runtime import AttemptNetwork, ObservedContainer
from runners.spec import JobIdentity, RunSpec

WantedAction = Literal["run", "stop", "collect"]
State = Literal["ASSIGNED", "PREPARING", "RUNNING", "STOPPING", "EXITED"]

GRACE_SECONDS = 10
"""The grace period of a container that the portal no longer lists."""


@dataclass(frozen=True, slots=True)
class ControlMessage:
    """The content of control.json."""

    stop_reason: str = ""
    grace_seconds: int = GRACE_SECONDS
    hosts: tuple[tuple[str, int], ...] = ()
    batch: int = 0
    """Total samples per step that the scheduler chose; 0 if the job chooses them."""
    driver: str = ""
    """The present address of the rank group's driver if it can move; empty: the address in the container's RunSpec."""

    def to_json(self) -> dict[str, Any]:
        stop = {"reason": self.stop_reason, "grace_seconds": self.grace_seconds} if self.stop_reason else None
        hosts = [{"name": name, "slots": slots} for name, slots in self.hosts]
        return {"stop": stop, "hosts": hosts, "batch": self.batch or None, "driver": self.driver or None}


@dataclass(frozen=True, slots=True)
class ContainerListing:
    """One listing of the runtime's containers; ``began`` is in monotonic seconds."""

    began: float = -1.0
    containers: Mapping[str, ObservedContainer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DesiredContainer:
    """One container that the portal wants on this node, from its reply."""

    spec: RunSpec
    wanted: WantedAction
    control: ControlMessage = ControlMessage()
    peers: frozenset[str] = frozenset()
    """Addresses of the other nodes with containers of its attempt."""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "DesiredContainer":
        """Parse an entry of the portal's reply. Raises TypeError, KeyError or ValueError when ``data`` is not one."""
        spec = RunSpec.from_json(data["spec"])
        wanted, stop = data["wanted"], data.get("stop")
        if wanted not in ("run", "stop", "collect"):
            raise ValueError(f"{wanted!r} is not a desired state of a container.")
        reason = "" if wanted == "run" else "stopped"
        grace = spec.grace_seconds
        if stop:
            reason, grace = str(stop.get("reason") or "stopped"), int(stop.get("grace_seconds", grace))
        hosts = tuple((str(host["name"]), int(host["slots"])) for host in data.get("hosts") or ())
        driver = str(IPv4Address(data["driver"])) if data.get("driver") else ""
        peers = frozenset(str(IPv4Address(peer)) for peer in data.get("peers") or ())
        if data.get("identity"):
            spec = replace(spec, identity=JobIdentity.from_json(data["identity"]))
        return cls(
            spec, wanted, ControlMessage(reason, grace, hosts, max(0, int(data.get("batch") or 0)), driver), peers
        )


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container ended, in the terms of the protocol."""

    code: int | None
    reason: str
    message: Message | None = None

    @property
    def detail(self) -> str:
        """Return the message as text, empty without one."""
        return self.message.text if self.message else ""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """What the agent remembers about a container. Kept on the disk, in a folder that no container sees."""

    job: int
    attempt: int
    epoch: int
    created: bool = False
    """Its folders are filled and the runtime has created it."""
    started: bool = False
    """It was started, or was about to be: it must never be created again."""
    running_at: float | None = None
    """Unix seconds; None until the runtime has confirmed the start."""
    control: ControlMessage | None = None
    halted: str = ""
    """The agent's own reason to end it (``disk``); empty when it has none."""
    halted_detail: Message | None = None
    exit: Exit | None = None
    collected: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    name: str


class Prepare(Action):
    """Fetch the code, fill the folders, create the container; and start it if the portal's reply is recent."""


class Start(Action):
    pass


@dataclass(frozen=True, slots=True)
class WriteControl(Action):
    """Write control.json; the supervisor or driver does the rest."""

    control: ControlMessage


@dataclass(frozen=True, slots=True)
class Halt(Action):
    """End it through the runtime: it did not end after its stop was sent, or the portal no longer lists it."""

    grace_seconds: int


class Finish(Action):
    """It has ended, or will never start: send the rest of its log and record how it ended."""


class Collect(Action):
    """Send the rest of its log and its outputs, then record that the portal has all of them."""


class Remove(Action):
    """Remove it from the runtime."""


class Forget(Action):
    """Delete its folders, and those of its attempt with the last container."""


def reconcile(
    desired: Mapping[str, DesiredContainer],
    observed: Mapping[str, ObservedContainer],
    entries: Mapping[str, JournalEntry],
    overdue: Collection[str] = frozenset(),
) -> list[Action]:
    """Return at most one action for each container: those that free resources first, and drivers after their hosts.

    ``overdue``: the names of containers whose time to end by themselves is over.
    """
    actions: list[Action] = []
    # A job of the same number that the portal no longer knows must be gone before another job gets its folder.
    unlisted = {seen.job for name, seen in observed.items() if name not in desired}
    for name, container in desired.items():
        action = _action_for(container, observed.get(name), entries.get(name), name in overdue)
        if action and not (isinstance(action, Prepare) and container.spec.job in unlisted):
            actions.append(action)
    for name, seen in observed.items():
        if name not in desired:
            actions.append(Halt(name, GRACE_SECONDS) if seen.state == "running" else Remove(name))
    actions.extend(Forget(name) for name in entries if name not in desired and name not in observed)
    drivers = {name for name, container in desired.items() if container.spec.role == "driver"}
    return sorted(actions, key=lambda action: (_ACTION_ORDER.index(type(action)), action.name in drivers, action.name))


_ACTION_ORDER: list[type[Action]] = [Halt, Finish, Remove, WriteControl, Start, Prepare, Collect, Forget]


def _action_for(
    container: DesiredContainer, seen: ObservedContainer | None, entry: JournalEntry | None, overdue: bool
) -> Action | None:
    name = container.spec.name
    if entry is not None and entry.exit is not None:
        if seen is not None:
            return Remove(name)
        return None if entry.collected else Collect(name)
    if seen is None or seen.state == "created":
        was_started = entry is not None and entry.started and seen is None
        if container.wanted != "run" or was_started:
            return Finish(name)
        return Start(name) if seen is not None and entry is not None and entry.created else Prepare(name)
    if seen.state == "exited":
        return Finish(name)
    if overdue or container.wanted == "collect":
        # "collect", and yet it runs: the portal has declared it lost and given its GPUs to other jobs.
        return Halt(name, min(container.control.grace_seconds, GRACE_SECONDS))
    control = control_for(container, entry)
    return WriteControl(name, control) if entry is None or entry.control != control else None


def control_for(container: DesiredContainer, entry: JournalEntry | None) -> ControlMessage:
    """Return the control message of the portal, with the agent's own reason to end it where the portal has none."""
    if entry is not None and entry.halted and not container.control.stop_reason:
        return replace(container.control, stop_reason=entry.halted)
    return container.control


def state_of(
    container: DesiredContainer, seen: ObservedContainer | None, entry: JournalEntry | None, *, busy: bool = False
) -> State:
    """Return the state to report for a listed container. It never goes back, as each state follows from a lasting fact."""
    if entry is not None and entry.exit is not None:
        return "EXITED"
    if container.wanted != "run" or (entry is not None and entry.halted):
        return "STOPPING"
    if (entry is not None and entry.running_at is not None) or (seen is not None and seen.state == "running"):
        return "RUNNING"
    if busy or entry is not None or seen is not None:
        return "PREPARING"
    return "ASSIGNED"


def leases_to_renew(desired: Mapping[str, DesiredContainer], entries: Mapping[str, JournalEntry]) -> list[str]:
    """Name the containers whose lease a reply renews: not those that the portal has given up, nor those that have ended."""
    return [
        name
        for name, container in desired.items()
        if container.wanted != "collect" and (entry := entries.get(name)) and entry.started and entry.exit is None
    ]


def networks_to_join(
    desired: Mapping[str, DesiredContainer], entries: Mapping[str, JournalEntry]
) -> list[AttemptNetwork]:
    """Return the attempts of this node that have containers on other nodes, with those nodes; sorted by network."""
    found: dict[str, AttemptNetwork] = {}
    for name, container in desired.items():
        spec, entry = container.spec, entries.get(name)
        if (
            spec.collective is None
            or not spec.collective.number
            or spec.network is None
            or (entry is not None and entry.exit)
        ):
            continue
        before = found.get(spec.network, AttemptNetwork(spec.network, spec.collective.number))
        found[spec.network] = replace(before, peers=before.peers | container.peers)
    return sorted(found.values(), key=lambda each: each.network)
