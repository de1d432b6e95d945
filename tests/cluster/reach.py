"""Who reaches whom: asked from inside containers, and what must come of it."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.cluster.machines import DIE_WITH_US, Lan, Machine

TALK = 7777
"""Each rank of these tests listens here."""
SSH, DOCKER, HTTP, HTTPS, ECHO = 22, 2375, 80, 443, 7
METADATA = "169.254.169.254"
OUTSIDE = "198.51.100.7"
"""An address of documentation, which stands for the Internet."""

LISTEN = """
import selectors, socket, sys
both = selectors.DefaultSelector()
for place in sys.argv[1:]:
    address, _, port = place.rpartition(":")
    kind = socket.SOCK_DGRAM if port.startswith("u") else socket.SOCK_STREAM
    listener = socket.socket(socket.AF_INET, kind)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, int(port.lstrip("u"))))
    if kind == socket.SOCK_STREAM:
        listener.listen(64)
    both.register(listener, selectors.EVENT_READ, kind)
print("listening", flush=True)
while True:
    for key, _ in both.select():
        if key.data == socket.SOCK_STREAM:
            key.fileobj.accept()[0].close()
        else:
            key.fileobj.sendto(*key.fileobj.recvfrom(100))
"""
PROBE = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def reaches(target):
    name, kind, address, port = target
    try:
        if kind == "tcp":
            socket.create_connection((address, port), timeout=2).close()
        else:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
                link.settimeout(2)
                link.sendto(b"who is there", (address, port))
                link.recv(100)
    except OSError:
        return name, False
    return name, True
with ThreadPoolExecutor(32) as many:
    print(json.dumps(dict(many.map(reaches, json.loads(sys.argv[1])))))
"""
RANK = f"""
import socket, time
server = socket.create_server(("0.0.0.0", {TALK}), backlog=64)
print("listening", flush=True)
while True:
    server.accept()[0].close()
"""


@dataclass(frozen=True)
class Target:
    name: str
    kind: str
    address: str
    port: int


@dataclass(frozen=True)
class Inside:
    """A job's container on a machine's engine."""

    name: str
    machine: Machine
    id: str
    address: str
    """Empty without a network."""
    gateway: str
    port: int
    """Where it listens."""


def containers_of(machine: Machine, job: int) -> list[dict[str, Any]]:
    """As the engine describes those that run."""
    ids = machine.docker("ps", "-q", "--filter", f"label=sl.job={job}").stdout.decode().split()
    return json.loads(machine.docker("inspect", *ids).stdout) if ids else []


def inside(machine: Machine, found: dict[str, Any], name: str, port: int) -> Inside:
    networks = list(found["NetworkSettings"]["Networks"].values())
    address = networks[0]["IPAddress"] if networks else ""
    return Inside(name, machine, found["Id"], address, bridge_of(machine, found), port)


def bridge_of(machine: Machine, found: dict[str, Any]) -> str:
    """The machine's own address in the container's network."""
    network = found["HostConfig"]["NetworkMode"]
    if network == "none":
        return ""
    options = json.loads(machine.docker("network", "inspect", network).stdout)[0]["Options"]
    shown = machine.run("ip", "-4", "-json", "address", "show", "dev", options["com.docker.network.bridge.name"])
    return str(json.loads(shown)[0]["addr_info"][0]["local"])


def ask(asker: Inside, targets: Sequence[Target]) -> dict[str, bool]:
    output = asker.machine.docker("exec", asker.id, "python3", "-c", PROBE, _written(targets)).stdout
    return dict(json.loads(output))


def ask_machine(machine: Machine, targets: Sequence[Target]) -> dict[str, bool]:
    """Ask the same on the node itself: a "no" from inside proves something only if this is a "yes"."""
    return dict(json.loads(machine.run(sys.executable, "-c", PROBE, _written(targets))))


def _written(targets: Sequence[Target]) -> str:
    return json.dumps([(each.name, each.kind, each.address, each.port) for each in targets])


def listen(entering: Sequence[str], *places: str) -> subprocess.Popen[bytes]:
    """``ADDRESS:PORT``, ``ADDRESS:uPORT`` for UDP. Whoever asks kills it."""
    argv = [*DIE_WITH_US, *entering, sys.executable, "-c", LISTEN, *places]
    program = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert program.stdout is not None and program.stdout.readline() == b"listening\n"
    return program


def world_outside(lan: Lan) -> list[subprocess.Popen[bytes]]:
    """What clouds tell their machines, and the Internet, on the other end of the cables."""
    for address in (METADATA, OUTSIDE):
        _in(lan, "ip", "addr", "add", f"{address}/32", "dev", "lan")
        for machine in lan.machines:
            machine.run("ip", "route", "add", address, "dev", "eth0")
    _in(lan, "ip", "route", "add", f"{lan.prefix}.0/24", "dev", "lan")
    return [listen(lan.inside, f"{METADATA}:{HTTP}", f"{OUTSIDE}:{HTTPS}")]


def _in(lan: Lan, *argv: str) -> None:
    subprocess.run([*lan.inside, *argv], check=True, timeout=60)


def drawn(table: Mapping[str, Mapping[str, bool]]) -> str:
    """For people: a row for each who asks, a column for each who is asked."""
    columns = list(dict.fromkeys(name for row in table.values() for name in row))
    wide = max(map(len, table))
    lines = [f"{number:>{wide + 4}}  {name}" for number, name in enumerate(columns, start=1)]
    lines.append(" " * (wide + 2) + " ".join(f"{number:>2}" for number in range(1, len(columns) + 1)))
    for name, row in table.items():
        marks = ("  " if column not in row else " x" if row[column] else " ." for column in columns)
        lines.append(f"{name:>{wide}}  {' '.join(marks)}")
    return "\n".join(lines)
