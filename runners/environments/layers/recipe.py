"""What a layer is made of: the base that it is put over, and the list of packages. The list was typed by people.

Only package names with versions, extras and markers come through, and addresses of archives on hosts that an admin allowed.
uv obeys options inside a requirements file (other indexes, ``--no-binary NAME``, which runs code in spite of
``--only-binary``), so it never gets a file that people wrote: it gets one made from what was parsed here.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from runners.host.egress import INTERNAL_MARK, HostRule

MAX_LINES = 1000
MAX_LINE_CHARACTERS = 1000
MAX_NAME_CHARACTERS = 100
PYTHON = re.compile(r"3\.[0-9]{1,2}")
BASE = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
HOST = re.compile(r"(\*\.)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?", re.IGNORECASE)
HASH_FRAGMENT = re.compile(r"(sha256=[0-9a-f]{64})?")
ARCHIVES = (".tar.gz", ".zip", ".tar.bz2", ".tar.xz", ".tgz")


@dataclass(frozen=True)
class Recipe:
    """What to build. Raises ValueError, with a sentence, for what may not be built."""

    base: str
    """The key of a curated environment; empty for a full environment, which has only the interpreter below it."""
    lines: tuple[str, ...]
    """Requirements as in a requirements.txt, without options."""
    constraints: tuple[str, ...] = ()
    """Requirements that apply to packages that others need."""
    indexes: tuple[str, ...] = ()
    """Addresses of package indexes in addition to those of the node's pip. One inside the lab is also named in ``hosts``."""
    python: str = ""
    """``3.12``, for a full environment; empty for the node's own."""
    source_builds: bool = False
    """Whether packages may be built from source, which runs their code in the sandbox."""
    horovod: bool = False
    """Whether a full environment has Horovod, compiled against its torch."""
    hosts: tuple[str, ...] = ()
    """Hosts that an admin allowed in addition: ``host``, ``host:port`` or ``*.suffix``."""

    def __post_init__(self) -> None:
        if self.base and not BASE.fullmatch(self.base):
            raise ValueError(f"{self.base[:80]!r} is not the key of an environment.")
        if len(self.lines) + len(self.constraints) > MAX_LINES:
            raise ValueError(f"The list has more than {MAX_LINES} lines.")
        for host in self.hosts:
            if not HOST.fullmatch(host):
                raise ValueError(f"{host[:80]!r} is not a host: write NAME, NAME:PORT or *.DOMAIN.")
            host_rule(host)
        for index in self.indexes:
            check_index(index)
        for line in self.lines:
            check_line(line, self)
        for line in self.constraints:
            if parse_line(line).url or parse_line(line).extras:
                raise ValueError(f"{line!r} cannot be a constraint: it has an address or extras.")
        if self.python and (self.base or not PYTHON.fullmatch(self.python)):
            raise ValueError("Only a full environment names a Python version, such as 3.12.")
        if self.horovod and self.base:
            raise ValueError("Only a full environment has a Horovod of its own; else take a base with Horovod.")
        if self.horovod and "torch" not in self.names:
            raise ValueError("Horovod is compiled against torch: add torch to the list.")
        if not self.lines:
            raise ValueError("The list has no packages.")

    @property
    def names(self) -> frozenset[str]:
        """The normalised names of the packages in the list."""
        return frozenset(canonicalize_name(Requirement(line).name) for line in self.lines)

    @property
    def key(self) -> str:
        """A hash of the recipe."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Return the recipe that ``to_json`` returned. Raises ValueError for anything else."""
        if not isinstance(data, Mapping):
            raise ValueError("A recipe is an object.")
        kinds = {field.name: field.type for field in fields(cls)}
        if unknown := sorted(str(name) for name in data if name not in kinds):
            raise ValueError(f"A recipe has no {unknown[0][:80]!r}.")
        if missing := {"base", "lines"} - set(data):
            raise ValueError(f"A recipe needs {min(missing)!r}.")
        return cls(**{name: read_value(name, value, kinds[name]) for name, value in data.items()})


def read_value(name: str, value: Any, kind: Any) -> Any:
    """Return a value of JSON as a field of this type. Raises ValueError."""
    if kind is str or kind is bool:
        if type(value) is kind:
            return value
    elif isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise ValueError(f"{name!r} has a wrong type in this recipe.")


def parse_line(line: str) -> Requirement:
    """Parse one requirement. Raises ValueError, with a sentence that names the line, for options and everything else."""
    shown = repr(line[:120])
    if len(line) > MAX_LINE_CHARACTERS or not line.isprintable() or line != line.strip():
        raise ValueError(f"The line {shown} is too long, or has unprintable characters or spaces around it.")
    if line.startswith("-"):
        raise ValueError(f"The line {shown} is an option. Only packages can be listed.")
    try:
        found = Requirement(line)
    except InvalidRequirement as error:
        raise ValueError(f"The line {shown} is not a package with a version: {str(error).splitlines()[0]}") from None
    if len(found.name) > MAX_NAME_CHARACTERS:
        raise ValueError(f"The name of the package in {shown} is too long.")
    if found.name.lower().endswith((".whl", *ARCHIVES)):  # uv would look for such a file
        raise ValueError(f"The line {shown} is the name of a file. Write the name of the package.")
    return found


def check_line(line: str, recipe: Recipe) -> None:
    """Raise ValueError for a line that is not allowed."""
    found = parse_line(line)
    if found.url is None:
        return
    shown = repr(line[:120])
    try:
        parts = urlsplit(found.url)
        host, port = (parts.hostname or "").lower(), parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        raise ValueError(f"The address in {shown} is malformed.") from None
    if parts.scheme not in ("http", "https") or not host or port is None:
        raise ValueError(
            f"The address in {shown} is not one of a file on a web server: paths and repositories are not read."
        )
    if parts.username is not None or parts.query or not HASH_FRAGMENT.fullmatch(parts.fragment):
        raise ValueError(f"The address in {shown} has a password, a query or a fragment.")
    name = unquote(parts.path).lower()
    if not name.endswith(".whl") and not (recipe.source_builds and name.endswith(ARCHIVES)):
        raise ValueError(f"The address in {shown} is not one of a wheel, and an admin has not allowed source builds.")
    if not any(rule.allows(host, port) for rule in map(host_rule, recipe.hosts)):
        raise ValueError(f"The line {shown} names the host {host}, which an admin has not allowed.")


def check_index(address: str) -> None:
    """Raise ValueError for an address that is not one of a package index."""
    try:
        parts = urlsplit(address)
        port_is_right = parts.port is None or parts.port > 0
    except ValueError:
        port_is_right = False
    if not port_is_right or parts.scheme not in ("http", "https") or not parts.hostname or not is_plain(address):
        raise ValueError(f"{address[:120]!r} is not the address of a package index.")
    if parts.username is not None:
        raise ValueError("The address of an index has a password here; add the index to the node's pip configuration.")


def is_plain(address: str) -> bool:
    """Whether an address has no character that ends it in a list of addresses."""
    return address.isascii() and address.isprintable() and " " not in address and "," not in address


def host_rule(host: str) -> HostRule:
    """Return the rule for ``host``, ``host:port`` or ``*.suffix``, which an admin named. Raises ValueError."""
    return HostRule.parse(f"{host.lower()} {INTERNAL_MARK}")
