"""What may reach the node itself.

A job's network is internal, yet it reaches the node through the bridge's gateway address: one rule ends that. Jobs over
several nodes need a port of the node: a chain of ours opens it to the nodes that this one shares a job with.
"""

import os
import shutil
import subprocess
from collections.abc import Collection, Sequence

from runners.runtime import Problem

RULE = ("INPUT", "-i", "slj-+", "-j", "DROP")
"""``slj-`` begins the name of every bridge that ``host_config`` asks for."""

RING_PORT = 24_789
"""UDP, for jobs over several nodes. Not VXLAN's usual 4789: Docker's own swarm uses that one."""
CHAIN = "SCHEDULEARN-RING"
RING_RULE = ("INPUT", "-p", "udp", "-m", "udp", "--dport", str(RING_PORT), "-j", CHAIN)

SECONDS = 10
MEND = (
    "Run once as root: iptables -I " + " ".join(RULE) + " (and make your firewall keep it), or run the agent as root."
)


def close_host_to_jobs() -> Problem | None:
    """Makes sure of the rule for IPv4, and for IPv6 where there is any. May be repeated; None when it stands."""
    text = "Jobs with a network may reach services of this machine itself: "
    if os.geteuid() != 0:
        return Problem(text + "the agent is not root and cannot close its firewall to them.", MEND)
    if shutil.which("iptables") is None:
        return Problem(text + "iptables is not installed.", "Install iptables (Debian: apt-get install iptables).")
    try:
        ensure_rule("iptables")
        if shutil.which("ip6tables"):
            ensure_rule("ip6tables", needed=False)
    except (subprocess.SubprocessError, OSError) as error:
        return Problem(f"{text}iptables refused the rule ({error_line(error)}).", MEND)
    return None


def ensure_rule(program: str, needed: bool = True, rule: Sequence[str] = RULE) -> None:
    base = [program, "--wait", "5"]
    limits = {"timeout": SECONDS, "capture_output": True, "text": True}
    found = subprocess.run([*base, "-C", *rule], check=False, **limits)  # type: ignore[call-overload]
    if found.returncode != 0:
        subprocess.run([*base, "-I", *rule], check=needed, **limits)  # type: ignore[call-overload]


def open_ring(peers: Collection[str]) -> None:
    """Lets these nodes, and nobody else, send to the port of jobs over several nodes. May be repeated.

    Raises OSError or subprocess.SubprocessError.
    """
    wanted = chain_of(peers)
    limits = {"timeout": SECONDS, "capture_output": True, "text": True}
    shown = subprocess.run(["iptables", "--wait", "5", "-S", CHAIN], check=False, **limits)  # type: ignore[call-overload]
    if shown.returncode != 0 or shown.stdout.split("\n")[1:-1] != wanted:
        # The whole chain at once: at no moment is the port open to everybody.
        lines = ["*filter", f":{CHAIN} - [0:0]", *wanted, "COMMIT", ""]
        command = ["iptables-restore", "--wait", "5", "--noflush"]
        subprocess.run(command, input="\n".join(lines), check=True, **limits)  # type: ignore[call-overload]
    ensure_rule("iptables", rule=RING_RULE)


def chain_of(peers: Collection[str]) -> list[str]:
    """As ``iptables -S`` shows them."""
    return [*(f"-A {CHAIN} -s {peer}/32 -j ACCEPT" for peer in sorted(peers)), f"-A {CHAIN} -j DROP"]


def error_line(error: Exception) -> str:
    said = getattr(error, "stderr", "") or str(error)
    return said.strip().splitlines()[-1] if said.strip() else type(error).__name__
