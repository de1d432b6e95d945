"""The user's errors of this app. Each carries a sentence for the person waiting; ours are ordinary exceptions."""


class Refused(Exception):  # noqa: N818  # it is an answer, not a fault
    """The act is not allowed or makes no sense; the message says why and what to do.

    ``code`` is ``invalid``, ``forbidden`` or ``conflict``; ``field`` names the input it is about, if one.
    """

    def __init__(self, message: str, code: str = "invalid", field: str = "") -> None:
        super().__init__(message)
        self.message, self.code, self.field = message, code, field


class BadArchive(Refused):
    """An upload that cannot be taken; the message names the entry and what to do."""
