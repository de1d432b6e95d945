"""Watches that no lock of the agent is held across a call to the portal, the disk, an engine or another program.

The loop that renews the leases takes the same locks: whoever holds one while something slow answers can lose every job
of the node. The locks that modules of ``runners`` make are replaced by ones that know their holder, and each slow call
looks whether its thread holds one.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import requests

from runners.runtimes.fake import FakeRuntime

SLOW = {
    "open",
    *(f"os.{name}" for name in ("listdir", "scandir", "mkdir", "rename", "remove", "rmdir", "chmod", "chown", "utime")),
    "shutil.rmtree",
    "subprocess.Popen",
    "socket.connect",
    "socket.getaddrinfo",
}
"""Events of ``sys.audit``; calls that raise none are wrapped below."""
INSIDE = ("runners.launch.", "runners.training.")
"""What runs in containers, where nothing renews leases; their logs are written under a lock on purpose."""
VERBS = ("list", "create", "start", "stop", "remove", "logs", "connect", "check", "facts")

_held = threading.local()
_make_lock, _make_condition = threading.Lock, threading.Condition


class GuardedLock:
    """A lock that its thread knows it holds. Not re-entrant, as its original."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._lock = _make_lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            _holders().append(self._owner)
        return taken

    def release(self) -> None:
        _holders().remove(self._owner)
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Guard:
    def __init__(self) -> None:
        self.broken: list[str] = []
        """A line for each slow call under a lock."""

    def look(self, call: str) -> None:
        holders = _holders()
        if holders and not getattr(_held, "looking", False):
            _held.looking = True  # what names the caller may open files itself
            try:
                frames = _frames()
                if not any("importlib" in frame for frame in frames):  # a module that is imported late
                    self.broken.append(f"{call} while {holders[-1]} is held, from {' < '.join(frames[:6])}")
            finally:
                _held.looking = False


_watching: Guard | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event in SLOW and _watching is not None:
        _watching.look(f"{event}{arguments[:1]}")


sys.addaudithook(_hook)


@contextmanager
def guarded(patch: pytest.MonkeyPatch) -> Iterator[Guard]:
    """What is made meanwhile is watched."""
    global _watching
    guard = Guard()
    patch.setattr(threading, "Lock", lambda: _ours(_make_lock, GuardedLock))
    patch.setattr(threading, "RLock", _refused(threading.RLock))
    patch.setattr(threading, "Condition", _condition)
    for owner, name in [(os, "fsync"), (httpx.Client, "send"), (requests.Session, "send")]:
        patch.setattr(owner, name, _watched(guard, getattr(owner, name), name))
    for name in VERBS:
        patch.setattr(FakeRuntime, name, _watched(guard, getattr(FakeRuntime, name), f"runtime.{name}"))
    _watching = guard
    try:
        yield guard
    finally:
        _watching = None


def _ours(original: Callable[[], Any], replacement: Callable[[str], Any]) -> Any:
    caller = sys._getframe(2)
    module = str(caller.f_globals.get("__name__", ""))
    ours = module.startswith("runners.") and not module.startswith(INSIDE)
    return replacement(f"{module}:{caller.f_lineno}") if ours else original()


def _condition(lock: Any = None) -> threading.Condition:
    return _ours(lambda: _make_condition(lock), lambda owner: _make_condition(lock or GuardedLock(owner)))  # type: ignore[arg-type]


def _refused(original: Callable[[], Any]) -> Callable[[], Any]:
    """A lock that may be taken again is one whose holder does not know what it calls."""

    def make(owner: str) -> Any:
        raise AssertionError(f"{owner}: a lock of the agent is a plain one")

    return lambda: _ours(original, make)


def _watched(guard: Guard, call: Callable[..., Any], name: str) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        guard.look(name)
        return call(*args, **kwargs)

    return watched


def _holders() -> list[str]:
    if not hasattr(_held, "owners"):
        _held.owners = []
    owners: list[str] = _held.owners
    return owners


def _frames() -> list[str]:
    frame, frames = sys._getframe(3), []
    while frame is not None:
        frames.append(f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return frames
