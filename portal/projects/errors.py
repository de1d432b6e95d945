"""The user's errors of this app. Each carries a sentence for the person waiting; ours are ordinary exceptions."""

from portal.refused import Refused

__all__ = ["BadArchive", "Refused"]


class BadArchive(Refused):
    """An upload that cannot be taken; the message names the entry and what to do."""
