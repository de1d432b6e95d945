"""Where tests run: in network and mount namespaces of their own, with an environment of their own.

A PostgreSQL, Redis, Docker Engine, Podman or web server of this machine, its firewall and its configuration files are
not there for them, and none of the tests' ports and rules is visible outside. Nothing outside this machine can be
reached from there; what tests need from package indexes is fetched before. Only root can make namespaces; other users
run what they can without them.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.space import Space

HIDDEN = (
    "/etc/chromium",
    "/etc/docker",
    "/etc/containers",
    "/etc/postgresql",
    "/etc/redis",
    "/run/containerd",
    "/run/docker",
    "/run/podman",
    "/run/postgresql",
    "/run/redis",
    "/run/docker.sock",
)
"""Configuration, sockets and state of this machine's own services."""
FOREIGN = re.compile(
    r"(.*_proxy|pg.*|lc_.*|language|docker_.*|container_.*|podman_.*|redis.*|database_url.*|secret_key.*|email_.*|"
    r"schedulearn_.*|time_zone|tz|port|host|lab|debug|demo|runtime|agent_.*|node_name|site_url|allowed_hosts|log_level|"
    r"slurm.*|cuda_visible_devices|xdg_(config|runtime|data)_.*|python(path|home|startup|optimize|warnings|dontwritebytecode))",
    re.IGNORECASE,
)
"""Variables that configure the product, its servers or their clients. Each would change what a test sees."""
KEPT = frozenset({"SCHEDULEARN_CACHE", "SCHEDULEARN_BASE_IMAGE", "SCHEDULEARN_BUILD_IMAGE", "SCHEDULEARN_TORCH_INDEX"})


OWN_ADDRESS = "198.18.0.1"
"""Of the isolated machine, beside its loopback addresses, as each real machine has one (RFC 2544: for tests)."""


def plain_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``environ`` that tests may see, with a fixed language and an empty Docker configuration."""
    plain = {name: value for name, value in environ.items() if name in KEPT or not FOREIGN.fullmatch(name)}
    return {**plain, "LANG": "C.UTF-8", "DOCKER_CONFIG": "/nonexistent"}


def hiding(paths: tuple[str, ...] = HIDDEN) -> str:
    """Shell commands that cover each of these that exists: a folder by an empty one, a socket by /dev/null."""
    steps = [f"ip link set lo up && ip address add {OWN_ADDRESS}/32 dev lo &&"]
    for path in map(Path, paths):
        if path.is_dir():
            steps.append(f"mount -t tmpfs none {path} &&")
        elif path.exists():
            steps.append(f"mount --bind /dev/null {path} &&")
    return " ".join(steps)


@contextmanager
def isolated() -> Iterator[list[str]]:
    """The words to put before a command to run it isolated; none where this user cannot make namespaces."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "ip", "mount"))):
        yield []
        return
    space = Space("--net", "--mount", setup=hiding())
    try:
        yield [*space.enter("--net", "--mount"), "env", f"--chdir={Path.cwd()}"]
    finally:
        space.end()
