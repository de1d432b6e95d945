"""The firewall rules that protect the node itself.

A job's network is internal, yet it reaches the node through the bridge's gateway address: one rule blocks this. Jobs over
several nodes need a port of the node: our own chain opens it to the nodes with which this one shares a job.
"""

import os
import shutil
import subprocess
from collections.abc import Collection, Sequence

from runners.messages.problems import FirewallMissing, FirewallNotRoot, FirewallRefused, Problem

RULE = ("INPUT", "-i", "slj-+", "-j", "DROP")
"""The name of every bridge that ``host_config`` requests begins with ``slj-``."""

OVERLAY_PORT = 24_789
"""The UDP port for jobs over several nodes. Not VXLAN's usual 4789, which Docker's own swarm uses."""
CHAIN = "SCHEDULEARN-RING"
OVERLAY_RULE = ("INPUT", "-p", "udp", "-m", "udp", "--dport", str(OVERLAY_PORT), "-j", CHAIN)

COMMAND_SECONDS = 10


def close_host_to_jobs() -> Problem | None:
    """Make sure that the rule exists for IPv4, and for IPv6 where the machine has it. Returns a problem when it does not."""
    if os.geteuid() != 0:
        return FirewallNotRoot(" ".join(RULE))
    if shutil.which("iptables") is None:
        return FirewallMissing()
    try:
        ensure_rule("iptables")
        if shutil.which("ip6tables"):
            ensure_rule("ip6tables", needed=False)
    except (subprocess.SubprocessError, OSError) as error:
        return FirewallRefused(error_line(error), " ".join(RULE))
    return None


def ensure_rule(program: str, needed: bool = True, rule: Sequence[str] = RULE) -> None:
    base = [program, "--wait", "5"]
    limits = {"timeout": COMMAND_SECONDS, "capture_output": True, "text": True}
    found = subprocess.run([*base, "-C", *rule], check=False, **limits)  # type: ignore[call-overload]
    if found.returncode != 0:
        subprocess.run([*base, "-I", *rule], check=needed, **limits)  # type: ignore[call-overload]


def open_overlay_port(peers: Collection[str]) -> None:
    """Let only these nodes send to the port of jobs over several nodes. May be repeated.

    Raises OSError or subprocess.SubprocessError.
    """
    wanted = chain_rules(peers)
    limits = {"timeout": COMMAND_SECONDS, "capture_output": True, "text": True}
    shown = subprocess.run(["iptables", "--wait", "5", "-S", CHAIN], check=False, **limits)  # type: ignore[call-overload]
    if shown.returncode != 0 or shown.stdout.split("\n")[1:-1] != wanted:
        # The whole chain at once, so that the port is never open to all.
        lines = ["*filter", f":{CHAIN} - [0:0]", *wanted, "COMMIT", ""]
        command = ["iptables-restore", "--wait", "5", "--noflush"]
        subprocess.run(command, input="\n".join(lines), check=True, **limits)  # type: ignore[call-overload]
    ensure_rule("iptables", rule=OVERLAY_RULE)


def chain_rules(peers: Collection[str]) -> list[str]:
    """Return the rules of the chain as ``iptables -S`` shows them."""
    return [*(f"-A {CHAIN} -s {peer}/32 -j ACCEPT" for peer in sorted(peers)), f"-A {CHAIN} -j DROP"]


def error_line(error: Exception) -> str:
    """Return the last line of a failed program's message, or the name of the error."""
    text = (getattr(error, "stderr", "") or str(error)).strip()
    return text.splitlines()[-1] if text else type(error).__name__
