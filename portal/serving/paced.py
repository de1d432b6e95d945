"""daphne with back-pressure and a limit on the size of requests.

daphne accepts whatever an application sends and keeps it in memory until the client has read it. Here ``send`` waits
while more than a transport's buffer is unread, and a client that reads nothing for ``STALL_SECONDS`` is disconnected.
"""

import asyncio
import logging
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, cast

from autobahn.websocket.types import ConnectionDeny
from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.server import Server
from daphne.ws_protocol import WebSocketFactory, WebSocketProtocol
from twisted.internet import reactor
from twisted.internet.interfaces import IPushProducer
from twisted.logger import ILogObserver, STDLibLogObserver, globalLogPublisher
from zope.interface import implementer

from portal.serving import TOO_FAST_CLOSE_CODE
from portal.serving.handover import receive_connections

logger = logging.getLogger(__name__)

STALL_SECONDS = 60.0
CHECK_SECONDS = 2.0
MAX_UNKNOWN_SENDER_BYTES = 8 << 20
"""Maximum size of the body of a request whose sender is unknown."""
MAX_UNREAD_MESSAGES = 256
"""Messages of one WebSocket that the application has not read yet. A log viewer has a handful."""
FLOOD_SECONDS = 30.0
"""How long a client that flooded a WebSocket cannot open another one."""
MAX_FLOODERS = 1000
ODD_FRAMES, ODD_FRAMES_PER_SECOND = 100, 2.0
"""Token bucket for the pings, pongs and fragments of one WebSocket, which the application never sees: size and refill."""
FIRST_CONTROL_OPCODE, CONTINUATION = 8, 0


@implementer(IPushProducer)
class Gate:
    """A gate that is open while the transport's buffer has room. The transport closes and opens it as a push producer."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    def pauseProducing(self) -> None:  # noqa: N802
        self._open.clear()

    def resumeProducing(self) -> None:  # noqa: N802
        self._open.set()

    def stopProducing(self) -> None:  # noqa: N802
        """Open the gate for good: the connection is lost."""
        self._open.set()

    async def wait_until_open(self, seconds: float) -> bool:
        """Wait for room in the buffer; return False when there was none for so long."""
        try:
            await asyncio.wait_for(self._open.wait(), seconds)
        except TimeoutError:
            return False
        return True


class LimitedRequest(WebRequest):
    """A request whose body is discarded when it is too large; other bodies are spooled on the disk."""

    limit = 0
    too_large = False
    is_known = True

    def gotLength(self, length: int | None) -> None:  # noqa: N802
        path = self.channel._path  # noqa: SLF001
        authorization = (self.requestHeaders.getRawHeaders(b"authorization") or [b""])[0]
        self.is_known = self.server.may_send_large_body(path, authorization.decode("latin-1"))
        self.limit = self.server.max_body_bytes(path)
        if not self.is_known:
            self.limit = min(self.limit, MAX_UNKNOWN_SENDER_BYTES)
        self.too_large = length is not None and length > self.limit
        super().gotLength(0 if self.too_large else length)

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802
        self.too_large = self.too_large or self.content.tell() + len(data) > self.limit
        if self.too_large:
            self.content.truncate(0)
        else:
            super().handleContentChunk(data)

    def process(self) -> Any:
        if not self.too_large:
            return super().process()
        if not self.is_known:
            self.basic_error(
                503,
                b"Service Unavailable",
                "A body of this size is accepted only from a node that has reported. Try again.",
            )
            return None
        self.basic_error(413, b"Content Too Large", f"At most {self.limit >> 20} MiB can be sent in one request.")
        return None


class LimitedFactory(HTTPFactory):
    def buildProtocol(self, addr: Any) -> Any:  # noqa: N802
        protocol = super().buildProtocol(addr)
        protocol.requestFactory = LimitedRequest
        return protocol


class Flooders:
    """Clients whose WebSockets were closed because they sent too much. Refusing a new one is cheaper than opening it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: OrderedDict[str, float] = OrderedDict()

    def add(self, client: str) -> None:
        self._until[client] = self._clock() + FLOOD_SECONDS
        self._until.move_to_end(client)
        if len(self._until) > MAX_FLOODERS:
            self._until.popitem(last=False)

    def refuses(self, client: str) -> bool:
        return self._until.get(client, 0.0) > self._clock()


class LimitedSocket(WebSocketProtocol):
    """A WebSocket that is closed when it sends faster than the application reads. Its client is then refused for a while."""

    client = ""
    odd_frames = float(ODD_FRAMES)
    """How many more are accepted now."""
    counted_at = 0.0

    def onConnect(self, request: Any) -> Any:  # noqa: N802
        server: PacedServer = self.factory.server_class
        self.client = server.client_of(request.headers.get("cookie", "")) or str(self.transport.getPeer().host)
        if server.flooders.refuses(self.client):
            self.server, self.request, self.client_addr = server, request, None  # read when it closes
            self.socket_opened = self.last_ping = time.time()  # read by check_timeouts
            server.protocol_connected(self)
            raise ConnectionDeny(429, "Too many messages: wait half a minute")
        return super().onConnect(request)

    def onMessage(self, payload: bytes, isBinary: bool) -> None:  # noqa: N802, N803
        queue = getattr(self, "application_queue", None)
        if queue is None or queue.qsize() < MAX_UNREAD_MESSAGES:
            super().onMessage(payload, isBinary)
        else:
            self._cut_off()

    def onFrameBegin(self) -> None:  # noqa: N802
        super().onFrameBegin()
        frame = self.current_frame
        if frame.fin and CONTINUATION < frame.opcode < FIRST_CONTROL_OPCODE:
            return
        now = time.monotonic()
        refilled = self.odd_frames + (now - self.counted_at) * ODD_FRAMES_PER_SECOND
        self.odd_frames, self.counted_at = min(float(ODD_FRAMES), refilled) - 1, now
        if self.odd_frames < 0:
            self._cut_off()

    def _cut_off(self) -> None:
        self.server.flooders.add(self.client)
        self.data = b""  # discards what was received
        self.dropConnection(abort=True)


class PacedServer(Server):
    """daphne's server with these limits.

    ``connections`` is the socket on which an entry process passes connections, in addition to ``endpoints`` or instead.
    ``max_body_bytes`` gets the path of a request. ``client_of`` gets the cookies of a WebSocket; for "" its address names
    the client. ``may_send_large_body`` gets a path and the header Authorization; senders for which it is false may send at
    most ``MAX_UNKNOWN_SENDER_BYTES``.
    """

    def __init__(
        self,
        application: Any,
        endpoints: list[str],
        *,
        max_body_bytes: Callable[[bytes], int],
        connections: socket.socket | None = None,
        client_of: Callable[[str], str] = lambda cookies: "",
        may_send_large_body: Callable[[bytes, str], bool] = lambda path, authorization: True,
        stall_seconds: float = STALL_SECONDS,
        **options: Any,
    ) -> None:
        super().__init__(application, endpoints or ["handed over"], **options)
        self.endpoints = endpoints
        self.max_body_bytes = max_body_bytes
        self.may_send_large_body = may_send_large_body
        self.stall_seconds = stall_seconds
        self.client_of = client_of
        self.flooders = Flooders()
        self._handed_over = connections
        self._gates: dict[Any, Gate] = {}
        # daphne discards the errors that Twisted logs
        globalLogPublisher.addObserver(cast(ILogObserver, STDLibLogObserver("daphne.server")))
        if connections is not None:
            reactor.callWhenRunning(self._receive_handed_over)

    @property
    def http_factory(self) -> LimitedFactory:
        return self._http_factory

    @http_factory.setter
    def http_factory(self, factory: HTTPFactory) -> None:
        """Ignore the factory that ``Server.run`` creates, which has no limits."""
        self._http_factory = LimitedFactory(self)

    @property
    def ws_factory(self) -> WebSocketFactory:
        return self._ws_factory

    @ws_factory.setter
    def ws_factory(self, factory: WebSocketFactory) -> None:
        factory.protocol = LimitedSocket
        self._ws_factory = factory

    def _receive_handed_over(self) -> None:
        assert self._handed_over is not None  # noqa: S101
        self.http_factory.doStart()

        def adopt(connection: socket.socket) -> None:
            try:
                reactor.adoptStreamConnection(connection.fileno(), connection.family, self.http_factory)
            except OSError:
                logger.debug("a client disconnected before its connection was adopted")

        receive_connections(reactor._asyncioEventloop, self._handed_over, adopt)  # noqa: SLF001

    def timeout_checker(self) -> None:
        """Check the age of all connections every two seconds, even after an error.

        After an error, daphne would never check again, and idle WebSockets would get no pings.
        """
        for protocol in list(self.connections):
            try:
                protocol.check_timeouts()
            except Exception:
                logger.exception("The age of a connection could not be checked.")
        reactor.callLater(CHECK_SECONDS, self.timeout_checker)  # type: ignore[arg-type]

    async def handle_reply(self, protocol: Any, message: dict[str, Any]) -> None:
        if protocol not in self.connections or self.connections[protocol].get("disconnected"):
            return
        kind = message["type"]
        if kind == "websocket.close" and message.get("code") == TOO_FAST_CLOSE_CODE:
            self.flooders.add(protocol.client)
        if kind == "http.response.body" and not message.get("more_body") and self._gates.pop(protocol, None):
            protocol.unregisterProducer()
        await super().handle_reply(protocol, message)
        if kind == "http.response.start":
            gate = self._gates[protocol] = Gate()
            protocol.registerProducer(gate, True)
        elif kind == "websocket.accept":
            gate = self._gates[protocol] = Gate()
            protocol.transport.unregisterProducer()  # that was the HTTP channel, which has ended
            protocol.transport.registerProducer(gate, True)
        elif kind == "websocket.send" or (kind == "http.response.body" and message.get("more_body")):
            await self._wait_for_room(protocol)

    async def _wait_for_room(self, protocol: Any) -> None:
        gate = self._gates.get(protocol)
        if gate is None or await gate.wait_until_open(self.stall_seconds):
            return
        logger.info("A client that read nothing for %.0f s was disconnected.", self.stall_seconds)
        channel = getattr(protocol, "channel", None)
        (channel.transport if channel is not None else protocol.transport).abortConnection()

    def protocol_disconnected(self, protocol: Any) -> None:
        if gate := self._gates.pop(protocol, None):
            gate.stopProducing()
        super().protocol_disconnected(protocol)
