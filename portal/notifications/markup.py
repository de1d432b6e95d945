"""Keeps the words of a message what they are: others typed parts of it, and a service must not read them as markup.

Names of jobs, reasons and lines of logs come from any user, and a channel may be of an admin, in the portal's name: a mention
would call all members there, a masked link would lead elsewhere, and a tag would vanish from a traceback.
"""

import html
import re
from dataclasses import dataclass
from typing import Literal

from portal.notifications.models import Channel

Format = Literal["text", "html"]
MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-!~|>])")
CALLS = re.compile(r"([@<])")
"""What mentions, links and emojis of Discord and Mattermost begin with."""
BREAK = "\u200b"
"""Has no width: a mention with it between is none."""


@dataclass(frozen=True, slots=True)
class Words:
    """A title and a text, written so that the service shows them as they are."""

    title: str
    text: str
    format: Format = "text"
    """As which apprise reads them."""


def literal(type: str, title: str, text: str) -> Words:
    """Return the words for a type of channel. Slack's, Matrix's and ntfy's are escaped or plain by themselves."""
    match type:
        case Channel.Type.DISCORD | Channel.Type.MATTERMOST:
            return Words(_markdown(title), _markdown(text))
        case Channel.Type.TEAMS:
            return Words(_markdown(title), text)  # apprise escapes the text, but not the title
        case Channel.Type.TELEGRAM:
            return Words(html.escape(title, quote=False), html.escape(text, quote=False), "html")
        case _:
            return Words(title, text)


def _markdown(text: str) -> str:
    return CALLS.sub(rf"\1{BREAK}", MARKDOWN.sub(r"\\\1", text))
