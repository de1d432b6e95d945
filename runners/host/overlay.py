"""An attempt's network over several nodes: a VXLAN device in the bridge that the engine made for it on each node.

``slv-<number>`` carries what the attempt's containers say to those on the peers that the portal names, and nothing
else. What there is decides what to do (``changes``, pure), so all of it may be repeated, and an agent that was killed
leaves nothing that the next one would not find. Only root can do this, and only one agent per machine does: two would
take each other's devices away (``Overlay.begin``).
"""

import ipaddress
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from runners.host import firewall
from runners.runtime import Problem

PREFIX = "slv-"
PORT = firewall.RING_PORT
MTU = 1450
"""What fits into a packet of 1,500 bytes beside the 50 that a VXLAN adds. All nodes of an attempt must agree on it."""
WRAPPING = 50
EVERYBODY = "00:00:00:00:00:00"
"""In a forwarding table: where to send what is for everybody, or for an address not seen yet."""
PROBE = "slv-probe"
PROBE_ID = 2**24 - 1
SECONDS = 10

Command = tuple[str, ...]


class OverlayError(Exception):
    """``ip`` or ``bridge`` refused. The message is what it said."""


@dataclass(frozen=True, slots=True)
class Link:
    """An attempt's network here, and the nodes on which its other containers are."""

    number: int
    bridge: str
    peers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Device:
    """A VXLAN device as the kernel shows it."""

    number: int
    local: str
    bridge: str = ""
    up: bool = True
    peers: frozenset[str] = frozenset()
    learnt: frozenset[tuple[str, str]] = frozenset()
    """(address of a container's interface, node) that it has seen."""


@dataclass(frozen=True, slots=True)
class There:
    """What this machine has."""

    devices: Mapping[str, Device]
    bridges: frozenset[str]


def name_of(link: Link) -> str:
    return f"{PREFIX}{link.number}"


def changes(wanted: Collection[Link], there: There, local: str) -> list[Command]:
    """The commands after which this node's devices are as wanted.

    A link whose bridge is not there yet, or that has no peers, gets no device. What was learnt about a node that is no
    peer any more is forgotten: its containers may be elsewhere by now.
    """
    links = {name_of(link): link for link in wanted if link.peers and link.bridge in there.bridges}
    commands: list[Command] = []
    for name, device in sorted(there.devices.items()):
        link = links.get(name)
        if link is None or (device.number, device.local) != (link.number, local):
            commands.append(("ip", "link", "del", "dev", name))
    for name, link in sorted(links.items()):
        found = there.devices.get(name)
        if found is None or (found.number, found.local) != (link.number, local):
            found = Device(link.number, local, up=False)
            commands.append(_add(name, link.number, local))
        if found.bridge != link.bridge or not found.up:
            commands.append(
                ("ip", "link", "set", "dev", name, "mtu", str(MTU), "addrgenmode", "none", "master", link.bridge, "up")
            )
        table = ("dev", name, "dst")
        commands += [("bridge", "fdb", "append", EVERYBODY, *table, peer) for peer in sorted(link.peers - found.peers)]
        commands += [("bridge", "fdb", "del", EVERYBODY, *table, peer) for peer in sorted(found.peers - link.peers)]
        commands += [
            ("bridge", "fdb", "del", mac, *table, node) for mac, node in sorted(found.learnt) if node not in link.peers
        ]
    return commands


def _add(name: str, number: int, local: str) -> Command:
    kind = ("type", "vxlan", "id", str(number), "local", local, "dstport", str(PORT))
    return ("ip", "link", "add", "dev", name, *kind)


def read(links: str, bridges: str, table: str) -> There:
    """From the JSON of ``ip -details link show type vxlan``, ``ip link show type bridge`` and ``bridge fdb show``."""
    peers: dict[str, set[str]] = {}
    learnt: dict[str, set[tuple[str, str]]] = {}
    for entry in _objects(table):
        name, mac, node = entry.get("ifname", ""), entry.get("mac"), entry.get("dst")
        if not (isinstance(name, str) and name.startswith(PREFIX) and mac and node):
            continue
        if mac == EVERYBODY:
            peers.setdefault(name, set()).add(node)
        else:
            learnt.setdefault(name, set()).add((mac, node))
    devices = {}
    for entry in _objects(links):
        name, data = entry.get("ifname", ""), entry.get("linkinfo", {}).get("info_data", {})
        if name.startswith(PREFIX):
            devices[name] = Device(
                number=int(data.get("id", 0)),
                local=str(data.get("local", "")),
                bridge=str(entry.get("master", "")),
                up="UP" in entry.get("flags", ()),
                peers=frozenset(peers.get(name, ())),
                learnt=frozenset(learnt.get(name, ())),
            )
    return There(devices, frozenset(str(entry.get("ifname", "")) for entry in _objects(bridges)))


def _objects(text: str) -> list[dict[str, Any]]:
    """``ip -json`` prints nothing when there is nothing, and an empty object for what its filter hid."""
    return [entry for entry in json.loads(text.strip() or "[]") if isinstance(entry, dict) and entry]


def in_the_way(subnet: str, routes: str) -> str:
    """The machine's own network that a ring's network would hide, in the words of ``ip -json route``; else empty."""
    ring = ipaddress.ip_network(subnet)
    for entry in _objects(routes):
        try:
            network = ipaddress.ip_network(entry.get("dst", ""), strict=False)
        except ValueError:
            continue  # "default" is one: what a ring needs of it, it takes
        device = str(entry.get("dev", ""))
        if network.prefixlen and network.overlaps(ring) and not device.startswith(("slj-", "br-", "docker")):
            return f"{network} ({device})"
    return ""


def node_address(url: str, chosen: str = "") -> str:
    """Under which IPv4 address other nodes reach this one: the chosen one, or that of the interface to the portal.

    Empty when there is none, as on a machine whose portal is itself. Raises ValueError for nonsense.
    """
    if chosen:
        return str(ipaddress.IPv4Address(chosen))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((urlsplit(url).hostname or "", 9))  # sends nothing
            address = str(probe.getsockname()[0])
    except OSError:
        return ""
    return "" if ipaddress.IPv4Address(address).is_loopback else address


class Overlay:
    """This machine's devices, held by the one agent that makes them."""

    def __init__(self, address: str, held: socket.socket | None = None) -> None:
        self.address = address
        self._held = held

    @classmethod
    def begin(cls, address: str) -> Self | Problem:
        """Tries whether it works here. The problem says why jobs of this node stay on one node, and what to do."""
        text = "Jobs cannot span this node and others: "
        if os.geteuid() != 0:
            return Problem(text + "the agent is not root.", "Run the agent as root.")
        if missing := [name for name in ("ip", "bridge", "iptables") if shutil.which(name) is None]:
            return Problem(f"{text}{missing[0]} is not installed.", "Debian: apt-get install iproute2 iptables.")
        # A name in the abstract belongs to one network namespace, and goes with the process that holds it.
        held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            held.bind("\0schedulearn-overlay")
        except OSError:
            held.close()
            return Problem(text + "another agent of this machine makes their networks.", "Run one agent per machine.")
        try:
            _check_room(address)
            _run(_add(PROBE, PROBE_ID, address))
            _run(("ip", "link", "del", "dev", PROBE))
        except (OverlayError, ValueError) as error:
            held.close()
            return Problem(f"{text}{error}", "See docs/nodes.md, “Jobs over several nodes”.")
        return cls(address, held)

    def apply(self, wanted: Sequence[Link]) -> None:
        """Makes it so. Raises OverlayError for the first thing that did not work, once all was tried."""
        firewall.open_ring(frozenset(peer for link in wanted for peer in link.peers))
        said = ""
        for command in changes(wanted, look(), self.address):
            try:
                _run(command)
            except OverlayError as error:
                # What was learnt may be forgotten by itself meanwhile; all else is tried again the next time.
                said = said or str(error)
        if said and changes(wanted, look(), self.address):
            raise OverlayError(said)

    def close(self) -> None:
        if self._held is not None:
            self._held.close()


def look() -> There:
    return read(
        _run(("ip", "-json", "-details", "link", "show", "type", "vxlan")),
        _run(("ip", "-json", "link", "show", "type", "bridge")),
        _run(("bridge", "-json", "fdb", "show")),
    )


def routes() -> str:
    return _run(("ip", "-json", "-4", "route", "show"))


def _check_room(address: str) -> None:
    """Raises ValueError when the address is not this machine's, or its interface takes packets that are too small."""
    for entry in _objects(_run(("ip", "-json", "-4", "address", "show"))):
        if any(info.get("local") == address for info in entry.get("addr_info", ())):
            if int(entry.get("mtu", 0)) < MTU + WRAPPING:
                raise ValueError(f"{entry.get('ifname')} takes packets of {entry.get('mtu')} bytes, not 1,500.")
            return
    raise ValueError(f"{address} is not an address of this machine.")


def _run(command: Iterable[str]) -> str:
    try:
        done = subprocess.run(list(command), check=True, capture_output=True, text=True, timeout=SECONDS)
    except (subprocess.SubprocessError, OSError) as error:
        raise OverlayError(firewall.error_line(error)) from error
    return done.stdout
