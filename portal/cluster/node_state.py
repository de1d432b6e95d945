"""The state of a node, for its badge."""

from portal.cluster.models import Node
from portal.cluster.services import is_online


def state_of(node: Node, refused: bool = False) -> tuple[str, str]:
    """Return the most important state of a node now: a key of ``ui.BADGES`` and its text.

    ``refused``: the node gets no new jobs because its runtime does not isolate users enough (``unconfined``).
    """
    if node.approved_at is None:
        return "waiting", "waits for approval"
    if node.token_revoked_at is not None:
        return "revoked", "token revoked"
    if not is_online(node):
        return "lost", "not reporting" if node.last_seen_at else "never reported"
    if node.draining:
        return "draining", "draining"
    if node.cordoned:
        return "held", "cordoned"
    if not node.ready:
        return "preparing", "starting"
    unfit = refused or any(problem.get("blocking") for problem in node.problems)
    return ("held", "not accepting jobs") if unfit else ("ready", "up")
