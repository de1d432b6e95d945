"""The words of the table of routes: what each role gets, and a visit of a route."""

from dataclasses import dataclass, field
from typing import Any

from tests.laws.people import ROLES

# Pages
ANYBODY = "200 200 200 200 200 200"
MEMBERS = "302 200 200 200 200 200"
IN_PROJECT = "302 404 200 200 200 200"
OWNERS = "302 404 404 404 200 200"
ADMINS = "302 404 404 404 404 200"
DONE = "302 302 302 302 302 302"
NO_PASSWORD = "302 400 400 400 400 400"
"""An empty form would take away the e-mail address, which needs the password."""
DONE_BY_OWNERS = "302 404 404 404 302 302"
DONE_BY_ADMINS = "302 404 404 404 404 302"
ON_JOB = "302 404 302- 302- 302 302"
"""Actions on Alice's job respond with a message to users who may view it but not act."""

# REST
API_MEMBERS = "401 200 200 200 200 200"
API_IN_PROJECT = "401 404 200 200 200 200"
API_WRITERS = "401 404 403 201 201 201"
API_ON_JOB = "401 404 403 403 200 200"
API_OWNERS = "401 404 403 403 200 200"
API_ADMINS = "401 404 404 404 404 200"
NODES_ONLY = "401 401 401 401 401 401"


@dataclass(frozen=True)
class Visit:
    method: str
    address: str
    """The address, with names of ``names()`` in braces."""
    expect: str
    data: dict[str, Any] = field(default_factory=dict)
    raw: bytes | None = None

    @property
    def by_role(self) -> dict[str, str]:
        return dict(zip(ROLES, self.expect.split(), strict=True))


def get(address: str, expect: str) -> Visit:
    return Visit("GET", address, expect)


def post(address: str, expect: str, **data: Any) -> Visit:
    return Visit("POST", address, expect, data)
