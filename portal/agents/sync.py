"""One turn of an agent's report: facts into rows, then what is desired of its node.

The order matters: first the node is seen, then what it reports is written, then what is desired is read. A container
that was declared lost meanwhile is therefore never in the answer, and its lease is not renewed.

Nearly all reports say what the one before said. These are known by a digest (``Node.said``), and come to two
statements, sent at once: that the node was seen, and what its containers shall do.
"""

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Min, QuerySet
from django.utils import timezone

from portal.agents import queries
from portal.agents.protocol import (
    READINGS,
    ContainerReport,
    EnvironmentReport,
    GpuReport,
    Report,
    digest_of,
    read_containers,
    read_readings,
    read_report,
    storable,
)
from portal.agents.queries import Caller, Part
from portal.cluster import quarantine
from portal.cluster import services as cluster
from portal.cluster.installation import installation_id
from portal.cluster.models import Environment, Gpu, Node, NodeEnvironment
from portal.jobs import gpu_failures, lifecycle
from portal.jobs.models import Container, ContainerState, Job, JobState
from portal.monitoring import sampling
from portal.monitoring.sampling import Reading
from portal.usage import capacity
from portal.wake import wake_scheduler

COMPARE_SECONDS = 900
"""So often a report is compared with all rows although it says nothing new: whatever became of them is mended then."""
ENVIRONMENTS_SECONDS = 5.0
"""So long what is to be prepared is remembered: the same for all nodes, and each takes minutes."""
# The agent's columns are what it reports, each under its own name.
GPU_FIELDS = [each.name for each in fields(GpuReport) if each.name not in ("uuid", *READINGS)]
"""Written when they change; readings once per slot of ``sampling``."""
ENVIRONMENT_FIELDS = [each.name for each in fields(EnvironmentReport) if each.name != "key"]


class UnknownToken(Exception):  # noqa: N818
    """No machine of the lab holds it; or nobody has used it yet."""


def turn(held: str, data: dict[str, Any]) -> dict[str, Any]:
    """Takes a report in, as it came, and answers what is desired. ``held`` is the digest of a token."""
    now, containers = timezone.now(), read_containers(storable({"containers": data.get("containers", [])}))
    # Nodes are compared at different times; one that is compared anew has another salt for it.
    salt = f"{(int(now.timestamp()) + int(held[:4], 16)) // COMPARE_SECONDS} {_environments()}"
    said = digest_of(data, salt)
    node, parts = _known(*queries.see(held, said, now))
    if not node.known:
        report, row = read_report(storable(data)), Node.objects.get(pk=node.pk)
        cluster.check_runtime(report.runtime)
        if _was_away(row, now):
            # Before it is heard of again: what its fence has ended would count as having run until now.
            _take_containers(node.pk, containers)
        _take_in(row, report, said, now, sample=node.sample_due)
        node, parts = _known(*queries.look(held, now))
    elif node.sample_due:
        queries.write_readings(node.pk, read_readings(data), now)
    if _is_news(parts, containers):
        _take_containers(node.pk, containers)
        node, parts = _known(*queries.look(held, now))
    return _answer(node, parts, now)


def _was_away(node: Node, now: datetime) -> bool:
    away = timedelta(seconds=settings.NODE_LOST_AFTER_SECONDS)
    return node.last_seen_at is None or now - node.last_seen_at > away


def _known(node: Caller | None, parts: list[Part]) -> tuple[Caller, list[Part]]:
    if node is None:
        raise UnknownToken
    return node, parts


def _take_in(node: Node, report: Report, said: str, now: datetime, *, sample: bool) -> None:
    """Writes what a report says of its node, column by column where it differs."""
    _see(node, report, now)
    with transaction.atomic():
        # Holds the node's row: of two reports at once, that one's digest stays whose word stays in the rows.
        Node.objects.filter(pk=node.pk).update(said=said)
        _take_gpus(node, _with_duplicates_unfit(node, report.gpus, now), now if sample else None)
        _take_environments(node, report.environments)


def _see(node: Node, report: Report, now: datetime) -> None:
    said = {
        "last_seen_at": now,
        "boot": report.boot,
        "ready": report.full_pass,
        "runtime": report.runtime,
        "facts": report.facts,
        "problems": list(report.problems),
    }
    was_away = _was_away(node, now)
    changed = {name: value for name, value in said.items() if getattr(node, name) != value}
    Node.objects.filter(pk=node.pk).update(**changed)
    if "ready" in changed or "boot" in changed or was_away:
        wake_scheduler()
    for name, value in changed.items():
        setattr(node, name, value)


def _with_duplicates_unfit(node: Node, reports: tuple[GpuReport, ...], now: datetime) -> tuple[GpuReport, ...]:
    """Mark as unfit each GPU that an older node reports as well: two agents on one machine, or two that claim one device,
    would both be given jobs for it."""
    uuids = [report.uuid for report in reports if report.kind == Gpu.Kind.CUDA]
    if not uuids:
        return reports
    heard = now - timedelta(seconds=settings.NODE_LOST_AFTER_SECONDS)
    older = Node.objects.filter(pk__lt=node.pk, approved_at__isnull=False, last_seen_at__gt=heard)
    owners = dict(
        Gpu.objects.filter(node__in=older, kind=Gpu.Kind.CUDA, uuid__in=uuids, present=True).values_list(
            "uuid", "node__name"
        )
    )

    def checked(report: GpuReport) -> GpuReport:
        if report.kind != Gpu.Kind.CUDA or report.uuid not in owners:
            return report
        problem = f"{owners[report.uuid]} reports this GPU, too, and keeps it. Delete the node that is not needed."
        return replace(report, healthy=False, problem=problem)

    return tuple(checked(report) for report in reports)


def _take_gpus(node: Node, reports: tuple[GpuReport, ...], sampled_at: datetime | None) -> None:
    """Readings are kept when ``sampled_at`` says so."""
    known = {gpu.uuid: gpu for gpu in _locked(node.pk)}
    changed, read, news = [], [], False
    faults: list[tuple[Gpu, str]] = []
    readings: list[Reading] = []
    for report in reports:
        gpu = known.pop(report.uuid, None)
        if gpu is not None and not report.fault:
            report = replace(report, fault=gpu.fault)  # an agent that started anew has forgotten it
        if gpu is None:
            fields = {name: getattr(report, name) for name in (*GPU_FIELDS, *READINGS)}
            gpu, _ = Gpu.objects.get_or_create(node=node, uuid=report.uuid, defaults=fields)
            news = True
            if report.fault:
                faults.append((gpu, report.fault))
        elif not gpu.present or _differs(gpu, report, GPU_FIELDS):
            news = news or not gpu.present or gpu.healthy != report.healthy or gpu.outside != report.outside
            if report.fault and report.fault != gpu.fault:
                faults.append((gpu, report.fault))
            gpu.present = True
            for name in (*GPU_FIELDS, *READINGS):
                setattr(gpu, name, getattr(report, name))
            changed.append(gpu)
        reading = Reading(gpu.pk, *(getattr(report, name) for name in READINGS))
        if (sampled_at or reading.says_nothing) and _differs(gpu, report, READINGS):
            for name in READINGS:
                setattr(gpu, name, getattr(report, name))
            read.append(gpu)
        readings.append(reading)
    for gpu in known.values():
        if gpu.present:
            gpu.present, news = False, True
            changed.append(gpu)
    columns = [*GPU_FIELDS, *READINGS, "present"] if changed else READINGS
    Gpu.objects.bulk_update(changed + read, columns)
    if sampled_at is not None:
        sampling.keep(node, sampled_at, readings)
    for gpu, fault in faults:
        quarantine.quarantine(gpu, f"{fault}.")
    if news:
        capacity.record(nodes=[node.pk])
        wake_scheduler()


def _locked(node_id: int) -> QuerySet[Gpu]:
    """The node's GPUs, in one order, so that nobody who locks some of them can wait for us and we for them."""
    return Gpu.objects.select_for_update(no_key=True).filter(node=node_id).order_by("pk")


def _differs(row: object, report: object, names: Sequence[str]) -> bool:
    return any(getattr(row, name) != getattr(report, name) for name in names)


def _take_environments(node: Node, reports: tuple[EnvironmentReport, ...]) -> None:
    known = {
        row.environment.key: row for row in NodeEnvironment.objects.filter(node=node).select_related("environment")
    }
    new = {report.key for report in reports if report.key not in known}
    offered = {row.key: row for row in Environment.objects.filter(key__in=new)} if new else {}
    news = False
    for report in reports:
        row = known.get(report.key)
        fields: dict[str, Any] = {name: getattr(report, name) for name in ENVIRONMENT_FIELDS}
        if row is None:
            if environment := offered.get(report.key):
                NodeEnvironment.objects.get_or_create(node=node, environment=environment, defaults=fields)
                news = True
        elif any(getattr(row, name) != value for name, value in fields.items()):
            news = news or row.state != report.state
            NodeEnvironment.objects.filter(pk=row.pk).update(**fields, updated_at=timezone.now())
    if news:
        wake_scheduler()


def _is_news(parts: Sequence[Part], reports: Sequence[ContainerReport]) -> bool:
    """Whether a report may have something to write; also when it is about a container that is not listed."""
    listed = {part.name: part for part in parts}
    for report in reports:
        part = listed.get(report.name)
        if part is None or report.state != part.state or report.detail != part.detail or report.collected:
            return True
    return False


def _take_containers(node_id: int, reports: Sequence[ContainerReport]) -> None:
    by_name = {report.name: report for report in reports}
    rows = Container.objects.filter(node=node_id, name__in=by_name).select_related("attempt", "node").defer("spec")
    ended: list[int] = []
    for row in rows.order_by("attempt__job_id", "id"):
        report = by_name[row.name]
        if report.epoch != row.attempt.number:
            continue  # of another try: nothing it says counts
        if report.state != row.state or report.detail != row.detail:
            if report.state == ContainerState.EXITED:
                ended.append(row.pk)
            lifecycle.advance(
                row,
                report.state,
                at=report.running_at,
                exit_code=report.exit_code,
                exit_reason=report.exit_reason,
                detail=report.detail,
            )
        if report.collected and row.collected_at is None and row.state == ContainerState.EXITED:
            lifecycle.note_collected(row, "" if report.detail == row.detail else report.detail)
    if ended:
        gpu_failures.look_after_exits(ended)


# --- what is desired ---------------------------------------------------------------------------------------------


def desired(held: str) -> dict[str, Any]:
    """What the node with this token shall do, and ``seen``: a digest of what its containers shall do."""
    now = timezone.now()
    return _answer(*_known(*queries.look(held, now)), now)


def _answer(node: Caller, parts: Sequence[Part], now: datetime) -> dict[str, Any]:
    wanted = {"approved": node.approved, "containers": _containers(node, parts)}
    return {
        **wanted,
        "seen": hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:32],
        # What follows nobody is woken for: each answer to a report has it anew.
        "environments": _environments() if node.approved else [],
        "lease_seconds": settings.FENCE_SECONDS,
        "now": now.timestamp(),
        "rotate": node.rotate,
    }


def _containers(node: Caller, parts: Sequence[Part]) -> list[dict[str, Any]]:
    hosts = _hosts([part.attempt for part in parts if _needs_hosts(part)])
    elsewhere = _elsewhere(node.pk, {part.attempt for part in parts if (part.spec.get("ring") or {}).get("number")})
    nowhere = Elsewhere()
    return [
        {
            "spec": part.spec,
            # Beside the spec, in which an agent of an earlier release accepts no key that it does not know.
            "identity": {"installation": installation_id(), "job": part.job_uid},
            # What will not stop gets no lease any more; if that does not end it either, the sweep calls it lost.
            "wanted": "collect" if part.state == ContainerState.EXITED or part.given_up else part.wanted,
            "stop": {"reason": part.stop_reason, "grace_seconds": part.spec.get("grace_seconds", 10)}
            if part.wanted == Container.Wanted.STOP
            else None,
            "hosts": hosts[part.attempt] if _needs_hosts(part) else [],
            "batch": part.batch,
            "driver": elsewhere.get(part.attempt, nowhere).driver,
            "peers": sorted(elsewhere.get(part.attempt, nowhere).peers),
        }
        for part in parts
    ]


def _needs_hosts(part: Part) -> bool:
    """A driver gathers them; torchrun's hosts must know how many they are, and Horovod's who their ranks will be."""
    return part.role == Container.Role.DRIVER or part.spec.get("launcher") != Job.Launcher.COMMAND


def _hosts(attempt_ids: list[int]) -> dict[int, list[dict[str, Any]]]:
    """An attempt's hosts that may form its ring: those that shall run and have not ended."""
    hosts: dict[int, list[dict[str, Any]]] = defaultdict(list)
    if attempt_ids:
        rows = Container.objects.filter(attempt__in=attempt_ids, role=Container.Role.HOST, wanted=Container.Wanted.RUN)
        for row in rows.exclude(state=ContainerState.EXITED).order_by("index"):
            hosts[row.attempt_id].append({"name": row.spec["hostname"], "slots": row.spec["slots"]})
    return hosts


@dataclass
class Elsewhere:
    """What an attempt over several nodes has on others."""

    driver: str = ""
    """Where its driver is now, on whatever node."""
    peers: set[str] = field(default_factory=set)
    """Addresses of the other nodes on which it has live containers."""


def _elsewhere(node_id: int, attempts: set[int]) -> dict[int, Elsewhere]:
    found: dict[int, Elsewhere] = defaultdict(Elsewhere)
    if attempts:
        live = Container.objects.filter(attempt__in=attempts).exclude(state=ContainerState.EXITED).order_by("index")
        for attempt, role, own, place, address in live.values_list(
            "attempt", "role", "spec__ring__address", "node", "node__facts__ring_address"
        ):
            if role == Container.Role.DRIVER:
                found[attempt].driver = own or ""
            if place != node_id and address:
                found[attempt].peers.add(address)
    return found


def _environments() -> list[str]:
    """Those to prepare: what jobs wait for first, in the order they came, then those that are offered before any does."""
    now, (read_at, keys) = time.monotonic(), _prepared
    if now >= read_at + ENVIRONMENTS_SECONDS:
        keys = _read_environments()
        _prepared[:] = [now, keys]
    return keys


_prepared: list[Any] = [float("-inf"), []]
"""When ``_environments`` were read, and what they were."""


def _read_environments() -> list[str]:
    active = Job.objects.filter(state__in=(JobState.QUEUED, JobState.RUNNING)).order_by()
    first = dict(active.values_list("environment").annotate(first=Min("id")))
    offered = Environment.objects.filter(retired=False).order_by("position", "key")
    wanted = (row for row in offered if row.pk in first or not row.on_demand)
    return [row.key for row in sorted(wanted, key=lambda row: first.get(row.pk, float("inf")))]
