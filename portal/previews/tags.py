"""Template filters for lists of files; every page has them."""

import unicodedata

from django import template

from portal.previews import kinds

register = template.Library()

MAX_THUMBNAIL_BYTES = 8 * 1024 * 1024
REORDERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


@register.filter
def visible(path: str) -> str:
    """Show the characters that would hide or reorder the others: ``photo\\u202egpj.exe`` ends with ``.exe``."""
    return "".join(
        f"\\u{ord(char):04x}" if char in REORDERING or unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") else char
        for char in path
    )


@register.filter
def file_icon(path: str) -> str:
    """Return the name of the icon for a file of this name."""
    return kinds.icon_of(path)


@register.filter
def has_thumbnail(path: str, size: int) -> bool:
    """Return whether a list shows a small image of a file with this name and size."""
    return kinds.kind_by_name(path) == "image" and 0 < size <= MAX_THUMBNAIL_BYTES
