"""Lines that begin with an option of pip: what each would do, and what to do instead."""

import re
from typing import NamedTuple

OPTION = re.compile(r"(--?[A-Za-z][A-Za-z-]*)(?:[ \t=]+(.*))?", re.DOTALL)
_SHORT_WITH_VALUE = re.compile(r"(-[ecfir])([^-\s=].*)", re.DOTALL)

LONG_NAMES = {
    "-e": "--editable", "-r": "--requirement", "-c": "--constraint", "-i": "--index-url", "--pypi-url": "--index-url",
    "-f": "--find-links", "-U": "--upgrade", "-q": "--quiet", "-t": "--target", "-y": "--yes",
}  # fmt: skip
WITH_VALUE = frozenset(
    {
        "--editable", "--requirement", "--constraint", "--index-url", "--extra-index-url", "--find-links", "--no-binary",
        "--only-binary", "--trusted-host", "--target", "--config-settings", "--global-option", "--install-option",
        "--progress-bar", "--root-user-action", "--proxy", "--cert", "--channel", "--name",
    }
)  # fmt: skip
"""Options whose value may be the next word."""
INDEXES = frozenset({"--index-url", "--extra-index-url"})

_BINARIES = "Whether packages are compiled is decided by an admin. Remove this line."
_NOT_NEEDED = "This option is not needed here. Leave it out."
_REASONS = {
    "--find-links": "Folders and pages of packages are not taken from a list. List the packages by name, or ask an admin for an index.",
    "--no-binary": _BINARIES,
    "--only-binary": _BINARIES,
    "--prefer-binary": _BINARIES,
    "--no-build-isolation": _BINARIES,
    "--trusted-host": "A list cannot switch off the check of certificates. Remove this line.",
    "--pre": "Prereleases are not taken for all packages at once. Name the version of the package that needs one, such as name==2.0rc1.",
    "--no-index": "Which index is asked is decided by an admin. Remove this line.",
    "--require-hashes": "Packages are always locked with their hashes. Remove this line.",
    "--upgrade": _NOT_NEEDED,
    "--quiet": _NOT_NEEDED,
    "--yes": _NOT_NEEDED,
    "--user": _NOT_NEEDED,
    "--no-cache-dir": _NOT_NEEDED,
    "--force-reinstall": _NOT_NEEDED,
    "--no-deps": "Packages always come with what they need. Leave this option out.",
    "--system": _NOT_NEEDED,
    "--break-system-packages": _NOT_NEEDED,
    "--verbose": _NOT_NEEDED,
    "--progress-bar": _NOT_NEEDED,
    "--root-user-action": _NOT_NEEDED,
    "--ignore-installed": _NOT_NEEDED,
    "--disable-pip-version-check": _NOT_NEEDED,
}


class Option(NamedTuple):
    """An option by its long name, and its value, which may be empty."""

    name: str
    value: str


def parse_option(text: str) -> Option | None:
    """Return the option that a line is; None for another line."""
    joined = _SHORT_WITH_VALUE.fullmatch(text)
    match = joined or OPTION.fullmatch(text)
    if match is None:
        return None
    return Option(LONG_NAMES.get(match[1], match[1]), (match[2] or "").strip().strip("\"'"))


def is_needless(name: str) -> bool:
    """Return whether an option changes nothing here."""
    return _REASONS.get(name) == _NOT_NEEDED


def why_refused(name: str) -> str:
    """Return why an option is not taken, and what to do."""
    known = _REASONS.get(name)
    return known or "Options of pip are not taken from a list. Remove this line, or ask an admin for what it sets."
