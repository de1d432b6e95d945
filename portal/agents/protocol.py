"""Validates messages of agents, which are not trusted: a node runs users' code, and its agent may be older or newer.

``read_*`` turn JSON into frozen values or raise BadReportError with a sentence. Numbers are limited, texts are cut and
unknown keys are ignored, so that any report can be stored.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import IPv4Address
from typing import Any

from portal.cluster.models import Gpu
from portal.environments.models import NodeEnvironment
from portal.jobs.models import ContainerState
from portal.sentences import SENTENCES, agents
from portal.sentences.problems import FORMER_FIX

CONTAINER_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,79}")
EXIT_REASONS = frozenset({"exited", "stopped", "fenced", "launch_error", "oom", "disk", "create_error", "lost"})
CONTAINER_STATES = frozenset(ContainerState.values)
MAX_GPUS = 256
MAX_CONTAINERS = 2000
MAX_ENVIRONMENTS = 200
MAX_PROBLEMS = 50
MESSAGE_CODE = re.compile(r"[a-z]+\.[a-z_]{1,60}")
"""The codes of the messages of agents, such as ``problem.old_runc``."""
MAX_PARAMETERS, MAX_DEPTH = 20, 4
"""The maximum number of parameters of a message, and of messages within one another."""
MAX_MESSAGE_CHARACTERS = 4096
"""The maximum length of a whole message as JSON: the reasons of many jobs may have it."""
MESSAGE_FACTS = ("confinement_message", "limits_message")
"""The facts that are messages; the others are names, versions and numbers."""
MAX_FACTS_BYTES = 64 * 1024
MAX_MARKS = 200
READINGS = ("utilisation_percent", "memory_used_mib", "temperature_celsius")
"""The fields of a GPU that differ in every report."""
MAX_SMALLINT = 32_767
MAX_INTEGER = 2_147_483_647
MAX_NUMBER = 2**63
"""The maximum of a number in facts, which are stored as received and used in computations (``run_specs``)."""


class BadReportError(Exception):
    """The message does not follow the protocol."""


@dataclass(frozen=True, slots=True)
class GpuReport:
    uuid: str
    index: int
    kind: str
    model: str
    memory_mib: int
    healthy: bool
    problem: Any
    """A message, or the text of an agent of the previous release."""
    utilisation_percent: int | None
    memory_used_mib: int | None
    temperature_celsius: int | None
    links: str
    outside: Any
    """A message, or the text of an agent of the previous release."""
    fault: Any
    """A message, or the text of an agent of the previous release."""


@dataclass(frozen=True, slots=True)
class EnvironmentReport:
    key: str
    digest: str
    state: str
    progress_percent: int
    detail: Any
    """A message, or the text of an agent of the previous release."""


@dataclass(frozen=True, slots=True)
class ContainerReport:
    name: str
    epoch: int
    state: str
    detail: Any
    """A message, or a text: a quotation, or of an agent of the previous release."""
    running_at: datetime | None
    exit_code: int | None
    exit_reason: str
    collected: bool


@dataclass(frozen=True, slots=True)
class Report:
    boot: str
    full_pass: bool
    runtime: str
    facts: dict[str, Any]
    problems: tuple[dict[str, Any], ...]
    gpus: tuple[GpuReport, ...]
    environments: tuple[EnvironmentReport, ...]
    containers: tuple[ContainerReport, ...]


@dataclass(frozen=True, slots=True)
class JoinRequest:
    join_token: str
    name: str
    runtime: str
    facts: dict[str, Any]
    problems: tuple[dict[str, Any], ...] = ()


def parse_storable(body: bytes) -> dict[str, Any]:
    """Read a JSON object and make its texts storable."""
    return make_storable(parse_json(body))


def parse_json(body: bytes) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        data = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadReportError("The body is not JSON.") from error
    if not isinstance(data, dict):
        raise BadReportError("The body must be a JSON object.")
    return data


def make_storable(data: dict[str, Any]) -> dict[str, Any]:
    try:
        return {_storable_value(name): _storable_value(value) for name, value in data.items()}
    except RecursionError as error:
        raise BadReportError("The body is not JSON.") from error


def digest_of(data: dict[str, Any], salt: str) -> str:
    """Return the digest of a report without its containers and the values of GPU readings, which are read each time."""
    gpus = [
        {name: value for name, value in gpu.items() if name not in READINGS or value is None}
        for gpu in _items(data, "gpus", MAX_GPUS)
    ]
    rest = {name: data[name] for name in data if name not in ("gpus", "containers")}
    try:
        text = json.dumps([salt, gpus, rest], sort_keys=True)
    except RecursionError as error:
        raise BadReportError("The body is not JSON.") from error
    return hashlib.sha256(text.encode()).hexdigest()


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _storable_value(value: Any) -> Any:
    """Remove what PostgreSQL cannot store, NUL and halves of surrogate pairs; raise BadReportError for too large numbers."""
    if isinstance(value, str):
        return value.replace("\0", "").encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_storable_value(key): _storable_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_storable_value(item) for item in value]
    if isinstance(value, int | float) and not abs(value) <= MAX_NUMBER:
        raise BadReportError("A number is too large.")
    return value


def read_join(data: dict[str, Any]) -> JoinRequest:
    return JoinRequest(
        _text(data, "join_token", 200),
        _text(data, "name", 200),
        _text(data, "runtime", 10),
        _facts(data),
        _problems(data),
    )


def read_report(data: dict[str, Any]) -> Report:
    gpus = [_gpu(item) for item in _items(data, "gpus", MAX_GPUS)]
    environments = [_environment(item) for item in _items(data, "environments", MAX_ENVIRONMENTS)]
    return Report(
        boot=_text(data, "boot", 36),
        full_pass=data.get("full_pass") is True,
        runtime=_text(data, "runtime", 10),
        facts=_facts(data),
        problems=_problems(data),
        gpus=tuple({gpu.uuid: gpu for gpu in gpus if gpu.uuid}.values()),
        environments=tuple({item.key: item for item in environments}.values()),
        containers=read_containers(data),
    )


def read_containers(data: dict[str, Any]) -> tuple[ContainerReport, ...]:
    containers = [_container(item) for item in _items(data, "containers", MAX_CONTAINERS)]
    return tuple({item.name: item for item in containers if item is not None}.values())


def read_readings(data: dict[str, Any]) -> dict[str, tuple[int | None, int | None, int | None]]:
    """Return the readings of each GPU by its UUID, in the order of ``READINGS``."""
    return {_text(item, "uuid", 80): _readings(item) for item in _items(data, "gpus", MAX_GPUS)}


def _readings(item: dict[str, Any]) -> tuple[int | None, int | None, int | None]:
    return (
        _number(item, "utilisation_percent", 0, 100),
        _number(item, "memory_used_mib", 0, MAX_INTEGER),
        _number(item, "temperature_celsius", -MAX_SMALLINT, MAX_SMALLINT),
    )


def _problems(data: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    return tuple(_problem(item) for item in _items(data, "problems", MAX_PROBLEMS))


def _problem(item: dict[str, Any]) -> dict[str, Any]:
    """Read a problem: a message, or the texts of an agent of the previous release. A message comes with them as well."""
    blocking = {"blocking": item.get("blocking") is True}
    if message := known_message(
        {name: value for name, value in item.items() if name not in ("text", "fix", FORMER_FIX)}
    ):
        return message | blocking
    fix = _text(item, "fix", 500) or _text(item, FORMER_FIX, 500)
    return {"text": _text(item, "text", 500), "fix": fix, FORMER_FIX: fix} | blocking


def known_message(value: Any) -> dict[str, Any] | None:
    """Read a message; None for anything else, and for one of a later release or that is too long: a text is beside it."""
    message = _message(value)
    known = message is not None and message["code"] in SENTENCES and len(json.dumps(message)) <= MAX_MESSAGE_CHARACTERS
    return message if known else None


def _message(value: Any, depth: int = 0) -> dict[str, Any] | None:
    """Read a message (``runners.messages``), known here or not; None for anything else."""
    if not isinstance(value, dict) or depth > MAX_DEPTH or len(value) > MAX_PARAMETERS:
        return None
    code = value.get("code")
    if not isinstance(code, str) or not MESSAGE_CODE.fullmatch(code):
        return None
    return {name[:60]: _parameter(each, depth + 1) for name, each in value.items()}


def _parameter(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return value[: agents.MAX_TEXT_CHARACTERS]
    if isinstance(value, list):
        read = (_parameter(each, depth) for each in value[:MAX_PARAMETERS] if isinstance(each, str | dict))
        return [each for each in read if each is not None]
    return value if isinstance(value, bool | int | float) else _message(value, depth)


def _gpu(item: dict[str, Any]) -> GpuReport:
    utilisation, memory, temperature = _readings(item)
    return GpuReport(
        uuid=_text(item, "uuid", 80),
        index=_number(item, "index", 0, MAX_SMALLINT) or 0,
        kind=Gpu.Kind.CUDA if item.get("kind") == Gpu.Kind.CUDA else Gpu.Kind.CPU,
        model=_text(item, "model", 80),
        memory_mib=_number(item, "memory_mib", 0, MAX_INTEGER) or 0,
        healthy=item.get("healthy") is not False,
        problem=known_message(item.get("message")) or _text(item, "problem", 200),
        utilisation_percent=utilisation,
        memory_used_mib=memory,
        temperature_celsius=temperature,
        links=_text(item, "links", 200),
        outside=known_message(item.get("outside_message")) or _text(item, "outside", 200),
        fault=known_message(item.get("fault_message")) or _text(item, "fault", 200),
    )


def _environment(item: dict[str, Any]) -> EnvironmentReport:
    state = item.get("state")
    return EnvironmentReport(
        key=_text(item, "key", 50),
        digest=_text(item, "digest", 80),
        state=str(state) if state in NodeEnvironment.State.values else NodeEnvironment.State.WAITING,
        progress_percent=_number(item, "progress_percent", 0, 100) or 0,
        detail=known_message(item.get("message")) or _text(item, "detail", 2000),
    )


def _container(item: dict[str, Any]) -> ContainerReport | None:
    """Read a container; None if it cannot be one that the portal requested."""
    name, state = item.get("name"), item.get("state")
    epoch = _number(item, "epoch", 0, MAX_INTEGER)
    if (
        not isinstance(name, str)
        or not CONTAINER_NAME.fullmatch(name)
        or state not in CONTAINER_STATES
        or epoch is None
    ):
        return None
    reason = _text(item, "exit_reason", 20)
    return ContainerReport(
        name=name,
        epoch=epoch,
        state=str(state),
        detail=known_message(item.get("message")) or _text(item, "detail", 2000),
        running_at=_moment(item.get("running_at")),
        exit_code=_number(item, "exit_code", -MAX_INTEGER, MAX_INTEGER),
        # An unknown reason comes from an agent of another version, not from users' code.
        exit_reason=reason if reason in EXIT_REASONS else "create_error" if reason else "exited",
        collected=item.get("collected") is True,
    )


def read_marks(header: str) -> list[tuple[int, int]]:
    """Read ``off:ms,off:ms``; marks that cannot be read are left out, since they are only a convenience."""
    marks = []
    for text in header.split(",")[:MAX_MARKS]:
        offset, _, ms = text.strip().partition(":")
        if offset.isascii() and ms.isascii() and offset.isdecimal() and ms.isdecimal() and len(offset) < 19 > len(ms):
            marks.append((int(offset), int(ms)))
    return marks


def _facts(data: dict[str, Any]) -> dict[str, Any]:
    facts = data.get("facts", {})
    if not isinstance(facts, dict) or len(json.dumps(facts)) > MAX_FACTS_BYTES:
        raise BadReportError(f"facts must be an object of at maximum {MAX_FACTS_BYTES >> 10} KiB.")
    facts = dict(facts)
    if "ring_address" in facts and not _is_address(facts["ring_address"]):
        del facts["ring_address"]  # it is sent to other nodes, whose agents would reject the whole answer
    for name in MESSAGE_FACTS:
        if message := _message(facts.pop(name, None)):
            facts[name] = message
    return facts


def _is_address(value: object) -> bool:
    try:
        address = IPv4Address(value) if isinstance(value, str) else None
    except ValueError:
        return False
    return address is not None and not (address.is_loopback or address.is_multicast or address.is_unspecified)


def _items(data: dict[str, Any], key: str, maximum: int) -> list[dict[str, Any]]:
    items = data.get(key, [])
    if not isinstance(items, list) or len(items) > maximum or not all(isinstance(item, dict) for item in items):
        raise BadReportError(f"{key} must be a list of at maximum {maximum} objects.")
    return items


def _text(data: dict[str, Any], key: str, maximum: int) -> str:
    value = data.get(key)
    return value[:maximum] if isinstance(value, str) else ""


def _number(data: dict[str, Any], key: str, minimum: int, maximum: int) -> int | None:
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return min(max(int(value), minimum), maximum)


def _moment(value: object) -> datetime | None:
    """Read a moment: seconds since the epoch, or ISO 8601 with a time zone."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
        return moment.astimezone(UTC) if moment and moment.tzinfo else None
    except (ValueError, OverflowError, OSError):
        return None
