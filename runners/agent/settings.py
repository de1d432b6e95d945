"""The settings of the agent, from flags or the environment, and the identity that it got when it joined."""

import argparse
import fcntl
import logging
import os
import platform
import re
import shutil
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from runners import __version__
from runners.agent.dataset_cache import DEFAULT_LIMIT_GIB
from runners.agent.environment_keeper import FakeEnvironments
from runners.agent.portal_address import checked_url
from runners.agent.portal_client import Backoff, PortalClient, PortalRefusedError, PortalUnavailableError
from runners.agent.signals import StopSignal
from runners.environments.builds import DockerEnvironments, Environments, ProcessEnvironments
from runners.environments.layer_images import LayerImages
from runners.environments.layers.store import path_of
from runners.environments.own_images import OwnImageStore
from runners.host.gpus import cuda_devices
from runners.host.node_files import NodeFiles, read_own_json, write_json
from runners.host.overlay import node_address
from runners.messages.problems import Problem
from runners.runtime import ContainerRuntime, RunError, SetupError
from runners.runtimes import confinement_check, control_groups
from runners.runtimes.fake import FakeRuntime
from runners.runtimes.process import ProcessRuntime

logger = logging.getLogger(__name__)

RUNTIMES = ("auto", "docker", "process", "fake")
DEFAULT_CACHE_GIB = 50
MAX_CACHE_GIB = 1_000_000
DISK_STEP_MIB = 256
"""Smaller changes would only make each report differ."""


@dataclass(frozen=True, slots=True)
class Settings:
    url: str
    home: Path
    join_token: str = ""
    runtime: str = "auto"
    name: str = ""
    ca_file: Path | None = None
    pin: str = ""
    """The SHA-256 of the certificate in ``ca_file``: only this one is trusted, whatever its name."""
    allow_http: bool = False
    use_proxy: bool = False
    datasets: Path | None = None
    shared: Path | None = None
    """Where checkpoints are kept instead of beneath ``home``: a folder that other nodes share."""
    stop_jobs_on_exit: bool = False
    cache_gib: int = DEFAULT_CACHE_GIB
    """The limit of each project's cache; 0: none is kept."""
    dataset_cache_gib: int = DEFAULT_LIMIT_GIB
    """The limit of all datasets that are kept on this node."""
    overlay_address: str = ""
    """The address under which other nodes reach this one; empty for that of the interface to the portal."""
    layer_images: bool = False
    """Whether packages of environments become images of the engine, and are not mounted."""

    @classmethod
    def read(cls, argv: Sequence[str], env: Mapping[str, str]) -> "Settings":
        """Read the settings; flags override the environment. Raises SetupError."""
        given = argument_parser().parse_args(argv)

        def choose(flag: str | None, variable: str, default: str = "") -> str:
            return flag if flag is not None else env.get(variable) or default

        home = choose(given.home, "AGENT_HOME") or str(Path(env.get("SCHEDULEARN_HOME") or "var") / "agent")
        ca_file, datasets = choose(given.ca_file, "SCHEDULEARN_CA"), choose(None, "SCHEDULEARN_DATASETS")
        shared = choose(None, "SCHEDULEARN_SHARED")
        runtime, overlay_address = choose(given.runtime, "RUNTIME", "auto"), choose(None, "AGENT_RING_ADDRESS")
        project_cache = choose(None, "SCHEDULEARN_PROJECT_CACHE_GIB", str(DEFAULT_CACHE_GIB))
        dataset_cache = choose(given.dataset_cache_gib, "SCHEDULEARN_DATASET_CACHE_GIB", str(DEFAULT_LIMIT_GIB))
        if runtime not in RUNTIMES:
            raise SetupError(f"RUNTIME must be one of {', '.join(RUNTIMES)}, not {runtime!r}.")
        if ca_file and not Path(ca_file).is_file():
            raise SetupError(f"SCHEDULEARN_CA names {ca_file}, which is not a file.")
        if datasets and not Path(datasets).is_dir():
            raise SetupError(f"SCHEDULEARN_DATASETS names {datasets}, which is not a folder.")
        if shared and not Path(shared).is_dir():
            raise SetupError(f"SCHEDULEARN_SHARED names {shared}, which is not a folder. Is it mounted?")
        pin = env.get("SCHEDULEARN_PIN", "")
        if pin and not re.fullmatch("[0-9a-fA-F]{64}", pin):
            raise SetupError("SCHEDULEARN_PIN must be the 64 hexadecimal digits of a certificate's SHA-256.")
        try:
            node_address("", overlay_address)
        except ValueError as error:
            raise SetupError(f"AGENT_RING_ADDRESS must be an IPv4 address, not {overlay_address!r}.") from error
        return cls(
            url=choose(given.url, "SCHEDULEARN_URL"),
            home=Path(home).expanduser().resolve(),
            join_token=choose(given.join_token, "SCHEDULEARN_JOIN_TOKEN"),
            runtime=runtime,
            name=choose(given.name, "NODE_NAME") or socket.gethostname(),
            ca_file=Path(ca_file) if ca_file else None,
            pin=pin,
            allow_http=read_bool(env, "SCHEDULEARN_ALLOW_HTTP"),
            use_proxy=read_bool(env, "SCHEDULEARN_USE_PROXY"),
            datasets=Path(datasets).resolve() if datasets else None,
            shared=Path(shared).resolve() if shared else None,
            stop_jobs_on_exit=given.stop_jobs_on_exit,
            cache_gib=checked_gib("SCHEDULEARN_PROJECT_CACHE_GIB", project_cache),
            dataset_cache_gib=checked_gib("SCHEDULEARN_DATASET_CACHE_GIB", dataset_cache, minimum=1),
            overlay_address=overlay_address,
            layer_images=read_bool(env, "SCHEDULEARN_LAYER_IMAGES"),
        )

    def client(self, url: str, token: str = "") -> PortalClient:
        try:
            return PortalClient(
                url,
                token,
                ca_file=self.ca_file,
                pin=self.pin,
                allow_http=self.allow_http,
                use_proxy=self.use_proxy,
            )
        except (ValueError, OSError) as error:
            raise SetupError(str(error)) from error


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runners.agent",
        description="Joins this machine to a Schedulearn portal and runs jobs on it (docs/admin/nodes.md).",
    )
    parser.add_argument("--url", help="the portal's address, e.g. https://schedulearn.example.org [SCHEDULEARN_URL]")
    parser.add_argument(
        "--join-token",
        help="from the page of nodes; needed once; all users of a machine can see flags, so prefer [SCHEDULEARN_JOIN_TOKEN]",
    )
    parser.add_argument("--home", help="where the agent keeps its files [AGENT_HOME, else SCHEDULEARN_HOME/agent]")
    parser.add_argument("--runtime", choices=RUNTIMES, help="what runs the containers [RUNTIME]")
    parser.add_argument("--name", help="this node's name, else the machine's [NODE_NAME]")
    parser.add_argument("--ca-file", help="the only certificate authority to trust [SCHEDULEARN_CA]")
    parser.add_argument(
        "--dataset-cache-gib",
        help=f"how many GiB of datasets are kept here, {DEFAULT_LIMIT_GIB} by default [SCHEDULEARN_DATASET_CACHE_GIB]",
    )
    parser.add_argument("--version", action="version", version=f"Schedulearn agent {__version__}")
    parser.add_argument("--stop-jobs-on-exit", action="store_true", help="end the containers when the agent stops")
    return parser


def checked_gib(name: str, value: str, minimum: int = 0) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) < 8 and minimum <= int(value) <= MAX_CACHE_GIB):
        raise SetupError(f"{name} must be a whole number of GiB from {minimum} to {MAX_CACHE_GIB:,}, not {value!r}.")
    return int(value)


def read_bool(env: Mapping[str, str], name: str) -> bool:
    value = env.get(name, "").lower()
    if value not in ("", "0", "1", "true", "false", "yes", "no"):
        raise SetupError(f"{name} must be true or false, not {value!r}.")
    return value in ("1", "true", "yes")


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The identity of this node at its portal. ``installation`` marks the containers that belong to this agent."""

    node: int
    token: str
    url: str
    name: str
    runtime: str
    installation: str

    @classmethod
    def read(cls, path: Path) -> "NodeIdentity | None":
        try:
            return cls(**read_own_json(path))
        except TypeError:
            return None

    def write(self, path: Path) -> None:
        write_json(path, asdict(self), 0o600)


@dataclass(frozen=True, slots=True)
class MachineFindings:
    """The facts and problems that were found on this machine."""

    facts: dict[str, Any]
    problems: tuple[Problem, ...] = ()


def lock_home(files: NodeFiles) -> IO[str]:
    """Lock the home for this agent. The lock lasts as long as the returned file is open. Raises SetupError."""
    try:
        files.make()
        file = (files.home / "agent.lock").open("w")
    except OSError as error:
        raise SetupError(f"{files.home} cannot be used ({error.strerror}). Choose another AGENT_HOME.") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise SetupError(
            f"Another agent already works with {files.home}. Stop it, or choose another AGENT_HOME."
        ) from error
    return file


def load_or_join(
    settings: Settings, files: NodeFiles, stop: StopSignal, found: MachineFindings | None = None
) -> NodeIdentity:
    """Return the stored identity, else join and return the new one. Waits for a portal that is away. Raises SetupError.

    ``found``: the findings on the machine, which the portal's page shows at once.
    """
    stored = NodeIdentity.read(files.identity)
    if stored is not None and not (settings.join_token and _is_token_revoked(settings, stored)):
        if settings.runtime not in ("auto", stored.runtime):
            raise SetupError(
                f"This node joined with the runtime {stored.runtime}; {settings.runtime} would not see its containers. "
                "Remove the node and join again, or leave RUNTIME as it was."
            )
        return stored
    if not settings.url or not settings.join_token:
        raise SetupError(
            "This machine is not a node yet. Copy the join command from the portal's page of nodes: "
            "SCHEDULEARN_JOIN_TOKEN=... python -m runners.agent --url https://..."
        )
    _check_url(settings)
    runtime = settings.runtime if settings.runtime != "auto" else choose_runtime()
    client = settings.client(settings.url)
    backoff = Backoff()
    try:
        while not stop.is_set():
            try:
                facts = {**machine_facts(files.home), **(found.facts if found else {})}
                problems = [problem.to_json() for problem in found.problems] if found else []
                node, token = client.join(settings.join_token, settings.name, runtime, facts, problems)
            except PortalUnavailableError as error:
                if backoff.failures in (0, 8):
                    logger.info("Waiting for the portal at %s: %s", settings.url, error)
                stop.wait(min(backoff.next_pause(), 5.0))
            except PortalRefusedError as error:
                raise SetupError(f"The portal refused this node: {error}") from error
            else:
                # A node that joins again with a new token is the same node, and its containers are still its own.
                same = stored is not None and (stored.node, stored.runtime) == (node, runtime)
                installation = stored.installation if stored is not None and same else uuid.uuid4().hex
                identity = NodeIdentity(node, token, settings.url, settings.name, runtime, installation)
                identity.write(files.identity)
                logger.info("Joined %s as node %s (%s).", settings.url, node, settings.name)
                return identity
    finally:
        client.close()
    raise SetupError("Stopped before the portal answered.")


def _check_url(settings: Settings) -> None:
    try:
        checked_url(settings.url, settings.allow_http)
    except ValueError as error:
        raise SetupError(str(error)) from error


TOKEN_TEST_SECONDS = 5.0
"""An agent that is updated is away during the test, and its jobs end 34 s after it went."""


def _is_token_revoked(settings: Settings, stored: NodeIdentity) -> bool:
    """Whether the stored token is no longer valid; one that cannot be tested counts as valid."""
    client = settings.client(settings.url or stored.url, stored.token)
    try:
        client.wait_for_change("", TOKEN_TEST_SECONDS)
    except PortalRefusedError as error:
        return error.status == 401
    except PortalUnavailableError:
        return False
    finally:
        client.close()
    return False


def choose_runtime() -> str:
    """Return the runtime for this machine: Docker when an engine answers, else processes."""
    from runners.runtimes.docker import connect

    try:
        engine = connect(timeout_seconds=5)
        try:
            engine.ping()
        finally:
            engine.close()
    except Exception as error:  # docker raises more kinds than it documents
        logger.info("No Docker Engine answers on this machine (%s): jobs will run as processes.", error)
        return "process"
    return "docker"


def make_runtime(
    identity: NodeIdentity, files: NodeFiles, settings: Settings
) -> tuple[ContainerRuntime, Environments, OwnImageStore | None]:
    """Return the runtime, its environments, and images of projects where it can have them. Raises SetupError."""
    cuda = bool(cuda_devices())
    node = str(identity.node)
    try:
        if identity.runtime == "docker":
            from runners.runtimes.docker import DockerRuntime

            images, own_images = DockerEnvironments(cuda=cuda), OwnImageStore()
            docker = DockerRuntime(
                identity.installation,
                node,
                images.reference_of,
                overlay_address=node_address(identity.url, settings.overlay_address),
                layer_of=path_of,
                own_image_of=own_images.reference_of,
                layer_images=LayerImages() if settings.layer_images else None,
            )
            return docker, images, own_images
        if identity.runtime == "process":
            venvs = ProcessEnvironments(cuda=cuda)
            processes = ProcessRuntime(
                identity.installation,
                node,
                files.processes,
                venvs.reference_of,
                confinement_check.find_confinement,
                control_groups.find_control_groups,
                layer_of=path_of,
            )
            return processes, venvs, None
    except RunError as error:
        raise SetupError(str(error)) from error
    return FakeRuntime(), FakeEnvironments(), None


def machine_facts(home: Path) -> dict[str, Any]:
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "hostname": socket.gethostname(),
        "system": system_name(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "agent": __version__,
        "cpus": os.cpu_count() or 1,
        "memory_mib": pages * page >> 20,
        "disk_free_mib": (shutil.disk_usage(home).free >> 20) // DISK_STEP_MIB * DISK_STEP_MIB,
    }


def system_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()
