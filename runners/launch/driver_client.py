"""The supervisor's client of the driver: polls for commands and reports exits, and retries until the driver answers."""

import http.client
import json
import queue
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from runners.launch.forwarder import send_request
from runners.launch.hosts import POLL_SECONDS
from runners.spec import CollectiveGroup

RETRY_SECONDS = 0.5


class DriverClient:
    """Puts each command of the driver into ``commands``, once and in order, and calls ``on_command`` then.

    ``driver`` returns the driver's present address. Another driver than before receives the ranks that run here (``runs``).
    """

    def __init__(
        self,
        group: CollectiveGroup,
        host: str,
        slots: int,
        on_command: Callable[[], None],
        driver: Callable[[], str] | None = None,
    ) -> None:
        self.commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.answered_at: float | None = None
        """When the driver last answered, on the monotonic clock; None: never yet."""
        self.runs: tuple[dict[str, Any], ...] = ()
        """The last run of each slot: {"run", "slot", "code"}, the code None while it runs; and, once it is known,
        "cost_ms", for how long the change at its start kept it from training."""
        self._group = group
        self._driver = driver or (lambda: group.driver_host)
        self._message = {"host": host, "slots": slots, "boot": uuid.uuid4().hex, "address": group.address}
        self._on_command = on_command
        self._exits: queue.Queue[dict[str, Any]] = queue.Queue()
        self._ended = threading.Event()

    def begin(self) -> None:
        threading.Thread(target=self._poll, name="poll driver", daemon=True).start()
        threading.Thread(target=self._report_exits, name="report exits", daemon=True).start()

    def report_exit(self, run: int, code: int, ending: str = "", cost_ms: int | None = None) -> None:
        """Report an exit. ``ending`` is why this host ended the rank itself, if it did; ``cost_ms`` is as in ``runs``."""
        self._exits.put({"run": run, "code": code, "ending": ending, "cost_ms": cost_ms})

    def wait_until_reported(self, seconds: float) -> None:
        """Wait until the driver has all exits. A host that leaves without reporting them counts as lost after a silence."""
        until = time.monotonic() + seconds
        while self._exits.unfinished_tasks and time.monotonic() < until:
            time.sleep(0.02)

    def end(self) -> None:
        self._ended.set()

    def _poll(self) -> None:
        seen, driver = 0, ""
        while not self._ended.is_set():
            answer = self._call(
                "/ring/poll", {**self._message, "seen": seen, "driver": driver, "runs": list(self.runs)}
            )
            if answer and answer.get("driver", driver) != driver:
                seen, driver = 0, str(answer["driver"])
            commands = answer.get("commands", []) if answer else []
            for command in commands:
                seen = max(seen, int(command["number"]))
                self.commands.put(command)
            if commands:
                self._on_command()
            if answer is None:
                self._ended.wait(RETRY_SECONDS)

    def _report_exits(self) -> None:
        while not self._ended.is_set():
            message = self._exits.get()
            while self._call("/ring/exit", message) is None and not self._ended.wait(RETRY_SECONDS):
                pass
            self._exits.task_done()

    def _call(self, path: str, message: dict[str, Any]) -> dict[str, Any] | None:
        group = self._group
        try:
            body = json.dumps(message).encode()
            status, answer = send_request(
                self._driver(), group.port, group.secret, "POST", path, body, POLL_SECONDS + 10
            )
            value = json.loads(answer) if status == 200 else None
        except (OSError, http.client.HTTPException, ValueError):
            return None
        if not isinstance(value, dict):
            return None
        self.answered_at = time.monotonic()
        return value
