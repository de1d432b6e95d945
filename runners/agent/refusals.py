"""What a refusal of the portal means for a container that it prepares."""

import contextlib
from collections.abc import Callable, Iterator

from runners.agent.portal_client import PortalRefusedError
from runners.messages import Message
from runners.runtime import CreateError


@contextlib.contextmanager
def refusal_as_create_error(kind: Callable[[Message], Message]) -> Iterator[None]:
    """Turn a refusal of the portal into a CreateError, except that of an unknown token (401): the agent joins again."""
    try:
        yield
    except PortalRefusedError as error:
        if error.status == 401:
            raise
        raise CreateError(kind(error.message)) from error
