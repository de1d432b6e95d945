"""Containers on a Docker Engine. The only module that imports docker.

Only the engine's lists are trusted: every call is bounded, no stream is followed, and the environment's proxies and
certificate bundles are ignored (REQUESTS_CA_BUNDLE would replace a pinned authority).
"""

import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

import docker
import requests
from docker.constants import MINIMUM_DOCKER_API_VERSION
from docker.errors import APIError, ContainerError, DockerException, ImageNotFound, NotFound

from runners.host import facts as host_facts
from runners.host import firewall, gpus, overlay, processes
from runners.host.exclusive import ExclusiveSection
from runners.messages import Message
from runners.messages.containers import EnvironmentMissing, FoldersNotGiven, GoneFromEngine, ImageGone, NotOurs
from runners.messages.engine import (
    AddressesTaken,
    ContainerNotStarted,
    ContainerRefused,
    EngineBroken,
    EngineSilent,
    NetworkHides,
    NetworkInCreation,
    NetworkRefused,
    NetworksUnreadable,
    NoAddressesLeft,
    NoOverlay,
)
from runners.messages.problems import NoEngine, Problem
from runners.runtime import (
    LAB_DATA,
    AttemptNetwork,
    CreateError,
    EngineError,
    EnvironmentLookup,
    Folders,
    LayerLookup,
    ObservedContainer,
    TransientCreateError,
    no_images,
    no_layers,
)
from runners.runtimes import dataset_places, docker_checks
from runners.runtimes.host_config import (
    AgentIdentity,
    Host,
    container_config,
    groups_for,
    network_config,
    owner_for,
)
from runners.runtimes.owners import chown_folders
from runners.spec import CollectiveGroup, JobIdentity, RunSpec, group_name

CALL_SECONDS = 20
"""An engine that takes longer to answer one request is treated as unreachable; the agent tries again."""

LOG_LINES = 200

NETWORK_SECONDS = 20.0
"""The maximum time that one job's network waits for another's."""

UNUSED_NETWORK_SECONDS = 30.0
"""How long a network may be without containers: it is created before them, and an engine may be slow."""

logger = logging.getLogger(__name__)

__all__ = ["APIError", "ContainerError", "DockerRuntime", "ImageNotFound", "connect", "engine_calls"]


def connect(base_url: str | None = None, timeout_seconds: int = CALL_SECONDS) -> docker.DockerClient:
    """Return a client of the engine at ``base_url`` (default: DOCKER_HOST, or the local socket), with its API version.

    Raises EngineError when it does not answer. Even the first request ignores the environment's proxies and certificates;
    the SDK's own constructor would use them.
    """
    url = base_url or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"

    def client(version: str) -> docker.DockerClient:
        made = docker.DockerClient(base_url=url, timeout=timeout_seconds, version=version)
        made.api.trust_env = False
        return made

    with engine_calls():
        asking = client(MINIMUM_DOCKER_API_VERSION)
        try:
            return client(str(asking.api.version(api_version=False)["ApiVersion"]))
        finally:
            asking.close()


@contextmanager
def engine_calls() -> Iterator[None]:
    """Turn every failure to answer into EngineError, and unexpected errors of the engine too."""
    try:
        yield
    except APIError as error:
        raise EngineError(EngineBroken(str(error.explanation or error))) from error
    except (requests.exceptions.RequestException, DockerException, OSError, KeyError) as error:
        raise EngineError(EngineSilent(str(error))) from error


def _create_error(message: Callable[[str], Message], error: APIError) -> CreateError:
    kind = TransientCreateError if error.is_server_error() else CreateError
    return kind(message(str(error.explanation)))


class LayerImages(Protocol):
    """Makes images of layers (``runners.environments.layer_images``)."""

    def image_of(self, base: str, digest: str, layer: Path) -> str: ...

    def remove_unused(self) -> None: ...


class DockerRuntime:
    """See ContainerRuntime. ``image_of`` gives the prepared image of an environment, None while there is none."""

    kind: Literal["docker"] = "docker"

    def __init__(
        self,
        installation: str,
        node: str,
        image_of: EnvironmentLookup,
        base_url: str | None = None,
        close_firewall: bool = True,
        overlay_address: str = "",
        layer_of: LayerLookup = no_layers,
        own_image_of: EnvironmentLookup = no_images,
        layer_images: LayerImages | None = None,
    ) -> None:
        self.identity = AgentIdentity(installation, node)
        self.image_of = image_of
        self.layer_of = layer_of
        self.own_image_of = own_image_of
        """Gives the prepared image of a project by its digest."""
        self.layer_images = layer_images
        """Set where layers are images; else they are mounted."""
        self.base_url = base_url
        self._client: docker.DockerClient | None = None
        self.close_firewall = close_firewall
        self._host: Host | None = None
        self.overlay_address = overlay_address
        """The address at which other nodes reach this one; empty: jobs stay on one node."""
        self._container_ids: frozenset[str] = frozenset()
        """The engine's ids of our containers, as last listed."""
        self._overlay: overlay.Overlay | None = None
        self._unused_since: dict[str, float] = {}
        self._network_section = ExclusiveSection("making or joining networks of jobs")

    @property
    def client(self) -> docker.DockerClient:
        """The client, connected when first needed: an agent may start before its engine."""
        if self._client is None:
            self._client = connect(self.base_url)
        return self._client

    # About the machine

    def check(self) -> list[Problem]:
        try:
            with engine_calls():
                info, version = self.client.info(), self.client.version()
        except EngineError as error:
            return [NoEngine(error.message)]
        packages: dict[str, str] = host_facts.package_facts()["packages"]
        found = docker_checks.problems(info, version, packages)
        found += docker_checks.gpu_problems(info, len(gpus.cuda_devices()), packages, host_facts.nvidia_config())
        if self.close_firewall and (problem := firewall.close_host_to_jobs()):
            found.append(problem)
        if self.overlay_address and (problem := self._acquire_overlay()):
            found.append(problem)
        try:
            with engine_calls():
                self._drop_unused_networks()
                if self.layer_images is not None:
                    self.layer_images.remove_unused()
        except EngineError as error:
            logger.warning("Unused networks and images could not be removed: %s", error)  # tried again later
        return found

    def _acquire_overlay(self) -> Problem | None:
        if self._overlay is None:
            begun = overlay.Overlay.acquire(self.overlay_address)
            if isinstance(begun, Problem):
                return begun
            self._overlay = begun
        return None

    def facts(self) -> dict[str, Any]:
        with engine_calls():
            facts = docker_checks.facts(self.client.info(), self.client.version())
        return {**facts, "ring_address": self.overlay_address} if self._overlay else facts

    def host(self) -> Host:
        if self._host is None:
            info = self.client.info()
            self._host = Host(cpus=float(info.get("NCPU") or 1), memory_mib=int(info.get("MemTotal") or 0) // 2**20)
        return self._host

    # Operations

    def create(self, spec: RunSpec, folders: Folders) -> None:
        has_layer = bool(spec.layer) and not spec.has_own_image
        image = self.own_image_of(spec.layer) if spec.has_own_image else self.image_of(spec.environment)
        layer = self.layer_of(spec.layer) if has_layer else None
        if image is None or (has_layer and layer is None):
            raise CreateError(EnvironmentMissing(spec.environment))
        owner = owner_for(spec.job, os.geteuid(), os.getegid())
        try:
            dataset_places.prepare(folders, LAB_DATA)
            chown_folders(folders, owner)
        except OSError as error:
            raise CreateError(FoldersNotGiven(str(error))) from error
        with engine_calls():
            if self._find(spec.name) is not None:
                return
            if spec.network:
                # While one thread creates it, another would find its addresses taken.
                with self._network_section.enter(NETWORK_SECONDS):
                    self._ensure_network(spec.network, spec.collective, spec.identity)
            host = self.host()
            try:
                if self.layer_images is not None and layer is not None:
                    image, layer = self.layer_images.image_of(image, spec.layer, layer), None
                variables = self._variables_of(image)
            except ImageNotFound as error:
                raise CreateError(ImageGone(spec.environment, image)) from error
            groups = groups_for(spec, os.geteuid())
            try:
                config = container_config(spec, folders, image, owner, self.identity, host, layer, groups, variables)
            except ValueError as error:  # only here: an answer of the engine that was cut off raises it as well
                raise CreateError(str(error)) from error
            try:
                self.client.api.create_container_from_config(config, self.identity.engine_name(spec.name))
            except ImageNotFound as error:
                raise CreateError(ImageGone(spec.environment, image)) from error
            except APIError as error:
                if error.status_code == 409 and self._find(spec.name) is not None:
                    return
                raise _create_error(ContainerRefused, error) from error

    def start(self, name: str) -> None:
        """Start a container unless it runs, or has ended: it must not run again."""
        with engine_calls():
            found = self._find(name)
            if found is None:
                raise CreateError(GoneFromEngine())
            if found["State"]["Status"] != "created":
                return
            try:
                self.client.api.start(found["Id"])
            except APIError as error:
                raise _create_error(ContainerNotStarted, error) from error

    def signal(self, name: str, signum: int) -> None:
        with engine_calls():
            if found := self._find(name):
                self._ignore_if_gone(self.client.api.kill, found["Id"], signum)

    def stop(self, name: str, grace_seconds: int) -> None:
        with engine_calls():
            if found := self._find(name):
                self._ignore_if_gone(self.client.api.stop, found["Id"], timeout=grace_seconds)

    def remove(self, name: str) -> None:
        with engine_calls():
            # Also when the container is gone: the last removal may have been cut off between the two.
            network = self.identity.engine_name(group_name(name))
            if found := self._find(name):
                network = found["Config"]["Labels"].get("sl.network") or network
                self._ignore_if_gone(self.client.api.remove_container, found["Id"], force=True, v=True)
            self._drop_network(network)

    def list(self) -> list[ObservedContainer]:
        with engine_calls():
            rows = self.client.api.containers(all=True, filters=self._own_filter())
            self._container_ids = frozenset(row["Id"] for row in rows)
            seen = [self._observe(row) for row in rows]
        return sorted((one for one in seen if one is not None), key=lambda one: one.name)

    def logs(self, name: str, limit_bytes: int) -> bytes:
        with engine_calls():
            found = self._find(name)
            if found is None:
                return b""
            output = self.client.api.logs(found["Id"], stdout=True, stderr=True, tail=LOG_LINES, stream=False)
        return bytes(output)[-limit_bytes:]

    def is_ours(self, pid: int) -> bool:
        """Whether a process belongs to us, by its control group, which has the container's id. Unknown ids are looked up."""
        ids = processes.container_ids(pid)
        if ids & self._container_ids:
            return True
        try:
            with engine_calls():
                return any(self._is_own_container(each) for each in ids)
        except EngineError:
            return True  # unknown: no process is reported as foreign because the engine does not answer

    def _is_own_container(self, container_id: str) -> bool:
        try:
            labels = self.client.api.inspect_container(container_id)["Config"].get("Labels") or {}
        except NotFound:
            return False
        return all(labels.get(key) == value for key, value in self.identity.labels().items())

    # Helpers

    def _variables_of(self, image: str) -> Sequence[str]:
        """Return the names of the variables that an image sets."""
        config = self.client.api.inspect_image(image).get("Config") or {}
        return [str(each).partition("=")[0] for each in config.get("Env") or []]

    def _own_filter(self) -> dict[str, Any]:
        return {"label": [f"{key}={value}" for key, value in self.identity.labels().items()]}

    def _find(self, name: str) -> dict[str, Any] | None:
        """Return the container's inspection, if it exists and is ours."""
        try:
            found: dict[str, Any] = self.client.api.inspect_container(self.identity.engine_name(name))
        except NotFound:
            return None
        labels = found["Config"].get("Labels") or {}
        if any(labels.get(key) != value for key, value in self.identity.labels().items()):
            raise CreateError(NotOurs(self.identity.engine_name(name)))
        return found

    def _ignore_if_gone(self, call: Any, *args: Any, **kwargs: Any) -> None:
        """Make a call, and ignore 404 (gone), 409 (not running, or being removed) and 304 (already stopped)."""
        try:
            call(*args, **kwargs)
        except APIError as error:
            if error.status_code not in (304, 404, 409):
                raise

    def _observe(self, row: dict[str, Any]) -> ObservedContainer | None:
        labels = row.get("Labels") or {}
        status = row.get("State", "")
        if status == "removing":
            return None
        state: Literal["created", "running", "exited"]
        exit_code, oom, detail = None, False, ""
        if status == "created":
            state = "created"
        elif status in ("exited", "dead"):
            state = "exited"
            try:
                inspected = self.client.api.inspect_container(row["Id"])["State"]
            except NotFound:
                return None
            exit_code, oom, detail = inspected["ExitCode"], inspected["OOMKilled"], inspected.get("Error", "")
        else:
            state = "running"
        try:
            return ObservedContainer(
                name=labels["sl.name"],
                job=int(labels["sl.job"]),
                attempt=int(labels["sl.attempt"]),
                epoch=int(labels["sl.epoch"]),
                state=state,
                exit_code=exit_code,
                oom_killed=oom,
                detail=detail,
            )
        except (KeyError, ValueError):
            return None  # it has our labels but was not made by us

    def connect(self, attempts: Sequence[AttemptNetwork]) -> None:
        if self._overlay is None:
            return
        links = [overlay.Link(each.number, self.identity.bridge(each.network), each.peers) for each in attempts]
        with self._network_section.enter(NETWORK_SECONDS):
            try:
                self._overlay.apply(links)
            except (overlay.OverlayError, subprocess.SubprocessError, OSError) as error:
                raise EngineError(NoOverlay(firewall.error_line(error))) from error

    def _ensure_network(self, name: str, collective: CollectiveGroup | None, job: JobIdentity | None) -> None:
        config = network_config(name, self.identity, collective, job)
        if self._networks(config["name"]):
            return
        if self.close_firewall:
            firewall.close_host_to_jobs()  # problems are reported by check()
        if collective and collective.subnet:
            self._check_routes(collective.subnet)
        try:
            self.client.api.create_network(**config)
        except APIError as error:
            if error.status_code == 409 or self._networks(config["name"]):
                return
            if "same bridge name" in str(error.explanation):
                # A driver and a host are created at the same time: the other's network exists, but is not listed yet.
                raise EngineError(NetworkInCreation()) from error
            if collective and collective.subnet and "overlaps" in str(error.explanation):
                # Numbers are reused in turn, so the attempt with this one has ended and its network is being removed.
                raise EngineError(AddressesTaken(collective.subnet)) from error
            if "address pool" in str(error.explanation):
                raise CreateError(NoAddressesLeft()) from error
            raise CreateError(NetworkRefused(str(error.explanation))) from error

    def _check_routes(self, subnet: str) -> None:
        try:
            hidden = overlay.conflicting_network(subnet, overlay.routes())
        except overlay.OverlayError as error:
            raise EngineError(NetworksUnreadable(str(error))) from error
        if hidden:
            raise CreateError(NetworkHides(subnet, str(hidden)))

    def _networks(self, engine_name: str) -> tuple[dict[str, Any], ...]:
        found = self.client.api.networks(names=[engine_name], filters=self._own_filter())
        return tuple(network for network in found if network["Name"] == engine_name)  # the engine matches substrings

    def _drop_unused_networks(self) -> None:
        """Remove networks whose containers were never created, or that the engine refused to remove: other jobs need their
        addresses."""
        used = {
            row["Labels"].get("sl.network") for row in self.client.api.containers(all=True, filters=self._own_filter())
        }
        names = {network["Name"] for network in self.client.api.networks(filters=self._own_filter())}
        now = time.monotonic()
        self._unused_since = {name: self._unused_since.get(name, now) for name in names - used}
        for name, since in self._unused_since.items():
            if now - since >= UNUSED_NETWORK_SECONDS:
                self._drop_network(name)

    def _drop_network(self, engine_name: str) -> None:
        users = {"label": [*self._own_filter()["label"], f"sl.network={engine_name}"]}
        if self.client.api.containers(all=True, filters=users):
            return
        for network in self._networks(engine_name):
            try:
                self.client.api.remove_network(network["Id"])
            except APIError as error:
                if error.status_code not in (403, 404, 409):  # still in use: removed with its last container
                    raise
