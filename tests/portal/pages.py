"""Pages as texts to compare, whatever the line breaks of their templates."""

import html as entities
import re


def one_line(html: str) -> str:
    """Return the page in one line, with single spaces."""
    return " ".join(html.split())


def compact(html: str) -> str:
    """Return the page in one line, without spaces beside tags."""
    return re.sub(r"\s*(<[^>]*>)\s*", r"\1", one_line(html))


def text_of(html: str) -> str:
    """Return the text of the page in one line, without tags, as a person reads it."""
    return one_line(entities.unescape(re.sub(r"<[^>]*>", "", html)))
