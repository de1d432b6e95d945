"""An attempt's overlay network: a VXLAN device in the bridge that the engine made for it on each node.

``slv-<number>`` carries only the traffic between the attempt's containers here and those on the peers that the portal
names. The existing devices decide what to do (``update_commands``, pure), so everything may be repeated, and the next
agent finds whatever an agent that was killed has left. This needs root, and only one agent per machine does it: two
would delete each other's devices (``Overlay.acquire``).
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
from runners.messages.problems import (
    ForeignAddress,
    OverlayFailed,
    OverlayNotRoot,
    OverlayProgramMissing,
    OverlayTaken,
    Problem,
    SmallPackets,
)

DEVICE_PREFIX = "slv-"
PORT = firewall.OVERLAY_PORT
MTU = 1450
"""What fits into a packet of 1,500 bytes next to the 50 that a VXLAN adds. All nodes of an attempt must use the same."""
VXLAN_HEADER_BYTES = 50
BROADCAST = "00:00:00:00:00:00"
"""The entry of a forwarding table for broadcasts and for addresses that were not seen yet."""
PROBE_DEVICE = "slv-probe"
PROBE_ID = 2**24 - 1
COMMAND_SECONDS = 10

Command = tuple[str, ...]


class OverlayError(Exception):
    """``ip`` or ``bridge`` failed. The message is its output."""


@dataclass(frozen=True, slots=True)
class Link:
    """An attempt's network on this node, and the nodes with its other containers."""

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
    """(MAC address of a container, node) pairs that the device has seen."""


@dataclass(frozen=True, slots=True)
class OverlayState:
    """The overlay devices and bridges of this machine."""

    devices: Mapping[str, Device]
    bridges: frozenset[str]


def device_name(link: Link) -> str:
    return f"{DEVICE_PREFIX}{link.number}"


def update_commands(wanted: Collection[Link], state: OverlayState, local: str) -> list[Command]:
    """Return the commands after which this node's devices are as wanted.

    A link without peers, or whose bridge does not exist yet, gets no device. Addresses learnt of a node that is no longer a
    peer are deleted: its containers may be on another node by now.
    """
    links = {device_name(link): link for link in wanted if link.peers and link.bridge in state.bridges}
    commands: list[Command] = []
    for name, device in sorted(state.devices.items()):
        link = links.get(name)
        if link is None or (device.number, device.local) != (link.number, local):
            commands.append(("ip", "link", "del", "dev", name))
    for name, link in sorted(links.items()):
        found = state.devices.get(name)
        if found is None or (found.number, found.local) != (link.number, local):
            found = Device(link.number, local, up=False)
            commands.append(_add_command(name, link.number, local))
        if found.bridge != link.bridge or not found.up:
            commands.append(
                ("ip", "link", "set", "dev", name, "mtu", str(MTU), "addrgenmode", "none", "master", link.bridge, "up")
            )
        table = ("dev", name, "dst")
        commands += [("bridge", "fdb", "append", BROADCAST, *table, peer) for peer in sorted(link.peers - found.peers)]
        commands += [("bridge", "fdb", "del", BROADCAST, *table, peer) for peer in sorted(found.peers - link.peers)]
        commands += [
            ("bridge", "fdb", "del", mac, *table, node) for mac, node in sorted(found.learnt) if node not in link.peers
        ]
    return commands


def _add_command(name: str, number: int, local: str) -> Command:
    kind = ("type", "vxlan", "id", str(number), "local", local, "dstport", str(PORT))
    return ("ip", "link", "add", "dev", name, *kind)


def parse_state(links: str, bridges: str, table: str) -> OverlayState:
    """Parse the JSON of ``ip -details link show type vxlan``, ``ip link show type bridge`` and ``bridge fdb show``."""
    peers: dict[str, set[str]] = {}
    learnt: dict[str, set[tuple[str, str]]] = {}
    for entry in _objects(table):
        name, mac, node = entry.get("ifname", ""), entry.get("mac"), entry.get("dst")
        if not (isinstance(name, str) and name.startswith(DEVICE_PREFIX) and mac and node):
            continue
        if mac == BROADCAST:
            peers.setdefault(name, set()).add(node)
        else:
            learnt.setdefault(name, set()).add((mac, node))
    devices = {}
    for entry in _objects(links):
        name, data = entry.get("ifname", ""), entry.get("linkinfo", {}).get("info_data", {})
        if name.startswith(DEVICE_PREFIX):
            devices[name] = Device(
                number=int(data.get("id", 0)),
                local=str(data.get("local", "")),
                bridge=str(entry.get("master", "")),
                up="UP" in entry.get("flags", ()),
                peers=frozenset(peers.get(name, ())),
                learnt=frozenset(learnt.get(name, ())),
            )
    return OverlayState(devices, frozenset(str(entry.get("ifname", "")) for entry in _objects(bridges)))


def _objects(text: str) -> list[dict[str, Any]]:
    """Parse a list of objects: ``ip -json`` prints nothing for none, and an empty object for each that its filter hid."""
    return [entry for entry in json.loads(text.strip() or "[]") if isinstance(entry, dict) and entry]


def conflicting_network(subnet: str, routes: str) -> str:
    """Return the machine's own network that ``subnet`` would hide; empty without one. ``routes`` is from ``ip -json route``."""
    ours = ipaddress.ip_network(subnet)
    for entry in _objects(routes):
        try:
            network = ipaddress.ip_network(entry.get("dst", ""), strict=False)
        except ValueError:
            continue  # such as "default", from which the overlay network may take its addresses
        device = str(entry.get("dev", ""))
        if network.prefixlen and network.overlaps(ours) and not device.startswith(("slj-", "br-", "docker")):
            return f"{network} ({device})"
    return ""


def node_address(url: str, chosen: str = "") -> str:
    """Return the IPv4 address under which other nodes reach this one: the chosen one, or that of the interface to the portal.

    Empty without one, as on the portal's own machine. Raises ValueError for an invalid address.
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
    """The overlay devices of this machine, locked by the one agent that makes them."""

    def __init__(self, address: str, lock: socket.socket | None = None) -> None:
        self.address = address
        self._lock = lock

    @classmethod
    def acquire(cls, address: str) -> Self | Problem:
        """Lock the overlay and test it. The problem states why jobs on this node cannot span nodes, and what to do."""
        if os.geteuid() != 0:
            return OverlayNotRoot()
        if missing := [name for name in ("ip", "bridge", "iptables") if shutil.which(name) is None]:
            return OverlayProgramMissing(missing[0])
        # An abstract socket name belongs to one network namespace, and disappears with the process that holds it.
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            lock.bind("\0schedulearn-overlay")
        except OSError:
            lock.close()
            return OverlayTaken()
        if problem := _probe_problem(address):
            lock.close()
            return problem
        return cls(address, lock)

    def apply(self, wanted: Sequence[Link]) -> None:
        """Change the devices to what is wanted. Raises the first OverlayError after all commands were tried."""
        firewall.open_overlay_port(frozenset(peer for link in wanted for peer in link.peers))
        first_error = ""
        for command in update_commands(wanted, observe(), self.address):
            try:
                _run(command)
            except OverlayError as error:
                # A learnt address may have expired meanwhile; everything else is tried again the next time.
                first_error = first_error or str(error)
        if first_error and update_commands(wanted, observe(), self.address):
            raise OverlayError(first_error)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()


def observe() -> OverlayState:
    return parse_state(
        _run(("ip", "-json", "-details", "link", "show", "type", "vxlan")),
        _run(("ip", "-json", "link", "show", "type", "bridge")),
        _run(("bridge", "-json", "fdb", "show")),
    )


def routes() -> str:
    return _run(("ip", "-json", "-4", "route", "show"))


def _probe_problem(address: str) -> Problem | None:
    """Return why no overlay can be made on this address: it must be this machine's, and its interface take large packets."""
    try:
        if problem := _address_problem(address):
            return problem
        _run(_add_command(PROBE_DEVICE, PROBE_ID, address))
        _run(("ip", "link", "del", "dev", PROBE_DEVICE))
    except (OverlayError, ValueError) as error:
        return OverlayFailed(str(error))
    return None


def _address_problem(address: str) -> Problem | None:
    for entry in _objects(_run(("ip", "-json", "-4", "address", "show"))):
        if any(info.get("local") == address for info in entry.get("addr_info", ())):
            if int(entry.get("mtu", 0)) < MTU + VXLAN_HEADER_BYTES:
                return SmallPackets(str(entry.get("ifname")), int(entry.get("mtu", 0)))
            return None
    return ForeignAddress(address)


def _run(command: Iterable[str]) -> str:
    try:
        done = subprocess.run(list(command), check=True, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    except (subprocess.SubprocessError, OSError) as error:
        raise OverlayError(firewall.error_line(error)) from error
    return done.stdout
