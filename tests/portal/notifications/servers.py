"""Receivers with real sockets: one for webhooks and one for mail, each in threads, on ports of their own."""

import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Request:
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Sink:
    """What a receiver got."""

    port: int = 0
    requests: list[Request] = field(default_factory=list)
    mails: list[Message] = field(default_factory=list)
    before_answer: Callable[[], None] = lambda: None
    """Called after a message was accepted and before the sender learns of it."""


@contextmanager
def web_sink(answers: Mapping[str, Callable[[Any], None]] | None = None) -> Iterator[Sink]:
    """Serve POST on 127.0.0.1: 200 for every path, but those in ``answers``, which write to the handler themselves."""
    sink = Sink()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            sink.requests.append(Request(self.path, dict(self.headers), body))
            special = (answers or {}).get(self.path)
            if special is not None:
                special(self)
                return
            sink.before_answer()
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    sink.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield sink
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def mail_sink() -> Iterator[Sink]:
    """Accept mails by SMTP on 127.0.0.1."""
    sink = Sink()

    class Handler(socketserver.StreamRequestHandler):
        def say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())
            self.wfile.flush()

        def handle(self) -> None:
            try:
                self._talk()
            except OSError:  # the sender was killed
                return

        def _talk(self) -> None:
            self.say("220 sink")
            while line := self.rfile.readline():
                verb = line.split()[0].upper() if line.split() else b""
                if verb == b"DATA":
                    self.say("354 go on")
                    lines = []
                    while (part := self.rfile.readline()) not in (b".\r\n", b""):
                        lines.append(part)
                    if part:
                        sink.mails.append(message_from_bytes(b"".join(lines)))
                        sink.before_answer()
                    self.say("250 accepted")
                elif verb == b"QUIT":
                    self.say("221 bye")
                    return
                else:
                    self.say("250 ok")

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = allow_reuse_address = True

    server = Server(("127.0.0.1", 0), Handler)
    sink.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield sink
    finally:
        server.shutdown()
        server.server_close()
