"""Poetry's versions (``^1.2``, ``~1.2``) in the form of pip."""

import re

from packaging.specifiers import InvalidSpecifier, SpecifierSet

MAX_VERSIONS = 200
"""Characters of the versions of one package."""

_NOT_UNDERSTOOD = "These versions are not understood. Write them as pip does: >=1.2,<2."
_SHORT = re.compile(r"([\^~])\s*(\d{1,9}(?:\.\d{1,9}){0,3})")
_PLAIN = re.compile(r"v?\d[A-Za-z0-9.+!]*(?:\.\*)?")


class VersionsError(ValueError):
    """Versions that have no simple counterpart; the message is a sentence."""


def translate(versions: str) -> str:
    """Return a specifier for pip, empty for any version. Raises VersionsError."""
    versions = versions.strip()
    if versions in ("*", ""):
        return ""
    if len(versions) > MAX_VERSIONS:
        raise VersionsError(_NOT_UNDERSTOOD)
    parts = [_translate_one(part.strip()) for part in versions.split(",")]
    try:
        return str(SpecifierSet(",".join(parts)))
    except InvalidSpecifier:
        raise VersionsError(_NOT_UNDERSTOOD) from None


def _translate_one(part: str) -> str:
    match = _SHORT.fullmatch(part)
    if match is None:
        return f"=={part}" if _PLAIN.fullmatch(part) else part
    numbers = [int(number) for number in match[2].split(".")]
    above = caret_end(numbers) if match[1] == "^" else tilde_end(numbers)
    return f">={match[2]},<{'.'.join(str(number) for number in above)}"


def caret_end(numbers: list[int]) -> list[int]:
    """Return the first version that ``^`` excludes: the leftmost number that is not zero may not grow."""
    position = next((index for index, number in enumerate(numbers) if number), len(numbers) - 1)
    return [*numbers[:position], numbers[position] + 1]


def tilde_end(numbers: list[int]) -> list[int]:
    """Return the first version that ``~`` excludes: the minor number, if there is one, may not grow."""
    position = min(1, len(numbers) - 1)
    return [*numbers[:position], numbers[position] + 1]
