"""Finding processes again: a number alone may by now belong to somebody else."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

MARK = "SCHEDULEARN_CONTAINER"
"""Every process of a container inherits this variable: also one that left its session."""

PROC = Path("/proc")


def identify(pid: int) -> dict[str, Any]:
    """What tells this process from a later one of the same number."""
    return {"pid": pid, "started": start_mark(pid), "boot": boot()}


def boot() -> str:
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except FileNotFoundError:
        return ""


def start_mark(pid: int) -> str | None:
    """When it started, in whatever unit; None when it is gone or a zombie."""
    if sys.platform == "linux":
        fields = stat_fields(pid)
        return None if fields is None or fields[0] in "ZX" else fields[19]
    answer = subprocess.run(["ps", "-o", "lstart=,stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    words = answer.stdout.split()
    return None if not words or words[-1].startswith("Z") else " ".join(words[:-1])


def stat_fields(pid: int | str) -> list[str] | None:
    """The fields of /proc/<pid>/stat after the name, which may itself hold spaces and brackets: state first."""
    try:
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def alive(identity: dict[str, Any]) -> bool:
    started = identity["started"]
    return started is not None and identity["boot"] == boot() and start_mark(identity["pid"]) == started


def send(identity: dict[str, Any], signum: int) -> None:
    if alive(identity):
        try:
            os.kill(identity["pid"], signum)
        except ProcessLookupError:
            pass


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def everyone() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()] if PROC.is_dir() else []


def in_session_of(identity: dict[str, Any]) -> set[int]:
    """Living processes of the session that this one leads or led.

    While any of them lives the kernel gives the leader's number to nobody else; if the number has a new bearer, the
    whole session has ended.
    """
    if identity["boot"] != boot() or identity["started"] is None:
        return set()
    if sys.platform != "linux":
        return {identity["pid"]} if alive(identity) else set()
    leader = stat_fields(identity["pid"])
    if leader is not None and leader[19] != identity["started"]:
        return set()
    found = set()
    for pid in everyone():
        fields = stat_fields(pid)
        if fields is not None and fields[0] not in "ZX" and int(fields[3]) == identity["pid"]:
            found.add(pid)
    return found


def container_ids(pid: int) -> set[str]:
    """Names of the containers in whose control groups it is; none when it is in none, or gone."""
    try:
        return set(re.findall(r"\b[0-9a-f]{64}\b", (PROC / str(pid) / "cgroup").read_text()))
    except (OSError, UnicodeError):
        return set()


def name_of(pid: int) -> str | None:
    """What the process calls itself; None when it is gone."""
    try:
        return (PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return None


def carries(pid: int, begins: str) -> bool:
    """Whether its mark begins so. One that we may not look at does not."""
    wanted = f"{MARK}={begins}".encode()
    try:
        return any(each.startswith(wanted) for each in (PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return False


def with_mark(mark: str) -> set[int]:
    """Living processes that carry the mark and that we may look at."""
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for pid in everyone():
        try:
            carried = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        fields = stat_fields(pid)
        if wanted in carried and fields is not None and fields[0] not in "ZX":
            found.add(pid)
    return found
