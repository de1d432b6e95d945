"""Identifies processes: a process id alone may by now belong to another process."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

MARK = "SCHEDULEARN_CONTAINER"
"""Every process of a container inherits this variable, also one that left its session."""

PROC = Path("/proc")


def identity_of(pid: int) -> dict[str, Any]:
    """Return what distinguishes a process from a later one with the same id."""
    return {"pid": pid, "started": start_time(pid), "boot": boot_id()}


def boot_id() -> str:
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except FileNotFoundError:
        return ""


def start_time(pid: int) -> str | None:
    """Return when a process started, in a unit of the system; None when it is gone or a zombie."""
    if sys.platform == "linux":
        fields = stat_fields(pid)
        return None if fields is None or fields[0] in "ZX" else fields[19]
    answer = subprocess.run(["ps", "-o", "lstart=,stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    words = answer.stdout.split()
    return None if not words or words[-1].startswith("Z") else " ".join(words[:-1])


def stat_fields(pid: int | str) -> list[str] | None:
    """Return the fields of /proc/<pid>/stat from the state on, after the name, which may contain spaces and brackets."""
    try:
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_alive(identity: dict[str, Any]) -> bool:
    started = identity["started"]
    return started is not None and identity["boot"] == boot_id() and start_time(identity["pid"]) == started


def send_signal(identity: dict[str, Any], signum: int) -> None:
    if is_alive(identity):
        try:
            os.kill(identity["pid"], signum)
        except ProcessLookupError:
            pass


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def all_pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()] if PROC.is_dir() else []


def pids_in_session(identity: dict[str, Any]) -> set[int]:
    """Return the living processes of the session that this process leads or led.

    While any of them lives, the kernel does not reuse the leader's id; if another process has it, the whole session has
    ended.
    """
    if identity["boot"] != boot_id() or identity["started"] is None:
        return set()
    if sys.platform != "linux":
        return {identity["pid"]} if is_alive(identity) else set()
    leader = stat_fields(identity["pid"])
    if leader is not None and leader[19] != identity["started"]:
        return set()
    found = set()
    for pid in all_pids():
        fields = stat_fields(pid)
        if fields is not None and fields[0] not in "ZX" and int(fields[3]) == identity["pid"]:
            found.add(pid)
    return found


def container_ids(pid: int) -> set[str]:
    """Return the ids of the containers in whose control groups a process is; none when it is in none, or gone."""
    try:
        return set(re.findall(r"\b[0-9a-f]{64}\b", (PROC / str(pid) / "cgroup").read_text()))
    except (OSError, UnicodeError):
        return set()


def name_of(pid: int) -> str | None:
    """Return the name of a process; None when it is gone."""
    try:
        return (PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return None


def has_mark_prefix(pid: int, prefix: str) -> bool:
    """Whether the mark of a process has this prefix; False for a process that we may not read."""
    wanted = f"{MARK}={prefix}".encode()
    try:
        return any(each.startswith(wanted) for each in (PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return False


def pids_with_mark(mark: str) -> set[int]:
    """Return the living processes that have the mark and that we may read."""
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for pid in all_pids():
        try:
            carried = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        fields = stat_fields(pid)
        if wanted in carried and fields is not None and fields[0] not in "ZX":
            found.add(pid)
    return found
