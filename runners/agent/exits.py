"""How a container ended: the supervisor's word, checked, else what the runtime saw."""

import signal
from typing import Any

from runners.agent.reconcile import Desired, Exit, Note
from runners.runtime import Observed

SUPERVISORS_REASONS = frozenset({"exited", "stopped", "fenced", "launch_error"})
"""What exit.json may say. Everything else about an end is not for what runs inside to decide."""
MOST_DETAIL = 1000
KILLED = 128 + signal.SIGKILL
"""Nothing inside can kill the first process: the engine, the machine's own shortage of memory, or an admin did."""
DOWN = 255
"""What an engine says of a container that it finds dead when it comes back after the machine went down."""
OUT_OF_MEMORY = "It was killed because it used more memory than its limit."


def judge(wish: Desired, seen: Observed | None, note: Note | None, said: dict[str, Any], printed: bytes = b"") -> Exit:
    """The end of a container that no longer runs, or never will.

    ``said`` is exit.json, which users' code may have written; ``printed`` the end of what the first process itself
    printed, asked for only because a supervisor that fell over leaves no exit.json.
    """
    if note is None or not note.started:
        if wish.wanted == "stop" or (note is not None and wish.told.stop_reason):
            return Exit(None, "stopped", "It was told to stop before it started.")
        return Exit(None, "lost", "This node knows nothing of it.")
    told = note.told is not None and bool(note.told.stop_reason)
    word = supervisors_word(said)
    code = word.code if word else seen.exit_code if seen else None
    if note.halted:
        return Exit(code, note.halted, note.halted_detail)
    if word is not None:
        if word.reason == "exited" and word.code and seen is not None and seen.oom_killed:
            return Exit(word.code, "oom", OUT_OF_MEMORY)
        return word
    if told:
        return Exit(code, "stopped", "It did not end by itself in time and was killed.")
    if seen is None:
        return Exit(None, "lost", "The container is gone from this node and left no word of how it ended.")
    if seen.oom_killed:
        return Exit(code, "oom", OUT_OF_MEMORY)
    if code is None:
        return Exit(None, "lost", seen.detail or "The container ended while nobody saw it and left no word of how.")
    if code == KILLED:
        return Exit(code, "lost", seen.detail or "Its first process was killed from outside.")
    if code == DOWN:
        return Exit(code, "lost", seen.detail or "The machine or its engine went down, and the container with it.")
    last = printed.decode(errors="replace").strip()[-MOST_DETAIL:]
    return Exit(code, "launch_error", seen.detail or f"Its first process fell over. {last}".strip())


def supervisors_word(said: dict[str, Any]) -> Exit | None:
    """exit.json as an Exit; None when it is absent or is not what a supervisor writes."""
    code, reason, detail = said.get("code"), said.get("reason"), said.get("detail", "")
    if not isinstance(code, int) or isinstance(code, bool) or not -255 <= code <= 255:
        return None
    if not isinstance(reason, str) or reason not in SUPERVISORS_REASONS:
        return None
    return Exit(code, reason, detail[:MOST_DETAIL] if isinstance(detail, str) else "")
