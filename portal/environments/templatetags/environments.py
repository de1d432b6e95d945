"""Template filters for environments."""

import re

from django import template

register = template.Library()
KIND = re.compile(
    r"cp(?P<major>\d)(?P<minor>\d+)-[a-z]+_(?P<machine>\w+?)-(?:glibc|musl)[\d.]+-(?P<device>cpu|cuda?[\d.]+)\b.*"
)


@register.filter
def kind_words(kind: str) -> str:
    """Describe a kind of node: ``Python 3.11, x86_64, CUDA 12.4``. One that is not understood is shown as it is."""
    if kind.startswith("image-"):
        return kind.removeprefix("image-").replace("-", "/")
    found = KIND.fullmatch(kind)
    if found is None:
        return kind
    device = "CPU" if found["device"] == "cpu" else f"CUDA {found['device'].lstrip('cuda')}"
    return f"Python {found['major']}.{found['minor']}, {found['machine']}, {device}"
