"""Sends one message, without the database: a mail, or by a program of its own to a channel. Any thread may do it."""

import base64
import hashlib
import hmac
import json
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from portal import sandbox
from portal.notifications import mail
from portal.notifications.mail import Mail

logger = logging.getLogger(__name__)

LIMITS = sandbox.Limits(30, 1024**3, 1024**2, threading.BoundedSemaphore(8))
"""A receiver that answers slowly holds one of eight places for half a minute at most."""
PROGRAM = "notifications.sender"
SECRET_PREFIX = "whsec_"  # noqa: S105  # the beginning of all secrets


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message to a chat, by apprise."""

    url: str
    schemes: Sequence[str]
    title: str
    text: str
    allowed: Sequence[str]
    secrets: Sequence[str]
    format: str = "text"
    """As which apprise reads title and text: ``text`` or ``html``."""


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """A request to a program, signed as Standard Webhooks describes it."""

    uid: UUID
    url: str
    secret: str
    body: str
    allowed: Sequence[str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an attempt."""

    sent: bool
    error: str = ""
    final: bool = False
    """Another attempt would fail in the same way."""


def send(message: Mail | ChatMessage | WebhookRequest) -> Outcome:
    """Send a message. Never raises: what goes wrong is an outcome."""
    try:
        return _send(message)
    except Exception as error:  # no memory, no processes: whatever it is, the next attempt may succeed
        logger.exception("a message could not be sent")
        return Outcome(
            False, f"The portal could not send it: {type(error).__name__}. The log of the worker has the reason."
        )


def _send(message: Mail | ChatMessage | WebhookRequest) -> Outcome:
    if isinstance(message, Mail):
        return _send_mail(message)
    asked: dict[str, object]
    if isinstance(message, ChatMessage):
        asked = {
            "how": "chat",
            "url": message.url,
            "schemes": list(message.schemes),
            "title": message.title,
            "text": message.text,
            "allowed": list(message.allowed),
            "secrets": list(message.secrets),
            "format": message.format,
        }
    else:
        asked = {
            "how": "post",
            "url": message.url,
            "body": message.body,
            "headers": signed_headers(message, int(time.time())),
            "allowed": list(message.allowed),
        }
    return _run(asked)


def _send_mail(message: Mail) -> Outcome:
    try:
        mail.send(message)
    except (OSError, ValueError) as error:
        return Outcome(False, mail.describe(error), mail.is_final(error) or isinstance(error, ValueError))
    return Outcome(True)


def _run(asked: Mapping[str, object]) -> Outcome:
    """Run the program with its orders in memory: they have secrets, which must not be on the disk or in its arguments."""
    handle = os.memfd_create("orders")
    try:
        with open(handle, "r+b", closefd=False) as orders:
            orders.write(json.dumps(asked).encode())
            orders.flush()
            orders.seek(0)
            answer = sandbox.run(PROGRAM, [], orders, limits=LIMITS)
    except sandbox.NoAnswerError:
        return Outcome(False, f"The receiver did not answer within {LIMITS.seconds:.0f} s.")
    finally:
        os.close(handle)
    return Outcome(bool(answer["sent"]), str(answer["error"]), bool(answer["final"]))


# --- signatures --------------------------------------------------------------------------------------------------


def new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(os.urandom(32)).decode()


def signature(secret: str, uid: object, timestamp: int, body: str) -> str:
    """Return the signature of a request: HMAC-SHA256 of its id, time and body, as Standard Webhooks writes it."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = hmac.new(key, f"{uid}.{timestamp}.{body}".encode(), hashlib.sha256).digest()
    return f"v1,{base64.b64encode(signed).decode()}"


def signed_headers(request: WebhookRequest, timestamp: int) -> dict[str, str]:
    return {
        "Content-Type": "application/json",
        "User-Agent": "Schedulearn",
        "webhook-id": str(request.uid),
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(request.secret, request.uid, timestamp, request.body),
    }
