"""Files as jobs write them, for tests of what pages show of them."""

import io
import re
from html import unescape
from typing import Any

from PIL import Image


def picture(kind: str, width: int = 2, height: int = 2, **options: Any) -> bytes:
    """Return an image in this format."""
    out = io.BytesIO()
    Image.new("RGB", (width, height), "teal").save(out, kind, **options)
    return out.getvalue()


def tiny_png() -> bytes:
    return picture("PNG")


def plain_lines(response: Any) -> list[str]:
    """Return the lines of the file on a page, without their colours."""
    return [without_colours(line) for line in response.context["preview"]["lines"]]


def without_colours(html: str) -> str:
    """Return the text of highlighted code."""
    return unescape(re.sub(r"</?span[^>]*>", "", html))
