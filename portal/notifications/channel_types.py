"""The types of channels: what a person fills in for each, and how a message reaches it."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from portal.notifications.models import Channel
from portal.notifications.sender import NEVER as NEVER
from portal.outbound import OutboundError, Url, check_host, read_url
from portal.refused import Refused

Config = Mapping[str, Any]
SCHEME = re.compile(r"[a-z][a-z0-9]{1,19}")
NO_EXTRAS = "image=no&overflow=split"
TEAMS_PATH = re.compile(
    r"(?P<automate>/powerautomate/automations/direct(?:/cu/(?P<route>[0-9]+))?)?"
    r"/workflows/(?P<workflow>[A-Za-z0-9_-]+)/triggers/manual/paths/invoke/?"
)
TEAMS_OPTIONS = {
    "api-version": r"[0-9][0-9-]{0,19}(-preview)?",
    "sp": r"/triggers/manual/run",
    "sv": r"[0-9.]{1,10}",
    "sig": r"[A-Za-z0-9_-]{1,200}",
}
"""The parameters of a workflow's URL, and what each may be."""
FILE_OPTIONS = frozenset({"keyfile", "subfile", "pgpkey"})
FILE_TEMPLATES = frozenset({"discord", "guilded", "slack", "tgram", "workflow", "workflows"})
"""Schemes of apprise whose option ``template`` names a file. In others it is the name of a template at the service."""
CONNECTION_OPTIONS = frozenset({"verify", "redirect", "rto", "cto", "retry", "wait", "store"})
"""How apprise connects and repeats, and what it stores: that is decided here."""


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
    pattern = r"https://hooks\.slack\.com/services/([A-Z0-9]+/[A-Z0-9]+/[A-Za-z0-9]+)"
    what = "Write the URL of an incoming webhook, and nothing after it: https://hooks.slack.com/services/T.../B.../..."
    tokens = re.sub(pattern, r"\1", _matching(config, "url", pattern, what))
    return Target(f"slack://{tokens}/?footer=no&{NO_EXTRAS}", "hooks.slack.com", ("slack",))


def _discord(config: Config, allowed: Collection[str]) -> Target:
    pattern = r"https://discord(?:app)?\.com/api/webhooks/([0-9]+/[A-Za-z0-9_-]+)"
    what = "Write the URL of a webhook, and nothing after it: https://discord.com/api/webhooks/..."
    tokens = re.sub(pattern, r"\1", _matching(config, "url", pattern, what))
    return Target(f"discord://{tokens}/?avatar=no&{NO_EXTRAS}", "discord.com", ("discord",))


def _teams(config: Config, allowed: Collection[str]) -> Target:
    url = _url(config, allowed)
    parts = urlsplit(url.target)
    found = TEAMS_PATH.fullmatch(parts.path)
    if not found or not url.host.endswith((".logic.azure.com", ".api.powerplatform.com")):
        what = "Write the URL that the workflow “Post to a channel when a webhook request is received” shows."
        raise Refused(what, field="url")
    options = _options(parts.query)
    known = ", ".join(TEAMS_OPTIONS)
    if unknown := next((name for name in options if name not in TEAMS_OPTIONS), None):
        what = f"The URL has the parameter “{unknown[:40]}”. Leave it out: a workflow's URL has {known} only."
        raise Refused(what, field="url")
    if not all(re.fullmatch(form, options.get(name, ""), re.ASCII) for name, form in TEAMS_OPTIONS.items()):
        raise Refused(f"Copy the whole URL of the workflow, with its parameters {known}.", field="url")
    asked = {"sig": options["sig"], "api-version": options["api-version"], "route": found["route"] or ""}
    asked |= {"pa": "yes"} if found["automate"] else {}
    query = urlencode({name: value for name, value in asked.items() if value})
    place = f"{url.host}:{url.port}/{found['workflow']}"
    return Target(f"workflows://{place}?{query}&{NO_EXTRAS}", url.host, ("workflow", "workflows"))


def _options(query: str) -> dict[str, str]:
    """Return the parameters of a query. Raises Refused for one that is there twice, or that cannot be read in one way only."""
    if ";" in query:
        raise Refused("Leave ; out of the URL.", field="url")
    pairs = parse_qsl(query, keep_blank_values=True)
    if len({name for name, _ in pairs}) < len(pairs):
        raise Refused("A parameter of the URL is there twice.", field="url")
    return dict(pairs)


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
    refused = FILE_OPTIONS | CONNECTION_OPTIONS | (frozenset({"template"}) if scheme in FILE_TEMPLATES else frozenset())
    for name in _option_names(url):
        if name in refused:
            why = (
                "they decide how to connect"
                if name in CONNECTION_OPTIONS
                else "they name files of the portal's machine"
            )
            raise Refused(
                f"Leave out “{name}”. Options such as {', '.join(sorted(refused))} are not used: {why}.", field="url"
            )
    return Target(url, scheme, (scheme,))


def _option_names(url: str) -> set[str]:
    """Return the names of all options of a URL of apprise, which reads them in ways of its own: after any ?, & or ;."""
    words = re.split(r"[?&;]", unquote(url)) + re.split(r"[?&;]", url)
    return {unquote(word.partition("=")[0]).strip().lower().lstrip("+-:") for word in words[1:]}


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
