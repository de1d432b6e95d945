"""Pages as texts to compare, whatever the line breaks of their templates."""

import re


def one_line(html: str) -> str:
    """Return the page in one line, with single spaces."""
    return " ".join(html.split())


def compact(html: str) -> str:
    """Return the page in one line, without spaces beside tags."""
    return re.sub(r"\s*(<[^>]*>)\s*", r"\1", one_line(html))
