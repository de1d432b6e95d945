"""Why the proxy of a node did not let a job reach a host."""

REASONS = ("not_allowed", "internal", "unreachable", "cut_off")
"""What agents report."""


def refusal(reason: str, host: str, detail: str = "") -> str:
    """Return why connections to a host were refused or ended, and what to do."""
    because = f": {detail}" if detail else ""
    match reason:
        case "not_allowed":
            return f"Not allowed. Ask an admin to allow {host or 'the host'} for this project."
        case "internal":
            return "Its address is one of the local network. Ask an admin to allow it as a host of the local network."
        case "unreachable":
            return f"Allowed, but the node did not reach it{because}."
        case "cut_off":
            return f"The connection was cut off{because}."
    return f"Refused{because}."
