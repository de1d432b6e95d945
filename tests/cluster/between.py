"""A proxy between an agent and its engine, which makes the engine seem slow or broken."""

import os
import selectors
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

Mood = Literal["well", "slow", "cut", "refuse"]
BROKEN = b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nContent-Length: 31\r\n\r\n"
BROKEN += b'{"message":"broken on purpose"}'
SLOW_SECONDS = 3.0
CUT_BYTES = 120
"""In the middle of an answer's head or of its JSON."""


class Between:
    """A socket that forwards to another one. A new mood applies to new connections; open ones keep theirs."""

    def __init__(self, front: Path, behind: Path) -> None:
        self.behind = behind
        self.mood: Mood = "well"
        front.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(front))
        self._listener.listen(64)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(caller, self.mood), daemon=True).start()

    def _carry(self, caller: socket.socket, mood: Mood) -> None:
        with caller, socket.socket(socket.AF_UNIX) as engine, suppress(OSError):
            if mood == "refuse":
                while caller.recv(65_536):
                    caller.sendall(BROKEN)
                return
            engine.connect(str(self.behind))
            if mood == "slow":
                time.sleep(SLOW_SECONDS)
            left = CUT_BYTES if mood == "cut" else -1
            with selectors.DefaultSelector() as both:
                both.register(caller, selectors.EVENT_READ, engine)
                both.register(engine, selectors.EVENT_READ, caller)
                while True:
                    for key, _ in both.select():
                        data = os.read(key.fd, 65_536)
                        if not data:
                            return
                        if key.fd == engine.fileno() and left >= 0:
                            data, left = data[:left], left - len(data)
                        key.data.sendall(data)
                        if mood == "cut" and left < 0:
                            return

    def close(self) -> None:
        self._listener.close()
