"""The proxies through which containers reach the hosts that an admin allowed, and what each container did with its own.

A container with allowed hosts has one proxy, whose socket is in a folder that only this container sees. What it reaches and
what is refused is counted by host, kept in ``network.json`` so that an agent that is restarted continues, and sent to the
portal whenever it changes.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from runners.agent.portal_client import PortalRefusedError, PortalUnavailableError
from runners.host.egress import UNLIMITED_BYTES, Connection, EgressProxy, HostRule
from runners.host.node_files import NodeFiles, read_own_json, write_json
from runners.host.upstream import Upstream, environment_upstream
from runners.runtimes.host_config import owner_for
from runners.spec import PROXY_SOCKET, RunSpec

logger = logging.getLogger(__name__)

REPORT_SECONDS = 5.0
MAX_HOSTS = 200
"""How many hosts of a container are counted one by one; the rest is counted together."""
OTHERS = ""
"""The host of the rest."""
MAX_HOST_CHARACTERS = 253
MAX_DETAIL_CHARACTERS = 200


@dataclass(slots=True)
class HostUse:
    """The connections of a container to one host and port. Times are in seconds since the epoch."""

    host: str
    port: int
    connections: int = 0
    """Those that were opened."""
    received_bytes: int = 0
    sent_bytes: int = 0
    refused: int = 0
    """Connections that were not opened, or were cut off."""
    reason: str = ""
    """Why the last of these was: an ``egress.Reason``."""
    detail: str = ""
    first_at: float = 0.0
    last_at: float = 0.0

    def add(self, connection: Connection, now: float) -> None:
        if connection.reason not in ("not_allowed", "internal", "unreachable"):
            self.connections += 1
        if connection.reason:
            self.refused += 1
            self.reason, self.detail = (
                connection.reason,
                (connection.refusal or connection.error)[:MAX_DETAIL_CHARACTERS],
            )
        self.received_bytes += connection.received_bytes
        self.sent_bytes += connection.sent_bytes
        self.first_at, self.last_at = self.first_at or now, now


class NetworkUse:
    """What one container has contacted. The proxy's threads add to it."""

    def __init__(self, hosts: Iterable[HostUse] = ()) -> None:
        self._hosts = {(each.host, each.port): each for each in hosts}
        self._lock = threading.Lock()
        self._changed = False
        """Since it was last taken."""

    def record(self, connection: Connection) -> None:
        key = (connection.host[:MAX_HOST_CHARACTERS], connection.port)
        with self._lock:
            if key not in self._hosts and len(self._hosts) >= MAX_HOSTS:
                key = (OTHERS, 0)
            self._hosts.setdefault(key, HostUse(*key)).add(connection, time.time())
            self._changed = True

    def take(self) -> tuple[list[dict[str, Any]], bool]:
        """Return all hosts, and whether there was a connection since they were last taken."""
        with self._lock:
            changed, self._changed = self._changed, False
            return [asdict(each) for each in self._hosts.values()], changed

    @classmethod
    def from_json(cls, data: Any) -> "NetworkUse":
        """Read what ``to_json`` returned; a file that is not that counts as empty."""
        try:
            return cls(HostUse(**each) for each in data or ())
        except TypeError:
            return cls()


class NetworkPortal(Protocol):
    def report_network(self, container: str, hosts: list[Any]) -> None: ...


class JobProxies:
    """The proxies of this node, by the names of their containers."""

    def __init__(
        self,
        files: NodeFiles,
        portal: NetworkPortal,
        upstream: Callable[[], Upstream | None] = environment_upstream,
    ) -> None:
        self._files = files
        self._portal = portal
        self._upstream = upstream
        self._lock = threading.Lock()
        self._proxies: dict[str, EgressProxy] = {}
        self._opening: set[str] = set()
        self._uses: dict[str, NetworkUse] = {}
        self._sent: dict[str, list[Any]] = {}

    def open(self, spec: RunSpec) -> None:
        """Serve a container's socket, unless another thread does or the container has no hosts. Raises OSError or ValueError."""
        if not spec.allowed_hosts:
            return
        with self._lock:
            if spec.name in self._proxies or spec.name in self._opening:
                return  # a second proxy would take the socket of the first one away
            self._opening.add(spec.name)
        proxy = None
        try:
            proxy = self._serve(spec)
        finally:
            with self._lock:
                self._opening.remove(spec.name)
                if proxy is not None:
                    self._proxies[spec.name] = proxy

    def _serve(self, spec: RunSpec) -> EgressProxy:
        use = self._use_of(spec.name)
        folder = self._files.network(spec.name)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / PROXY_SOCKET
        with contextlib.suppress(FileNotFoundError):
            path.unlink()  # of an agent that was killed
        rules = [HostRule.parse(text) for text in spec.allowed_hosts]
        proxy = EgressProxy(path, rules, use.record, self._upstream(), UNLIMITED_BYTES, for_job=True)
        try:
            owner = owner_for(spec.job, os.geteuid(), os.getegid())
            if os.geteuid() == 0:
                os.chown(path, 0, owner.gid, follow_symlinks=False)
            path.chmod(0o660)  # no job can have replaced it: its folder belongs to the agent
        except OSError:
            proxy.close()
            raise
        return proxy

    def close(self, name: str) -> None:
        """Close a container's proxy, if it has one, and keep what it recorded."""
        with self._lock:
            proxy = self._proxies.pop(name, None)
        if proxy is not None:
            proxy.close()
            self._write(name)

    def close_all(self) -> None:
        """Close all proxies. The containers run on, and the next agent opens them again."""
        with self._lock:
            names = list(self._proxies)
        for name in names:
            self.close(name)

    def forget(self, name: str) -> None:
        self.close(name)
        with self._lock:
            self._uses.pop(name, None)
            self._sent.pop(name, None)

    def send(self, spec: RunSpec) -> None:
        """Report what a container has contacted, if that has changed. Raises PortalUnavailableError."""
        if not spec.allowed_hosts:
            return
        hosts = self._write(spec.name)
        with self._lock:
            if not hosts or hosts == self._sent.get(spec.name):
                return
        with contextlib.suppress(PortalRefusedError):  # of an earlier release, or it cannot read them
            self._portal.report_network(spec.name, hosts)
        with self._lock:
            self._sent[spec.name] = hosts

    def send_all(self, listed: Iterable[RunSpec]) -> float | None:
        """Report for all containers; what cannot be sent now is sent later."""
        for spec in listed:
            try:
                self.send(spec)
            except PortalUnavailableError:
                break
        return None

    def _use_of(self, name: str) -> NetworkUse:
        with self._lock:
            known = self._uses.get(name)
        if known is not None:
            return known
        made = NetworkUse.from_json(read_own_json(self._files.network_use(name)))  # reads the disk
        with self._lock:
            return self._uses.setdefault(name, made)

    def _write(self, name: str) -> list[Any]:
        hosts, changed = self._use_of(name).take()
        if changed:
            with contextlib.suppress(OSError):  # a full disk; it is written again with the next change
                write_json(self._files.network_use(name), hosts)
        return hosts
