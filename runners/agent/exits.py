"""Determine how a container ended: from the checked report of its supervisor, else from what the runtime saw."""

import signal
from typing import Any

from runners.agent.reconcile import DesiredContainer, Exit, JournalEntry
from runners.runtime import Observed

SUPERVISOR_REASONS = frozenset({"exited", "stopped", "fenced", "launch_error"})
"""The reasons that exit.json may contain. What runs inside a container decides nothing else about its end."""
MAX_DETAIL = 1000
KILLED = 128 + signal.SIGKILL
"""Nothing inside can kill the first process: it was the engine, an admin, or the kernel of a machine without memory."""
DOWN = 255
"""The exit code that an engine reports for a container that it finds dead after the machine went down."""
OUT_OF_MEMORY = "It was killed because it used more memory than its limit."


def judge(
    container: DesiredContainer,
    seen: Observed | None,
    entry: JournalEntry | None,
    exit_file: dict[str, Any],
    printed: bytes = b"",
) -> Exit:
    """Return how a container ended that no longer runs, or never will.

    ``exit_file`` is exit.json, which users' code may have written. ``printed`` is the end of what the first process
    printed; it is needed only because a supervisor that crashed leaves no exit.json.
    """
    if entry is None or not entry.started:
        if container.wanted == "stop" or (entry is not None and container.control.stop_reason):
            return Exit(None, "stopped", "It was stopped before it started.")
        return Exit(None, "lost", "This node has no record of it.")
    stop_sent = entry.control is not None and bool(entry.control.stop_reason)
    reported = read_exit(exit_file)
    code = reported.code if reported else seen.exit_code if seen else None
    if entry.halted:
        return Exit(code, entry.halted, entry.halted_detail)
    if reported is not None:
        if reported.reason == "exited" and reported.code and seen is not None and seen.oom_killed:
            return Exit(reported.code, "oom", OUT_OF_MEMORY)
        return reported
    if stop_sent:
        return Exit(code, "stopped", "It did not end by itself in time and was killed.")
    if seen is None:
        return Exit(None, "lost", "The container is gone from this node and left no record of how it ended.")
    if seen.oom_killed:
        return Exit(code, "oom", OUT_OF_MEMORY)
    if code is None:
        return Exit(None, "lost", seen.detail or "The container ended unobserved and left no record of how.")
    if code == KILLED:
        return Exit(code, "lost", seen.detail or "Its first process was killed from outside.")
    if code == DOWN:
        return Exit(code, "lost", seen.detail or "The machine or its engine went down, and the container with it.")
    last = printed.decode(errors="replace").strip()[-MAX_DETAIL:]
    return Exit(code, "launch_error", seen.detail or f"Its first process crashed. {last}".strip())


def read_exit(exit_file: dict[str, Any]) -> Exit | None:
    """Return the content of exit.json as an Exit; None when it is absent or is not what a supervisor writes."""
    code, reason, detail = exit_file.get("code"), exit_file.get("reason"), exit_file.get("detail", "")
    if not isinstance(code, int) or isinstance(code, bool) or not -255 <= code <= 255:
        return None
    if not isinstance(reason, str) or reason not in SUPERVISOR_REASONS:
        return None
    return Exit(code, reason, detail[:MAX_DETAIL] if isinstance(detail, str) else "")
