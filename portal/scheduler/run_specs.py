"""The ``RunSpec`` of each container of an attempt, made from its rows.

An attempt with a driver has it at index 0 and hosts from 1; any other has hosts from 0. The first host of an elastic
attempt is its *base*; each further host has a single GPU, so that any size is reached by adding and removing containers.
"""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC

from portal.cluster.installation import installation_id
from portal.cluster.models import Gpu, Node
from portal.cluster.shares import machine_of
from portal.environments.models import Environment, NodeEnvironment
from portal.environments.recipes import base_key
from portal.jobs import job_datasets, job_secrets
from portal.jobs.models import RESTART_LIMIT_VARIABLE, Attempt, Container, Job
from portal.projects.inspecting.entries import python_arguments
from portal.projects.models import Project
from portal.scheduler import overlay_networks
from portal.scheduler.availability import DATASETS, HOSTS, INPUTS, NEEDS, SECRETS
from runners.spec import SHELL, CollectiveGroup, DatasetMount, Launcher, Resources, RunSpec

FIRST_PORT, PORTS = 21_000, 8_000
"""Attempts that share a machine's network (the process runtime) get different ports."""

UID_DIGITS, RANDOM_DIGITS = 12, 6
"""Hexadecimal digits in a container's name: of its attempt's uid, and random ones."""

DRIVER_RESOURCES = Resources(cpus=1.0, memory_mib=1024, shm_mib=64, tmp_mib=256, pids=512, disk_mib=1024)
MIN_MEMORY_MIB = 512
TMP_PARTS = 10
"""One part in so many of a job's own space for files is for /tmp, at most half of the memory, which it is a part of."""


class NodeLacksError(Exception):
    """A node no longer has what it had when it was chosen for a container."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.node = node


class LayerGoneError(NodeLacksError):
    """The layer of the environment."""


class HostsUnknownError(NodeLacksError):
    """An agent that knows allowed hosts. One of an earlier release would refuse the specification."""


class InputsUnknownError(NodeLacksError):
    """An agent that knows the outputs of another job as input. One of an earlier release would refuse the specification."""


class SecretsUnknownError(NodeLacksError):
    """An agent that knows secrets. One of an earlier release would refuse the specification."""


class DatasetsUnknownError(NodeLacksError):
    """An agent that knows datasets. One of an earlier release would refuse the specification."""


@dataclass(frozen=True, slots=True)
class ContainerPlacement:
    """The node and the GPUs of a container that is to be created."""

    node: Node
    gpus: tuple[Gpu, ...]


def host_placements(job: Job, elastic: bool, chosen: Sequence[ContainerPlacement]) -> list[ContainerPlacement]:
    """Divide the GPUs chosen on each node among the hosts of a new attempt, the base first."""
    most_first = sorted(chosen, key=lambda part: (-len(part.gpus), part.node.pk))
    if not elastic:
        return most_first
    home, *others = most_first
    size = min(job.min_gpus, len(home.gpus))
    singles = [
        ContainerPlacement(part.node, (gpu,))
        for part in (ContainerPlacement(home.node, home.gpus[size:]), *others)
        for gpu in part.gpus
    ]
    return [ContainerPlacement(home.node, home.gpus[:size]), *singles]


def has_driver(job: Job) -> bool:
    """Return whether a driver leads the job's ranks. Hosts of a torchrun job of fixed size find each other without one."""
    return job.launcher == Job.Launcher.HOROVOD or job.elastic


def new_name(attempt: Attempt, index: int) -> str:
    """Return a name for a container that is never used twice, even after a backup was restored.

    An attempt that was in the backup may get another container with the same index, so the name has random digits too.
    """
    of_attempt = f"-{attempt.uid.hex[:UID_DIGITS]}" if attempt.uid else ""
    return f"sl-{attempt.job_id}-a{attempt.number}{of_attempt}-{secrets.token_hex(RANDOM_DIGITS // 2)}-{index}"


def driver_spec(attempt: Attempt, index: int, node: Node, ranks: int) -> RunSpec:
    """Return the spec of a driver on ``node`` that starts with so many ranks."""
    group = _collective_group(attempt, index, index, node, ranks)
    return _spec(attempt, Container.Role.DRIVER, index, group, ContainerPlacement(node, ()), DRIVER_RESOURCES)


def host_spec(
    attempt: Attempt, index: int, part: ContainerPlacement, ranks: int, node_gpus: int, hosts: int, driver: int = 0
) -> RunSpec:
    """Return the spec of a host.

    ``ranks`` is how many ranks start together, ``hosts`` in how many containers, ``driver`` the index of the driver or
    first host. ``node_gpus`` is how many GPUs share the node's processors and memory.
    """
    alone = hosts == 1 and not has_driver(attempt.job)
    group = None if alone else _collective_group(attempt, index, driver, part.node, ranks)
    return _spec(attempt, Container.Role.HOST, index, group, part, resources_of(attempt.job, part, node_gpus))


def resources_of(job: Job, part: ContainerPlacement, node_gpus: int) -> Resources:
    """Return what a container gets of its node: what its job asks for, or the same share as of the node's GPUs."""
    gpus = len(part.gpus)
    machine = machine_of(part.node.facts.get("cpus"), part.node.facts.get("memory_mib"), max(gpus, node_gpus, 1))
    share = gpus / max(gpus, node_gpus, 1)
    cpus = machine.cpus * share if job.cpus_per_gpu is None else job.cpus_per_gpu * gpus
    memory = int(machine.memory_mib * share) if job.memory_mib_per_gpu is None else job.memory_mib_per_gpu * gpus
    memory = max(MIN_MEMORY_MIB, memory)
    usual = Resources(
        cpus=round(max(0.1, cpus), 2),
        memory_mib=memory,
        shm_mib=max(64, memory // 4) if job.shm_mib is None else min(job.shm_mib, memory),
        pids=1024 + 256 * gpus,
    )
    if job.scratch_mib is None:
        return usual
    tmp = min(job.scratch_mib // TMP_PARTS, memory // 2)
    return replace(usual, tmp_mib=tmp, disk_mib=job.scratch_mib - tmp)


def command_of(job: Job) -> tuple[str, ...]:
    """Return the command that each rank runs."""
    if job.launcher == Job.Launcher.COMMAND:
        return (*SHELL, job.command_line)
    return ("python", *python_arguments(job.entry), *job.arguments)


def _collective_group(attempt: Attempt, index: int, driver: int, node: Node, ranks: int) -> CollectiveGroup:
    """Return how the container ``index`` on ``node`` finds its peers; ``driver`` is the index of the driver or first host."""
    job, number = attempt.job, attempt.overlay_network
    plain = CollectiveGroup(
        driver_host=_driver_host(job, node),
        port=FIRST_PORT + attempt.pk % PORTS,
        secret=attempt.secret,
        min_ranks=job.min_gpus if job.elastic else ranks,
        # The scheduler keeps to the job's maximum; while the ranks migrate (``drain_migration``), old and new ones count.
        max_ranks=job.max_gpus + job.min_gpus if job.elastic else ranks,
    )
    if number is None:
        return plain
    return replace(
        plain,
        driver_host=overlay_networks.address_of(number, driver),
        number=overlay_networks.vni_of(number),
        subnet=overlay_networks.subnet_of(number),
        address=overlay_networks.address_of(number, index),
    )


def _driver_host(job: Job, node: Node) -> str:
    """Return the name under which containers of one node find the driver, or torchrun's first host."""
    if node.runtime == Node.Runtime.PROCESS:
        return "127.0.0.1"
    return "driver" if has_driver(job) else "h0"


def _spec(
    attempt: Attempt,
    role: Container.Role,
    index: int,
    group: CollectiveGroup | None,
    part: ContainerPlacement,
    resources: Resources,
) -> RunSpec:
    job = attempt.job
    launcher: Launcher = job.launcher  # type: ignore[assignment]  # the same words, by the model's choices
    driver = role == Container.Role.DRIVER
    env = {**job.env_vars, **({"SCHEDULEARN_MODE": job.mode} if job.mode else {})}
    if driver:
        # A variable, because an agent of an earlier release rejects a spec with a field that it does not know.
        env[RESTART_LIMIT_VARIABLE] = str(job.restart_limit)
    ranks = len(part.gpus) if launcher != "command" else 1
    return RunSpec(
        name=new_name(attempt, index),
        job=job.pk,
        attempt=attempt.pk,
        number=attempt.number,
        role="driver" if driver else "host",
        hostname="driver" if driver else f"h{index}",
        environment=base_key(job.environment),
        code_sha256=job.code.sha256,
        launcher=launcher,
        command=command_of(job),
        slots=0 if driver else ranks,
        gpus=tuple(gpu.uuid for gpu in part.gpus),
        gpu_kind="cuda" if any(gpu.kind == Gpu.Kind.CUDA for gpu in part.gpus) else "cpu",
        elastic=job.elastic,
        env=tuple(sorted((str(key), str(value)) for key, value in env.items())),
        collective=group,
        resources=resources,
        layer=layer_on(part.node, job.environment),
        allowed_hosts=() if driver else hosts_on(part.node, attempt),
        cache="" if driver else cache_on(part.node, job.project),
        inputs=not driver and has_inputs_on(part.node, job),
        secrets=() if driver else secrets_on(part.node, job),
        datasets=() if driver else datasets_on(part.node, job),
    )


def cache_on(node: Node, project: Project) -> str:
    """Return the name of a project's cache, the same on all nodes; empty if the node's agent keeps none.

    No other project ever has it, even after a backup of the database was restored.
    """
    if not node.facts.get("project_caches"):
        return ""
    identity = f"{installation_id()} {project.pk} {project.created_at.astimezone(UTC).isoformat()}"
    return f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}-{project.cache_generation}"


def hosts_on(node: Node, attempt: Attempt) -> tuple[str, ...]:
    """Return the hosts that a container on a node may reach: those that were allowed when the attempt was placed."""
    if attempt.allowed_hosts and not node.facts.get(NEEDS[HOSTS]):
        raise HostsUnknownError(node.name)
    return tuple(attempt.allowed_hosts)


def has_inputs_on(node: Node, job: Job) -> bool:
    """Return whether a container on a node gets the outputs of another job."""
    if job.use_outputs and not node.facts.get(NEEDS[INPUTS]):
        raise InputsUnknownError(node.name)
    return job.use_outputs


def secrets_on(node: Node, job: Job) -> tuple[tuple[str, str], ...]:
    """Return the names and kinds of the secrets that a container on a node gets; the agent asks for their values."""
    if job.secrets and not node.facts.get(NEEDS[SECRETS]):
        raise SecretsUnknownError(node.name)
    return job_secrets.names_and_kinds(job)


def datasets_on(node: Node, job: Job) -> tuple[DatasetMount, ...]:
    """Return the datasets that a container on a node reads; the agent fetches them by the hashes of their manifests."""
    rows = job_datasets.of_job(job)
    if rows and not node.facts.get(NEEDS[DATASETS]):
        raise DatasetsUnknownError(node.name)
    return tuple(
        DatasetMount(row.name, row.version.sha256, row.version.manifest_bytes, row.version.size, row.path, row.writable)
        for row in rows
    )


def layer_on(node: Node, environment: Environment) -> str:
    """Return the digest of the layer that a node has of an environment; empty for one without a recipe."""
    if not environment.recipe:
        return ""
    ready = NodeEnvironment.objects.filter(node=node, environment=environment, state=NodeEnvironment.State.READY)
    digest = ready.values_list("digest", flat=True).first()
    if not digest:
        raise LayerGoneError(node.name)
    return digest
