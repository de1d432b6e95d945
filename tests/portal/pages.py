"""Pages as texts to compare, whatever the line breaks of their templates."""

import re


def compact(html: str) -> str:
    """Return the page with single spaces, and none beside tags."""
    return re.sub(r"\s*(<[^>]*>)\s*", r"\1", re.sub(r"\s+", " ", html))
