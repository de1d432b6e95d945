"""The outbox in tests: empties it, and stands for receivers."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from portal.notifications import delivery
from portal.notifications.mail import Mail
from portal.notifications.sending import ChatMessage, Outcome, WebhookRequest, send

Message = Mail | ChatMessage | WebhookRequest


def deliver(now: datetime | None = None, sender: Callable[[Any], Outcome] = send) -> int:
    """Send all that is due; return how many messages were attempted."""
    attempted = 0
    while done := delivery.tick(now, sender):
        attempted += done
    return attempted


class Receiver:
    """Takes messages in the place of mail servers and channels, or refuses them."""

    def __init__(self, outcome: Outcome | None = None) -> None:
        self.messages: list[Message] = []
        self.outcome = outcome or Outcome(True)

    def __call__(self, message: Message) -> Outcome:
        self.messages.append(message)
        return self.outcome

    @property
    def mails(self) -> list[Mail]:
        return [each for each in self.messages if isinstance(each, Mail)]

    @property
    def requests(self) -> list[WebhookRequest]:
        return [each for each in self.messages if isinstance(each, WebhookRequest)]

    @property
    def chats(self) -> list[ChatMessage]:
        return [each for each in self.messages if isinstance(each, ChatMessage)]


DOWN = Outcome(False, "The receiver could not be reached: Connection refused.")
GONE = Outcome(False, "The receiver answered 410.", final=True)
