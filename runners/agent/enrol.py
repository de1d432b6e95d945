"""Joins a portal once: checks the machine, prints what is unfit, and joins (``python -m runners.agent.enrol``).

The install script runs it before the agent, so that whoever pasted the join command sees at once whether it worked. With a
stored identity it only checks the machine and prints the result.
"""

import logging
import os
import signal
import sys
from dataclasses import replace

from runners.agent.machine import inspect_machine
from runners.agent.portal_client import PortalClient, PortalError
from runners.agent.settings import MachineFindings, NodeIdentity, Settings, choose_runtime, load_or_join, lock_home
from runners.agent.signals import StopSignal
from runners.host.node_files import NodeFiles
from runners.messages.problems import Problem
from runners.runtime import SetupError

logger = logging.getLogger(__name__)


def enrol(settings: Settings) -> int:
    """Join the portal; return 0 when this machine is a node. Raises SetupError."""
    stop = StopSignal(signal.SIGTERM, signal.SIGINT)
    files = NodeFiles(settings.home, settings.datasets, settings.shared)
    lock = lock_home(files)
    try:
        stored = NodeIdentity.read(files.identity)
        runtime = settings.runtime if settings.runtime != "auto" else stored.runtime if stored else choose_runtime()
        found = inspect_machine(files.home, runtime, settings.url, settings.overlay_address)
        for line in finding_lines(found):
            _print_line(line)
        identity = load_or_join(replace(settings, runtime=runtime), files, stop, found)
        _print_line(f"This machine is node {identity.node} ({identity.name}) of {identity.url}.")
    finally:
        lock.close()
    if any(problem.blocking for problem in found.problems):
        _print_line("It cannot be approved and gets no jobs until the problems marked “Must be fixed first” are fixed.")
    return 0


def finding_lines(found: MachineFindings) -> list[str]:
    """Return the findings as lines for a terminal."""
    named = (("System", "system"), ("Engine", "engine"), ("runc", "runc"), ("NVIDIA driver", "driver"))
    lines = [f"{title}: {found.facts[key]}" for title, key in named if found.facts.get(key)]
    lines.append("GPUs: " + (", ".join(found.facts.get("gpus") or ()) or "none; it offers CPU slots"))
    for problem in found.problems:
        lines += _problem_lines(problem)
    return lines


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _problem_lines(problem: Problem) -> list[str]:
    mark = "Must be fixed first" if problem.blocking else "Note"
    return [f"{mark}: {problem.text}", *([f"    {problem.fix}"] if problem.fix else [])]


def rotate_token(files: NodeFiles, portal: PortalClient) -> None:
    """Fetch a new token and store it before it is used: if the agent is killed in between, the old one still works."""
    identity = NodeIdentity.read(files.identity)
    if identity is None:
        return
    try:
        token = portal.new_token()
    except PortalError as error:
        logger.warning("A new token was announced and did not arrive; the agent requests it again: %s", error)
        return
    NodeIdentity(identity.node, token, identity.url, identity.name, identity.runtime, identity.installation).write(
        files.identity
    )
    portal.use_token(token)
    logger.info("This node has a new token.")


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        return enrol(Settings.read(sys.argv[1:], os.environ))
    except SetupError as error:
        logger.error("Not joined: %s", error)
        return 2


if __name__ == "__main__":
    sys.exit(main())
