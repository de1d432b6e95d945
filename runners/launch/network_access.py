"""Gives ranks the hosts that an admin allowed: forwards a local port to the socket of the agent's proxy.

A job has no network of its own and resolves no names; programs find the proxy by the usual variables. Without allowed hosts
there is neither a port nor a variable.
"""

import asyncio
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from runners.spec import NETWORK_VARIABLE, PROXY_SOCKET, RunSpec

CHUNK_BYTES = 256 * 1024
BACKLOG = 128
START_SECONDS = 10.0
PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
DIRECT_NAME = "NO_PROXY"
LOCAL_PLACES = ("localhost", "127.0.0.1", "::1")


def proxy_variables(spec: RunSpec, inherited: Mapping[str, str]) -> dict[str, str]:
    """Start the forwarder and return the variables for ranks; none where the agent has no proxy for this container.

    A variable that the job's user set, in capital or small letters, stays as it is. Raises OSError.
    """
    folder = inherited.get(NETWORK_VARIABLE)
    if not folder or spec.role != "host":
        return {}
    address = f"http://127.0.0.1:{start_forwarder(Path(folder))}"
    chosen = {**dict.fromkeys(PROXY_NAMES, address), DIRECT_NAME: ",".join(direct_places(spec))}
    own = {name.upper() for name, _ in spec.env}
    return {each: value for name, value in chosen.items() if name not in own for each in (name, name.lower())}


def direct_places(spec: RunSpec) -> list[str]:
    """Return the names and addresses at which ranks reach each other, without the proxy."""
    group = (spec.collective.driver_host, spec.collective.address, spec.collective.subnet) if spec.collective else ()
    return list(dict.fromkeys((*LOCAL_PLACES, spec.hostname, *filter(None, group))))


def start_forwarder(folder: Path) -> int:
    """Forward a free port of the loopback to the socket in this folder, in a thread, and return the port. Raises OSError."""
    # The kernel takes 107 bytes of a socket's path at most. The folder stays; an agent that is restarted makes a new socket.
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    forwarder = _Forwarder(f"/proc/self/fd/{handle}/{PROXY_SOCKET}")
    threading.Thread(target=forwarder.run, name="network access", daemon=True).start()
    forwarder.started.wait(START_SECONDS)
    if not forwarder.port:
        raise OSError("the local port of the proxy could not be opened")
    return forwarder.port


class _Forwarder:
    def __init__(self, path: str) -> None:
        self.path = path
        self.port = 0
        self.started = threading.Event()
        self._tasks: set[asyncio.Task[None] | None] = set()
        """Those of open connections: asyncio itself does not keep them."""

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self.started.set()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._forward, "127.0.0.1", 0, backlog=BACKLOG)
        self.port = server.sockets[0].getsockname()[1]
        self.started.set()
        async with server:
            await server.serve_forever()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect one client with the proxy until both have ended."""
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            from_proxy, to_proxy = await asyncio.open_unix_connection(self.path)
            try:
                await asyncio.gather(_copy(reader, to_proxy), _copy(from_proxy, writer))
            finally:
                to_proxy.close()
        except OSError:
            pass  # the agent is being restarted
        finally:
            writer.close()
            self._tasks.discard(task)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the source ends, then end the target."""
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()  # one side is gone; the other is then ended, too
