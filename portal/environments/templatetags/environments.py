"""Template filters for environments."""

import re
from typing import Any

from django import template

from portal.environments import builds
from portal.environments.models import Build, Environment

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


@register.filter
def message_in(build: Build, environment: Environment) -> Any:
    """Return the message of a build for the page of an environment: ``build|message_in:environment``."""
    return builds.message_in(build, environment)
