"""The tokens that nodes have shown to this process: whose report is worth reading, and whose channel to subscribe to."""


class KnownTokens:
    """Nodes by the digest of their token. Whether a token is still valid is read from the database each time."""

    def __init__(self) -> None:
        self._nodes: dict[str, int] = {}

    def __contains__(self, token_digest: str) -> bool:
        return token_digest in self._nodes

    def node_of(self, token_digest: str) -> int | None:
        """Return the id of the node that has shown this token; None if none has."""
        return self._nodes.get(token_digest)

    def add(self, token_digest: str, node: int) -> None:
        self._nodes[token_digest] = node

    def forget(self, token_digest: str) -> None:
        self._nodes.pop(token_digest, None)

    def clear(self) -> None:
        self._nodes.clear()


known_tokens = KnownTokens()
"""Those of this process."""
