"""The errors of this app that a user causes. Each has a sentence for the user; other errors are ordinary exceptions."""

from portal.refused import Refused

__all__ = ["BadArchiveError", "Refused"]


class BadArchiveError(Refused):
    """An upload that cannot be accepted; the message names the entry and the fix."""
