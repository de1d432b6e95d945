"""A job's network is internal, yet it reaches the node itself through the bridge's gateway address. One rule ends that."""

import os
import shutil
import subprocess

from runners.runtime import Problem

RULE = ("INPUT", "-i", "slj-+", "-j", "DROP")
"""``slj-`` begins the name of every bridge that ``hostconfig`` asks for."""

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


def ensure_rule(program: str, needed: bool = True) -> None:
    base = [program, "--wait", "5"]
    limits = {"timeout": SECONDS, "capture_output": True, "text": True}
    found = subprocess.run([*base, "-C", *RULE], check=False, **limits)  # type: ignore[call-overload]
    if found.returncode != 0:
        subprocess.run([*base, "-I", *RULE], check=needed, **limits)  # type: ignore[call-overload]


def error_line(error: Exception) -> str:
    said = getattr(error, "stderr", "") or str(error)
    return said.strip().splitlines()[-1] if said.strip() else type(error).__name__
