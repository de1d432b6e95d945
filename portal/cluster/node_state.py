"""The state of a node as its badge shows it."""

from portal.cluster.models import Node
from portal.cluster.services import is_online


def state_of(node: Node, refused: bool = False) -> tuple[str, str]:
    """Return a key of ``ui.BADGES`` and its text: what matters most about the node now.

    ``refused``: the node gets no new jobs because its runtime separates users too little (``unconfined``).
    """
    if node.approved_at is None:
        return "waiting", "waits for approval"
    if node.token_revoked_at is not None:
        return "revoked", "token revoked"
    if not is_online(node):
        return "lost", "not heard of" if node.last_seen_at else "never heard of"
    if node.draining:
        return "draining", "draining"
    if node.cordoned:
        return "held", "takes no new work"
    if not node.ready:
        return "preparing", "starting"
    return ("held", "takes no new jobs") if refused else ("ready", "up")
