"""The one error that belongs to the person asking; all others are ours."""

from typing import Literal

Code = Literal["invalid", "forbidden", "limit", "conflict"]


class Refused(Exception):  # noqa: N818  # an answer, not a fault
    """What a person asked for cannot be done; the message tells them why and what would help.

    ``field`` names the input it is about, if one. Pages show the message, the API answers with 400, 403, 409 or
    429 by ``code``.
    """

    def __init__(self, message: str, code: Code = "invalid", field: str = "") -> None:
        super().__init__(message)
        self.message, self.code, self.field = message, code, field
