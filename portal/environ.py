"""Reads settings from environment variables. A wrong value is refused in one line with its name and a valid example."""

import ipaddress
import logging
import os
from email.utils import parseaddr
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import dj_database_url
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string


def env_bool(name: str, default: bool) -> bool:
    value = os.environ.get(name, "")
    known = {"": default, "true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if value.lower() not in known:
        raise ImproperlyConfigured(f"{name} must be true or false, not {value!r}.")
    return known[value.lower()]


def env_int(name: str, default: int, minimum: int, maximum: int) -> int:
    value = os.environ.get(name, "") or str(default)
    if not value.isdecimal() or len(value) > 20 or not minimum <= int(value) <= maximum:
        raise ImproperlyConfigured(f"{name} must be a whole number from {minimum} to {maximum}, not {value!r}.")
    return int(value)


def env_network(name: str, default: str, max_prefix: int) -> ipaddress.IPv4Network:
    """Return a private IPv4 network with a prefix of at most ``max_prefix`` bits."""
    value = os.environ.get(name) or default
    try:
        network = ipaddress.IPv4Network(value)
        known = network.is_private and network.prefixlen <= max_prefix
    except ValueError:
        known = False
    if not known:
        raise ImproperlyConfigured(
            f"{name} must be a private network like {default}, at least a /{max_prefix}, not {value!r}."
        )
    return network


def env_choice(name: str, *known: str) -> str:
    """Return one of ``known``, of which the first is the default."""
    value = os.environ.get(name, "") or known[0]
    if value not in known:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(known)}, not {value!r}.")
    return value


def env_zone(name: str, default: str) -> str:
    """Return the name of a time zone that this machine knows."""
    value = os.environ.get(name) or default
    try:
        ZoneInfo(value)
    except (ValueError, OSError, KeyError) as error:  # a path, a folder of zones, or no such zone
        raise ImproperlyConfigured(
            f"{name} must name a time zone, like Europe/Berlin or UTC, not {value!r}."
        ) from error
    return value


def env_log_level(name: str, default: str) -> str:
    value = (os.environ.get(name) or default).upper()
    if value not in logging.getLevelNamesMapping():
        raise ImproperlyConfigured(f"{name} must be one of DEBUG, INFO, WARNING and ERROR, not {value!r}.")
    return value


def env_class(name: str, default: str) -> str:
    """Return the dotted path of a class that can be imported."""
    value = os.environ.get(name) or default
    try:
        import_string(value)
    except (ImportError, ValueError) as error:
        raise ImproperlyConfigured(
            f"{name} must be a class that can be imported, like {default}, not {value!r}."
        ) from error
    return value


def env_address(name: str, default: str) -> str:
    """Return the sender of mails: an address, or a name and an address."""
    value = os.environ.get(name) or default
    address = parseaddr(value)[1]
    if "@" not in address.strip("@") or not value.isprintable():
        raise ImproperlyConfigured(f"{name} must be like Schedulearn <gpus@example.org>, not {value!r}.")
    return value


def database_of(url: str) -> Any:
    """Return Django's settings of the database at ``url``. The refusal does not repeat it: it has a password."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("postgres", "postgresql") and (parts.port is None or parts.port) and parts.path.strip("/"):
            return dj_database_url.parse(url)
    except ValueError:  # brackets or a port that cannot be
        pass
    raise ImproperlyConfigured(
        "DATABASE_URL must be like postgres://user:password@host:5432/schedulearn, with special characters in the password "
        "written as %XX. Leave it empty to use SQLite."
    )


def check_redis(url: str) -> None:
    try:
        parts = urlsplit(url)
        known = parts.scheme == "unix" or (
            parts.scheme in ("redis", "rediss") and parts.hostname and (parts.port is None or parts.port)
        )
    except ValueError:
        known = False
    if not known:
        raise ImproperlyConfigured("REDIS_URL must be like redis://host:6379/0, or rediss:// for TLS.")


def env_origins(name: str) -> list[str]:
    """Return origins whose forms are accepted, with their scheme; ``*.`` stands for all names below."""
    found = env_list(name)
    for each in found:
        if not each.startswith(("https://", "http://")) or "/" in each.partition("://")[2]:
            raise ImproperlyConfigured(f"{name} must have origins like https://schedulearn.example.org, not {each!r}.")
    return found


def env_list(name: str) -> list[str]:
    return [part.strip() for part in os.environ.get(name, "").split(",") if part.strip()]


def env_secret(name: str) -> str:
    """Return the variable, or the content of the file that NAME_FILE points to."""
    path = os.environ.get(f"{name}_FILE")
    if not path:
        return os.environ.get(name, "")
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ImproperlyConfigured(f"{name}_FILE ({path}) cannot be read: {error}.") from error


def env_site(name: str, default: str) -> str:
    """Return a URL with http or https and without a slash at its end, to which paths are appended."""
    value = (os.environ.get(name) or default).rstrip("/")
    try:
        parts = urlsplit(value)
        known = parts.scheme in ("http", "https") and parts.hostname and not parts.path and not parts.query
    except ValueError:
        known = False
    if not known:
        raise ImproperlyConfigured(f"{name} must be like https://schedulearn.example.org, not {value!r}.")
    return value
