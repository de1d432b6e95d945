"""Found first by every Python that a rank starts: teaches Horovod's workers to ask for news instead of taking calls.

Horovod has each elastic worker open a port and send its address as a pickle, and pickles come back on that port. Here
the worker asks the forwarder on its own loopback, which answers when hosts were added or removed, in JSON. A
``sitecustomize`` that this one hides is run afterwards.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing would take longer to import than all the rest
    from typing import Any

TARGET = "horovod.runner.elastic.worker"
HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - in every Python's start: no pathlib


def ask_for_news(manager: Any, host: str, slot: str, port: int) -> None:
    """Runs for as long as the rank does. ``manager`` is Horovod's WorkerNotificationManager."""
    import http.client
    import json
    import time

    seen = 0
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", f"/hosts_updated/{host}:{slot}:{seen}")
            response = connection.getresponse()
            news = json.loads(response.read()) if response.status == 200 else None
            connection.close()
        except (OSError, http.client.HTTPException, ValueError):
            news = None
        if news is None:
            time.sleep(1)
        elif news["seen"] > seen:
            if news.get("alive"):
                give_up_others(news["alive"])
            if not news["result"]:
                seen = news["seen"]
                continue
            while not manager._listeners:  # the training function has not been entered yet
                time.sleep(0.05)
            seen = news["seen"]
            manager.handle_hosts_updated(news["timestamp"], news["result"])


def give_up_others(alive: list[str]) -> None:
    """Ends the connections to all but these: the other end has gone without a word, and Gloo would wait for it."""
    import socket

    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):  # noqa: PTH115
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family == socket.AF_INET and connection.getpeername()[0] not in (*alive, "127.0.0.1"):
                    connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # closed meanwhile, or not connected


def teach(module: Any) -> None:
    """Replaces what would open a port and send a pickle."""
    import threading

    def init(self: Any, *_args: object, **_kwargs: object) -> None:
        with self._lock:
            port = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT")
            if self._service or not port:
                return
            place = (os.environ["HOROVOD_HOSTNAME"], os.environ["HOROVOD_LOCAL_RANK"])
            self._service = threading.Thread(target=ask_for_news, args=(self, *place, int(port)), daemon=True)
            self._service.start()

    module.WorkerNotificationManager.init = init


class Finder(importlib.abc.MetaPathFinder):
    """Finds Horovod's module as it would be found without us, and teaches it once it is loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != TARGET:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            teach(module)

        spec.loader.exec_module = exec_module
        return spec


def run_hidden() -> None:
    """The site's own sitecustomize, if there is one."""
    others = [place for place in sys.path if os.path.abspath(place or ".") != HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, Finder())
run_hidden()
