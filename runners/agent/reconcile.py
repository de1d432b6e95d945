"""What to do so that this node matches what the portal wants. Pure: values in, values out.

The agent calls ``reconcile`` again and again with what it last heard and last saw. Each action may be repeated, each
brings its container one step nearer to rest, and at rest there are no actions. What must not happen twice (a start)
is guarded by the note, which is on the disk before the deed.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from typing import Any, Literal

from runners.runtime import Neighbours, Observed
from runners.spec import JobIdentity, RunSpec

Wanted = Literal["run", "stop", "collect"]
State = Literal["ASSIGNED", "PREPARING", "RUNNING", "STOPPING", "EXITED"]

GRACE_SECONDS = 10
"""For a container that nobody lists any more."""


@dataclass(frozen=True, slots=True)
class Told:
    """What control.json says."""

    stop_reason: str = ""
    grace_seconds: int = GRACE_SECONDS
    hosts: tuple[tuple[str, int], ...] = ()
    batch: int = 0
    """Total samples per step that the scheduler chose; 0: the job chooses for itself."""
    driver: str = ""
    """Where the ring's driver is now, if it can move; empty: where the container's description says."""

    def to_json(self) -> dict[str, Any]:
        stop = {"reason": self.stop_reason, "grace_seconds": self.grace_seconds} if self.stop_reason else None
        hosts = [{"name": name, "slots": slots} for name, slots in self.hosts]
        return {"stop": stop, "hosts": hosts, "batch": self.batch or None, "driver": self.driver or None}


@dataclass(frozen=True, slots=True)
class Desired:
    """One container of the portal's reply."""

    spec: RunSpec
    wanted: Wanted
    told: Told = Told()
    peers: frozenset[str] = frozenset()
    """Addresses of the other nodes on which its attempt has containers."""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Desired":
        """Raises TypeError, KeyError or ValueError when ``data`` is not an entry of the protocol."""
        spec = RunSpec.from_json(data["spec"])
        wanted, stop = data["wanted"], data.get("stop")
        if wanted not in ("run", "stop", "collect"):
            raise ValueError(f"{wanted!r} is nothing a container can be wanted to do.")
        reason = "" if wanted == "run" else "stopped"
        grace = spec.grace_seconds
        if stop:
            reason, grace = str(stop.get("reason") or "stopped"), int(stop.get("grace_seconds", grace))
        hosts = tuple((str(host["name"]), int(host["slots"])) for host in data.get("hosts") or ())
        driver = str(IPv4Address(data["driver"])) if data.get("driver") else ""
        peers = frozenset(str(IPv4Address(peer)) for peer in data.get("peers") or ())
        if data.get("identity"):
            spec = replace(spec, identity=JobIdentity.from_json(data["identity"]))
        return cls(spec, wanted, Told(reason, grace, hosts, max(0, int(data.get("batch") or 0)), driver), peers)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container ended, in the words of the protocol."""

    code: int | None
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """What the agent remembers of a container. On the disk, in a folder that no container sees."""

    job: int
    attempt: int
    epoch: int
    created: bool = False
    """Its folders are filled and the runtime has made it."""
    started: bool = False
    """It was, or was about to be, started: never make it anew."""
    running_at: float | None = None
    """Unix seconds; None until the start came back."""
    told: Told | None = None
    halted: str = ""
    """Why the agent itself ends it (``disk``); empty when it does not."""
    halted_detail: str = ""
    exit: Exit | None = None
    collected: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    name: str


class Prepare(Action):
    """Fetch the code, fill the folders, create the container; and start it, if the portal's word is fresh."""


class Start(Action):
    pass


@dataclass(frozen=True, slots=True)
class Tell(Action):
    """Write control.json: the supervisor or driver does the rest."""

    told: Told


@dataclass(frozen=True, slots=True)
class Halt(Action):
    """End it through the runtime: it was told and did not, or nobody is there to be told."""

    grace_seconds: int


class Finish(Action):
    """It has ended, or will never begin: send the rest of its log and note how it ended."""


class Collect(Action):
    """Send the rest of its log and its outputs, then note that all is there."""


class Remove(Action):
    """Have the runtime forget it."""


class Forget(Action):
    """Delete its folders, and its attempt's with the last container."""


def reconcile(
    desired: Mapping[str, Desired],
    observed: Mapping[str, Observed],
    notes: Mapping[str, Note],
    overdue: Collection[str] = frozenset(),
) -> list[Action]:
    """At most one action for each container, those that give something back first, and drivers after their hosts.

    ``overdue`` names containers whose time to end by themselves is up.
    """
    actions: list[Action] = []
    # A job of the same number that the portal no longer knows must be gone before another gets its folder's place.
    unlisted = {seen.job for name, seen in observed.items() if name not in desired}
    for name, wish in desired.items():
        action = _listed(wish, observed.get(name), notes.get(name), name in overdue)
        if action and not (isinstance(action, Prepare) and wish.spec.job in unlisted):
            actions.append(action)
    for name, seen in observed.items():
        if name not in desired:
            actions.append(Halt(name, GRACE_SECONDS) if seen.state == "running" else Remove(name))
    actions.extend(Forget(name) for name in notes if name not in desired and name not in observed)
    drivers = {name for name, wish in desired.items() if wish.spec.role == "driver"}
    return sorted(actions, key=lambda action: (_ORDER.index(type(action)), action.name in drivers, action.name))


_ORDER: list[type[Action]] = [Halt, Finish, Remove, Tell, Start, Prepare, Collect, Forget]


def _listed(wish: Desired, seen: Observed | None, note: Note | None, overdue: bool) -> Action | None:
    name = wish.spec.name
    if note is not None and note.exit is not None:
        if seen is not None:
            return Remove(name)
        return None if note.collected else Collect(name)
    if seen is None or seen.state == "created":
        begun = note is not None and note.started and seen is None
        if wish.wanted != "run" or begun:
            return Finish(name)
        return Start(name) if seen is not None and note is not None and note.created else Prepare(name)
    if seen.state == "exited":
        return Finish(name)
    if overdue or wish.wanted == "collect":
        # Collect, and yet it runs: the portal has given it up for lost and its GPUs to others.
        return Halt(name, min(wish.told.grace_seconds, GRACE_SECONDS))
    told = to_tell(wish, note)
    return Tell(name, told) if note is None or note.told != told else None


def to_tell(wish: Desired, note: Note | None) -> Told:
    """The portal's word; the agent's own reason to end it counts where the portal has none."""
    if note is not None and note.halted and not wish.told.stop_reason:
        return replace(wish.told, stop_reason=note.halted)
    return wish.told


def state_of(wish: Desired, seen: Observed | None, note: Note | None, *, busy: bool = False) -> State:
    """What to report of a listed container. Never goes back: each state rests on something that stays."""
    if note is not None and note.exit is not None:
        return "EXITED"
    if wish.wanted != "run" or (note is not None and note.halted):
        return "STOPPING"
    if (note is not None and note.running_at is not None) or (seen is not None and seen.state == "running"):
        return "RUNNING"
    if busy or note is not None or seen is not None:
        return "PREPARING"
    return "ASSIGNED"


def renewed(desired: Mapping[str, Desired], notes: Mapping[str, Note]) -> list[str]:
    """Whose lease a reply renews: not of those the portal has given up, nor of those that have ended."""
    return [
        name
        for name, wish in desired.items()
        if wish.wanted != "collect" and (note := notes.get(name)) and note.started and note.exit is None
    ]


def neighbours(desired: Mapping[str, Desired], notes: Mapping[str, Note]) -> list[Neighbours]:
    """Which attempts of this node have containers elsewhere, and where; by network."""
    found: dict[str, Neighbours] = {}
    for name, wish in desired.items():
        spec, note = wish.spec, notes.get(name)
        if (
            spec.collective is None
            or not spec.collective.number
            or spec.network is None
            or (note is not None and note.exit)
        ):
            continue
        before = found.get(spec.network, Neighbours(spec.network, spec.collective.number))
        found[spec.network] = replace(before, peers=before.peers | wish.peers)
    return sorted(found.values(), key=lambda each: each.network)
