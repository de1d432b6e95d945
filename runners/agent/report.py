"""The report that a node sends to the portal with each sync. ``portal/agents/protocol.py`` reads it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runners.agent.environment_keeper import EnvironmentKeeper
from runners.agent.machine import Machine
from runners.agent.reconcile import DesiredContainer, Exit, JournalEntry
from runners.host.node_files import read_json_beneath
from runners.messages import Message, Quotation
from runners.messages.containers import WithRemark
from runners.messages.launch import read_message

MAX_DETAIL_CHARACTERS = 2000
MAX_PHASE_CHARACTERS = 200


def node_report(
    boot: str,
    full_pass: bool,
    runtime: str,
    machine: Machine,
    environments: EnvironmentKeeper,
    problems: Sequence[dict[str, Any]],
    containers: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """Return the whole report. ``full_pass``: the agent has looked at everything since its start."""
    return {
        "boot": boot,
        "full_pass": full_pass,
        "runtime": runtime,
        "facts": machine.facts(),
        "problems": list(problems),
        "gpus": machine.gpus(),
        "environments": environments.reports(),
        "containers": list(containers),
    }


def container_report(
    container: DesiredContainer, state: str, entry: JournalEntry | None, message: Message | None
) -> dict[str, Any]:
    """Return what the report has about a container that the portal lists. Portals of the previous release read the text."""
    exit = entry.exit if entry else None
    return {
        "name": container.spec.name,
        "epoch": container.spec.number,
        "state": state,
        "message": message.data() if message and not isinstance(message, Quotation) else None,
        "detail": message.text[:MAX_DETAIL_CHARACTERS] if message else "",
        "running_at": entry.running_at if entry else None,
        "exit_code": exit.code if exit else None,
        "exit_reason": exit.reason if exit else "",
        "collected": bool(entry and entry.collected),
    }


def exit_message(exit: Exit, *remarks: Message | None) -> Message | None:
    """Return how a container ended, and what of its log and outputs could not be sent; None if there is nothing to add."""
    message = exit.message
    for remark in filter(None, remarks):
        message = WithRemark(message, remark) if message else remark
    return message


def read_phase(folder: Path) -> Message | None:
    """Return what a running container does, as its supervisor wrote it into this folder."""
    status = read_json_beneath(folder, "status.json")
    return read_message(status.get("message"), status.get("phase"), MAX_PHASE_CHARACTERS)
