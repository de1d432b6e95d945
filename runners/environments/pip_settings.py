"""Translates the machine's pip configuration into options for uv, which installs the same packages much faster.

Only the standard library is used: ``make run`` needs this before any package is installed. Options without a counterpart
in uv raise ``UntranslatableError``; the caller then uses pip itself.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

COMMANDS = ("global", "install", "download", ":env:")
"""Sections of pip's configuration that apply to an installation; the later ones win."""
IGNORED_OPTIONS = frozenset(
    {
        "break-system-packages",
        "cache-dir",
        "config-file",
        "debug",
        "disable-pip-version-check",
        "exists-action",
        "isolated",
        "log",
        "no-cache-dir",
        "no-color",
        "no-compile",
        "no-input",
        "no-python-version-warning",
        "no-warn-conflicts",
        "no-warn-script-location",
        "prefer-binary",
        "progress-bar",
        "quiet",
        "require-virtualenv",
        "root-user-action",
        "use-pep517",
        "verbose",
    }
)
"""Options that do not change which packages are found."""
LIST_OPTIONS = {
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "constraint": ("UV_CONSTRAINT", " "),
}
"""The variable of uv and the separator of its values. Addresses may contain passwords, so they are not on the command line."""
FORMATS = {"no-binary": "--no-binary", "only-binary": "--only-binary"}
SWITCHES = {"no-index": "--no-index", "pre": "--prerelease=allow"}
VARIABLES = {
    "cert": ("SSL_CERT_FILE",),
    "client-cert": ("SSL_CLIENT_CERT",),
    "proxy": ("HTTP_PROXY", "HTTPS_PROXY"),
    "timeout": ("UV_HTTP_TIMEOUT",),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
    "retries": ("UV_HTTP_RETRIES",),
}
FALSE_VALUES = ("", "0", "false", "no", "off")
OWN_VARIABLES = ("UV_CACHE_DIR", "UV_LINK_MODE", "UV_CONCURRENT_DOWNLOADS")
"""Variables of uv that do not change which packages are found; all others are removed."""


class UntranslatableError(Exception):
    """The name of the pip option for which uv has no counterpart."""


@dataclass(frozen=True, slots=True)
class UvSettings:
    """Settings of uv. ``options`` follow ``uv pip install`` or ``uv pip compile``."""

    options: tuple[str, ...]
    variables: Mapping[str, str]


def read(python: str = sys.executable) -> dict[str, str]:
    """Return the options that pip would apply to an installation, by long names. Raises OSError or CalledProcessError."""
    listed = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", "config", "list"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return parse(listed.stdout)


def parse(listed: str) -> dict[str, str]:
    """Parse the lines of ``pip config list``: ``section.option='value'``."""
    sections: dict[str, dict[str, str]] = {name: {} for name in COMMANDS}
    for line in listed.splitlines():
        name, separator, value = line.partition("=")
        section, _, option = name.strip().partition(".")
        if separator and section in sections:
            sections[section][option.replace("_", "-")] = str(ast.literal_eval(value))
    return {option: value for name in COMMANDS for option, value in sections[name].items()}


def translate(config: Mapping[str, str], extra_index: str = "") -> UvSettings:
    """Translate pip's options. ``extra_index`` is searched in addition to configured ones. Raises UntranslatableError."""
    lists = {**config, "extra-index-url": f"{config.get('extra-index-url', '')} {extra_index}"}
    options = ["--no-config", "--index-strategy=unsafe-best-match"]
    variables = {"UV_DEFAULT_INDEX": config["index-url"]} if config.get("index-url") else {}  # both have one default
    for name, value in sorted(lists.items()):
        if name in LIST_OPTIONS:
            variable, separator = LIST_OPTIONS[name]
            variables |= {variable: separator.join(found)} if (found := list(existing_items(name, value))) else {}
        elif name in FORMATS:
            options += [f"{FORMATS[name]}={item}" for item in value.replace(",", " ").split()]
        elif name in SWITCHES:
            options += [] if value.lower() in FALSE_VALUES else [SWITCHES[name]]
        elif name in VARIABLES:
            variables |= dict.fromkeys(VARIABLES[name], value)
        elif name not in IGNORED_OPTIONS and name != "index-url":
            raise UntranslatableError(name)
    return UvSettings(tuple(options), variables)


def existing_items(name: str, value: str) -> Iterator[str]:
    """Yield the items of a list, without folders that do not exist: pip only warns about them, uv would fail."""
    for item in value.split():
        local = item.removeprefix("file://")
        if name != "find-links" or "://" in local or Path(local).exists():
            yield item


def environment(settings: UvSettings, cache: Path) -> dict[str, str | None]:
    """Return changes of variables for a uv process (None removes one). Its cache is ours unless the user has set one."""
    changes: dict[str, str | None] = {
        name: None for name in os.environ if name.startswith("UV_") and name not in OWN_VARIABLES
    }
    if bundle := os.environ.get("REQUESTS_CA_BUNDLE"):
        changes["SSL_CERT_FILE"] = bundle
    if not os.environ.get("UV_CACHE_DIR"):
        changes["UV_CACHE_DIR"] = str(cache)
    return {**changes, "UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "never", **settings.variables}
