"""One turn of an agent's report: facts into rows, then what is desired of its node.

The order matters: first the node is seen, then what it reports is written, then what is desired is read. A container
that was declared lost meanwhile is therefore never in the answer, and its lease is not renewed.
"""

import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Min, Q
from django.utils import timezone

from portal.cluster import quarantine
from portal.cluster.models import Environment, Gpu, Node, NodeEnvironment
from portal.control import batches, suspects
from portal.control.agent_reports import ContainerReport, EnvironmentReport, GpuReport, Report
from portal.gauges import sampling
from portal.gauges.sampling import Reading
from portal.jobs import lifecycle
from portal.jobs.models import Container, ContainerState, Job, JobState
from portal.jobs.rules import STOP_SECONDS
from portal.usage import capacity
from portal.wake import wake_scheduler

COLLECT_DAYS = 7
"""A node that could not hand over a container's log in this time no longer has it."""
# The agent's columns are what it reports, each under its own name.
READINGS = ["utilisation_percent", "memory_used_mib", "temperature_celsius"]
"""These differ in every report; they are written once per slot of ``sampling``, the rest when it changes."""
GPU_FIELDS = [each.name for each in fields(GpuReport) if each.name not in ("uuid", *READINGS)]
ENVIRONMENT_FIELDS = [each.name for each in fields(EnvironmentReport) if each.name != "key"]


def take_in(node: Node, report: Report) -> None:
    """Writes what a report says, column by column where it differs."""
    heard_before, now = node.last_seen_at, timezone.now()
    _see(node, report, now)
    _take_gpus(node, report.gpus, now if sampling.is_due(heard_before, now) else None)
    _take_environments(node, report.environments)
    _take_containers(node, report.containers)


def _see(node: Node, report: Report, now: datetime) -> None:
    said = {
        "last_seen_at": now,
        "boot": report.boot,
        "ready": report.full_pass,
        "runtime": report.runtime,
        "facts": report.facts,
        "problems": list(report.problems),
    }
    away = timedelta(seconds=settings.NODE_LOST_AFTER_SECONDS)
    was_away = node.last_seen_at is None or now - node.last_seen_at > away
    changed = {name: value for name, value in said.items() if getattr(node, name) != value}
    Node.objects.filter(pk=node.pk).update(**changed)
    if "ready" in changed or "boot" in changed or was_away:
        wake_scheduler()
    for name, value in changed.items():
        setattr(node, name, value)


@transaction.atomic
def _take_gpus(node: Node, reports: tuple[GpuReport, ...], sampled_at: datetime | None) -> None:
    """Readings are kept when ``sampled_at`` says so."""
    known = {gpu.uuid: gpu for gpu in Gpu.objects.filter(node=node)}
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
        elif sampled_at and _differs(gpu, report, READINGS):
            for name in READINGS:
                setattr(gpu, name, getattr(report, name))
            read.append(gpu)
        readings.append(Reading(gpu.pk, *(getattr(report, name) for name in READINGS)))
    for gpu in known.values():
        if gpu.present:
            gpu.present, news = False, True
            changed.append(gpu)
    # In one order, so that two reports of a node cannot wait for each other.
    columns = [*GPU_FIELDS, *READINGS, "present"] if changed else READINGS
    Gpu.objects.bulk_update(sorted(changed + read, key=lambda gpu: gpu.pk), columns)
    if sampled_at is not None:
        sampling.keep(node, sampled_at, readings)
    for gpu, fault in faults:
        quarantine.quarantine(gpu, f"{fault}.")
    if news:
        capacity.record(nodes=[node.pk])
        wake_scheduler()


def _differs(row: object, report: object, names: list[str]) -> bool:
    return any(getattr(row, name) != getattr(report, name) for name in names)


@transaction.atomic
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


def _take_containers(node: Node, reports: tuple[ContainerReport, ...]) -> None:
    by_name = {report.name: report for report in reports}
    if not by_name:
        return
    rows = Container.objects.filter(node=node, name__in=by_name).select_related("attempt", "node").defer("spec")
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
        suspects.look_after_exits(ended)


# --- what is desired ---------------------------------------------------------------------------------------------


def desired(node: Node, now: datetime | None = None) -> dict[str, Any]:
    """What the node shall do, and ``seen``: a digest of it."""
    now = now or timezone.now()
    approved = node.approved_at is not None and node.removed_at is None
    answer: dict[str, Any] = {
        "approved": approved,
        "containers": _containers(node, now) if approved else [],
        "environments": _environments() if approved else [],
    }
    seen = hashlib.sha256(json.dumps(answer, sort_keys=True).encode()).hexdigest()[:32]
    # What follows is no part of the digest: the time is never the same, and a new token is asked for by itself.
    rest = {
        "lease_seconds": settings.FENCE_SECONDS,
        "now": now.timestamp(),
        "rotate": node.rotation_asked_at is not None,
    }
    return {**answer, **rest, "seen": seen}


def _containers(node: Node, now: datetime) -> list[dict[str, Any]]:
    live = ~Q(state=ContainerState.EXITED)
    # One that will not stop is no longer listed: its lease runs out, and the sweep ends it after that.
    stoppable = Q(stop_requested_at__isnull=True) | Q(stop_requested_at__gt=now - timedelta(seconds=STOP_SECONDS))
    to_collect = Q(collected_at__isnull=True, exited_at__gt=now - timedelta(days=COLLECT_DAYS))
    rows = list(Container.objects.filter(node=node).filter((live & stoppable) | to_collect).order_by("id"))
    hosts = _hosts([row.attempt_id for row in rows if _needs_hosts(row)])
    chosen = batches.of({row.attempt_id for row in rows})
    elsewhere = _elsewhere(node, {row.attempt_id for row in rows if (row.spec.get("ring") or {}).get("number")})
    nowhere = Elsewhere()
    return [
        {
            "spec": row.spec,
            "wanted": "collect" if row.state == ContainerState.EXITED else row.wanted,
            "stop": {"reason": row.stop_reason, "grace_seconds": row.spec.get("grace_seconds", 10)}
            if row.wanted == Container.Wanted.STOP
            else None,
            "hosts": hosts[row.attempt_id] if _needs_hosts(row) else [],
            "batch": chosen.get(row.attempt_id, 0),
            "driver": elsewhere.get(row.attempt_id, nowhere).driver,
            "peers": sorted(elsewhere.get(row.attempt_id, nowhere).peers),
        }
        for row in rows
    ]


def _needs_hosts(row: Container) -> bool:
    """A driver gathers them; torchrun's hosts must know how many they are."""
    return row.role == Container.Role.DRIVER or row.spec.get("launcher") == "torchrun"


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


def _elsewhere(node: Node, attempts: set[int]) -> dict[int, Elsewhere]:
    found: dict[int, Elsewhere] = defaultdict(Elsewhere)
    if attempts:
        live = Container.objects.filter(attempt__in=attempts).exclude(state=ContainerState.EXITED).order_by("index")
        for attempt, role, own, place, address in live.values_list(
            "attempt", "role", "spec__ring__address", "node", "node__facts__ring_address"
        ):
            if role == Container.Role.DRIVER:
                found[attempt].driver = own or ""
            if place != node.pk and address:
                found[attempt].peers.add(address)
    return found


def _environments() -> list[str]:
    """Those to prepare: what jobs wait for first, in the order they came, then the rest."""
    active = Job.objects.filter(state__in=(JobState.QUEUED, JobState.RUNNING)).order_by()
    first = dict(active.values_list("environment").annotate(first=Min("id")))
    offered = Environment.objects.filter(retired=False).order_by("position", "key")
    return [row.key for row in sorted(offered, key=lambda row: first.get(row.pk, float("inf")))]
