"""The recipe of an environment: its hash, and how a node gets it."""

import hashlib
import json
from typing import Any
from urllib.parse import urlsplit

from portal.environments.models import Environment

BARE_KEY = "bare"
"""The key of what is below a full environment, an interpreter; with a dash and its version if the recipe names one."""
OWN_IMAGE = "image"
"""In the place of a base: the environment is an image of a registry."""
FORMAT = 1
"""Part of each hash: increased when nodes build something else from the same recipe."""


def recipe_hash(environment: Environment) -> str:
    """Return the hash of what is built for an environment. The base is part of it by its name; the packages that the base
    has on a node are part of the node's kind."""
    text = json.dumps([FORMAT, recipe_of(environment)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def recipe_of(environment: Environment) -> dict[str, Any]:
    """Return the recipe as nodes read it (``runners.environments.layers.recipe``), whatever the order of its lines; of an
    image, its name."""
    if environment.image:
        return {"image": environment.image}
    return {
        "base": environment.base.key if environment.base else "",
        "lines": sorted(environment.lines, key=str.lower),
        "constraints": sorted(environment.constraints, key=str.lower),
        "indexes": list(environment.indexes),
        "python": environment.python,
        "source_builds": environment.source_builds,
        "horovod": environment.horovod,
        "hosts": sorted(_hosts(environment)),
    }


def base_key(environment: Environment) -> str:
    """Return the key of what nodes prepare themselves for an environment: it, its base, or an interpreter; ``OWN_IMAGE`` for
    an image."""
    if not environment.recipe:
        return environment.key
    if environment.image:
        return OWN_IMAGE
    if environment.base is not None:
        return environment.base.key
    return f"{BARE_KEY}-{environment.python}" if environment.python else BARE_KEY


def _hosts(environment: Environment) -> set[str]:
    """Return the hosts of addresses in the list, which an admin allowed when the list was accepted: with their ports where an
    address names one, else for the ports of the web."""
    addresses = [line.partition(" @ ")[2] for line in environment.lines] + list(environment.indexes)
    found = (urlsplit(address) for address in addresses if address)
    return {f"{each.hostname}:{each.port}" if each.port else each.hostname for each in found if each.hostname}
