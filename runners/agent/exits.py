"""Determine how a container ended: from the checked report of its supervisor, else from what the runtime saw."""

import signal
from typing import Any

from runners.agent.reconcile import DesiredContainer, Exit, JournalEntry
from runners.messages import MAX_TEXT_CHARACTERS, Quotation
from runners.messages.containers import (
    EndedUnobserved,
    FirstProcessCrashed,
    GoneWithoutRecord,
    KilledAfterGrace,
    KilledFromOutside,
    MachineDown,
    NoRecord,
    OverMemoryLimit,
    StoppedBeforeStart,
)
from runners.messages.launch import read_message
from runners.runtime import ObservedContainer

SUPERVISOR_REASONS = frozenset({"exited", "stopped", "fenced", "launch_error"})
"""The reasons that exit.json may contain. What runs inside a container decides nothing else about its end."""
KILLED_EXIT_CODE = 128 + signal.SIGKILL
"""Nothing inside can kill the first process: it was the engine, an admin, or the kernel of a machine without memory."""
MACHINE_DOWN_EXIT_CODE = 255
"""The exit code that an engine reports for a container that it finds dead after the machine went down."""


def determine_exit(
    container: DesiredContainer,
    seen: ObservedContainer | None,
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
            return Exit(None, "stopped", StoppedBeforeStart())
        return Exit(None, "lost", NoRecord())
    stop_sent = entry.control is not None and bool(entry.control.stop_reason)
    reported = read_exit(exit_file)
    code = reported.code if reported else seen.exit_code if seen else None
    if entry.halted:
        return Exit(code, entry.halted, entry.halted_detail)
    if reported is not None:
        if reported.reason == "exited" and reported.code and seen is not None and seen.oom_killed:
            return Exit(reported.code, "oom", OverMemoryLimit())
        return reported
    if stop_sent:
        return Exit(code, "stopped", KilledAfterGrace())
    if seen is None:
        return Exit(None, "lost", GoneWithoutRecord())
    if seen.oom_killed:
        return Exit(code, "oom", OverMemoryLimit())
    reason = Quotation(seen.detail) if seen.detail else None
    if code is None:
        return Exit(None, "lost", reason or EndedUnobserved())
    if code == KILLED_EXIT_CODE:
        return Exit(code, "lost", reason or KilledFromOutside())
    if code == MACHINE_DOWN_EXIT_CODE:
        return Exit(code, "lost", reason or MachineDown())
    last = printed.decode(errors="replace").strip()[-MAX_TEXT_CHARACTERS:]
    return Exit(code, "launch_error", reason or FirstProcessCrashed(last))


def read_exit(exit_file: dict[str, Any]) -> Exit | None:
    """Return the content of exit.json as an Exit; None when it is absent or is not what a supervisor writes."""
    code, reason = exit_file.get("code"), exit_file.get("reason")
    if not isinstance(code, int) or isinstance(code, bool) or not -255 <= code <= 255:
        return None
    if not isinstance(reason, str) or reason not in SUPERVISOR_REASONS:
        return None
    return Exit(code, reason, read_message(exit_file.get("message"), exit_file.get("detail")))
