"""The one error that the user caused; all others are errors of the portal."""

from typing import Literal

Code = Literal["invalid", "forbidden", "limit", "conflict", "too_large", "full"]


class Refused(Exception):  # noqa: N818  # an answer, not a fault
    """A request that cannot be carried out. The message gives the reason and a way forward.

    ``field`` names the input at fault, if there is one. Pages show the message; the API answers with the status that
    ``portal.rest.STATUS_OF`` has for ``code``; ``full`` is a full disk.
    """

    def __init__(self, message: str, code: Code = "invalid", field: str = "") -> None:
        super().__init__(message)
        self.message, self.code, self.field = message, code, field
