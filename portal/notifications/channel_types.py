"""The types of channels: what a person fills in for each, and how a message reaches it."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from portal.notifications.models import Channel
from portal.notifications.sender import NEVER as NEVER
from portal.outbound import OutboundError, Url, check_host, read_url
from portal.refused import Refused

Config = Mapping[str, Any]
SCHEME = re.compile(r"[a-z][a-z0-9]{1,19}")
NO_EXTRAS = "image=no&overflow=split"


@dataclass(frozen=True, slots=True)
class Field:
    """Something to fill in."""

    name: str
    label: str
    help: str = ""
    required: bool = True
    secret: bool = True
    """It is never shown again."""
    initial: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """Where messages go."""

    url: str
    """With all secrets: of apprise, or of a webhook."""
    place: str
    """The host, which may be shown."""
    schemes: tuple[str, ...] = ()
    """Of apprise."""


@dataclass(frozen=True, slots=True)
class ChannelType:
    """A type of channel. ``target`` raises Refused for a configuration that is not complete or not permitted."""

    key: str
    title: str
    help: str
    fields: tuple[Field, ...]
    target: Callable[[Config, Collection[str]], Target]


def _url(config: Config, allowed: Collection[str], field: str = "url") -> Url:
    try:
        return read_url(str(config[field]), allowed)
    except OutboundError as error:
        raise Refused(str(error), field=field) from None


def _host(config: Config, allowed: Collection[str]) -> str:
    host, _, port = str(config["host"]).lower().partition(":")
    try:
        check_host(host, allowed)
    except OutboundError as error:
        raise Refused(str(error), field="host") from None
    if port and (host not in allowed or not port.isdecimal()):
        raise Refused("Write the name of the host only; ports are for hosts that an admin has allowed.", field="host")
    return f"{host}:{port}" if port else host


def _matching(config: Config, name: str, pattern: str, what: str) -> str:
    value = str(config[name]).strip()
    if not re.fullmatch(pattern, value, re.ASCII):
        raise Refused(what, field=name)
    return value


def _webhook(config: Config, allowed: Collection[str]) -> Target:
    return Target(str(config["url"]), _url(config, allowed).place)


def _slack(config: Config, allowed: Collection[str]) -> Target:
    pattern = r"https://hooks\.slack\.com/services/[A-Z0-9]+/[A-Z0-9]+/[A-Za-z0-9]+"
    url = _matching(
        config, "url", pattern, "Write the URL of an incoming webhook: https://hooks.slack.com/services/T.../B.../..."
    )
    return Target(url, "hooks.slack.com", ("slack",))


def _discord(config: Config, allowed: Collection[str]) -> Target:
    pattern = r"https://discord(?:app)?\.com/api/webhooks/[0-9]+/[A-Za-z0-9_-]+"
    url = _matching(config, "url", pattern, "Write the URL of a webhook: https://discord.com/api/webhooks/...")
    return Target(url, "discord.com", ("discord",))


def _teams(config: Config, allowed: Collection[str]) -> Target:
    url = _url(config, allowed)
    if not url.host.endswith((".logic.azure.com", ".api.powerplatform.com")):
        what = "Write the URL that the workflow “Post to a channel when a webhook request is received” shows."
        raise Refused(what, field="url")
    return Target(str(config["url"]), url.host, ("workflow", "workflows"))


def _mattermost(config: Config, allowed: Collection[str]) -> Target:
    url = _url(config, allowed)
    found = re.fullmatch(r"((?:/[A-Za-z0-9_.-]+)*?)/hooks/([A-Za-z0-9]+)", url.target)
    if not found:
        raise Refused("Write the URL of an incoming webhook: https://chat.example.org/hooks/...", field="url")
    scheme = "mmosts" if url.scheme == "https" else "mmost"
    return Target(f"{scheme}://{url.host}:{url.port}{found[1]}/{found[2]}?{NO_EXTRAS}", url.place, (scheme,))


def _telegram(config: Config, allowed: Collection[str]) -> Target:
    token = _matching(
        config, "token", r"[0-9]{5,20}:[A-Za-z0-9_-]{20,80}", "A token is like 123456789:AAF..., from @BotFather."
    )
    chat = _matching(config, "chat", r"-?[0-9]{3,20}|@[A-Za-z0-9_]{3,40}", "A chat is a number, or @ and a name.")
    return Target(f"tgram://{token}/{quote(chat, safe='@-')}?{NO_EXTRAS}", "api.telegram.org", ("tgram",))


def _matrix(config: Config, allowed: Collection[str]) -> Target:
    host = _host(config, allowed)
    room = _matching(
        config,
        "room",
        r"[!#][A-Za-z0-9._=/+-]+(:[A-Za-z0-9.-]+(:[0-9]+)?)?",
        "A room is like !abc:example.org or #lab:example.org.",
    )
    token = quote(
        _matching(config, "token", r"[!-~]{8,500}", "Write the access token of the account that posts."), safe=""
    )
    return Target(f"matrixs://{token}@{host}/{quote(room, safe='')}?discovery=no&{NO_EXTRAS}", host, ("matrixs",))


def _ntfy(config: Config, allowed: Collection[str]) -> Target:
    host = _host(config, allowed)
    topic = _matching(config, "topic", r"[A-Za-z0-9_-]{1,64}", "A topic has letters, digits, - and _.")
    token = str(config.get("token", "")).strip()
    if token:
        token = _matching(config, "token", r"tk_[A-Za-z0-9]{10,100}", "An access token begins with tk_.") + "@"
    return Target(f"ntfys://{token}{host}/{topic}?mode=private&{NO_EXTRAS}", host, ("ntfys",))


def _apprise(config: Config, allowed: Collection[str]) -> Target:
    url = str(config["url"]).strip()
    scheme = url.partition("://")[0].lower()
    if not url.isascii() or any(letter <= " " for letter in url) or not SCHEME.fullmatch(scheme) or scheme in NEVER:
        raise Refused("Write a URL of apprise whose scheme is enabled.", field="url")
    return Target(url, scheme, (scheme,))


HOST = Field("host", "Server", "The name of the host, such as matrix.example.org.", secret=False)
TYPES: dict[str, ChannelType] = {
    each.key: each
    for each in (
        ChannelType(
            Channel.Type.WEBHOOK,
            "Webhook",
            "Posts JSON with a signature to a program of yours.",
            (Field("url", "URL", "https://…"),),
            _webhook,
        ),
        ChannelType(
            Channel.Type.SLACK,
            "Slack",
            "An incoming webhook of a Slack app.",
            (Field("url", "URL of the incoming webhook", "https://hooks.slack.com/services/…"),),
            _slack,
        ),
        ChannelType(
            Channel.Type.TEAMS,
            "Microsoft Teams",
            "A workflow that posts to a channel when a webhook request is received.",
            (Field("url", "URL of the workflow", "https://….logic.azure.com/workflows/…"),),
            _teams,
        ),
        ChannelType(
            Channel.Type.DISCORD,
            "Discord",
            "A webhook of a channel.",
            (Field("url", "URL of the webhook", "https://discord.com/api/webhooks/…"),),
            _discord,
        ),
        ChannelType(
            Channel.Type.MATTERMOST,
            "Mattermost",
            "An incoming webhook of your server.",
            (Field("url", "URL of the incoming webhook", "https://chat.example.org/hooks/…"),),
            _mattermost,
        ),
        ChannelType(
            Channel.Type.TELEGRAM,
            "Telegram",
            "A bot that writes to a chat.",
            (
                Field("token", "Token of the bot", "From @BotFather."),
                Field("chat", "Chat", "Its number, or @ and the name of a channel.", secret=False),
            ),
            _telegram,
        ),
        ChannelType(
            Channel.Type.MATRIX,
            "Matrix",
            "An account that writes to a room.",
            (
                HOST,
                Field("token", "Access token", "Of an account that is in the room."),
                Field("room", "Room", "!abc:example.org, from the settings of the room.", secret=False),
            ),
            _matrix,
        ),
        ChannelType(
            Channel.Type.NTFY,
            "ntfy",
            "Push messages to phones.",
            (
                Field("host", "Server", "ntfy.sh, or the name of your own server.", secret=False, initial="ntfy.sh"),
                Field("topic", "Topic", "Who knows it can read your messages, unless the server asks for a token."),
                Field("token", "Access token", "Of servers that ask for one.", required=False),
            ),
            _ntfy,
        ),
        ChannelType(
            Channel.Type.APPRISE,
            "Apprise URL",
            "Any other service that apprise knows. Admins only.",
            (Field("url", "URL", "As the documentation of apprise describes it."),),
            _apprise,
        ),
    )
}
