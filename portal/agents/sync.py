"""Handles a report of an agent: stores its facts, then answers with the desired state of its node.

The order matters: the node is marked as seen, then its report is stored, then the desired state is read. A container that
was declared lost meanwhile is therefore never in the answer, and its lease is not renewed.

Nearly all reports repeat the one before. Their digest (``Node.report_digest``) shows it, and they take two statements in one round
trip: one marks the node as seen, one reads the desired state of its containers.
"""

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.conf import settings
from django.db import transaction
from django.db.models import Min, Q, QuerySet
from django.utils import timezone

from portal.agents import queries
from portal.agents.protocol import (
    READINGS,
    ContainerReport,
    EnvironmentReport,
    GpuReport,
    Report,
    digest_of,
    make_storable,
    read_containers,
    read_readings,
    read_report,
)
from portal.agents.queries import ListedContainer, ReportingNode
from portal.cluster import quarantine
from portal.cluster import services as cluster
from portal.cluster.installation import installation_id
from portal.cluster.models import Gpu, Node
from portal.environments import image_access
from portal.environments.models import Build, Environment, NodeEnvironment
from portal.environments.recipes import base_key
from portal.environments.summary import REQUESTED_FOR, newest_builds
from portal.jobs import gpu_failures, lifecycle
from portal.jobs.models import Container, ContainerState, Job, JobState
from portal.monitoring import sampling
from portal.monitoring.sampling import Reading
from portal.projects.git import fetches
from portal.usage import capacity
from portal.wake import wake_scheduler
from scheduling.messages import Message

FULL_COMPARISON_SECONDS = 900
"""At this interval a report is compared with all rows even if it repeats the last one, which repairs rows that differ."""
ENVIRONMENTS_CACHE_SECONDS = 5.0
"""How long the list of environments to prepare is cached: it is the same for all nodes, and preparing one takes minutes."""
FETCHES_CACHE_SECONDS = 1.0
"""How long the number of waiting fetches is cached, for which people wait."""
# The agent's columns are what it reports, each under its own name.
GPU_FIELDS = [each.name for each in fields(GpuReport) if each.name not in ("uuid", *READINGS)]
"""Written when they change; readings once per slot of ``sampling``."""
ENVIRONMENT_FIELDS = [each.name for each in fields(EnvironmentReport) if each.name != "key"]


@dataclass(frozen=True)
class ReportedTwice(Message):
    """Another node reports the same GPU and keeps it."""

    code: ClassVar[str] = "gpu_reported_twice"
    node: str


class UnknownTokenError(Exception):
    """No node of the lab has this token, or the node has not joined with it yet."""


def answer_report(token_digest: str, data: dict[str, Any]) -> dict[str, Any]:
    """Store a report, as received, and return the answer to its node."""
    now, containers = timezone.now(), read_containers(make_storable({"containers": data.get("containers", [])}))
    # The salt changes when the node's next comparison is due, at a different time for each node.
    salt = f"{(int(now.timestamp()) + int(token_digest[:4], 16)) // FULL_COMPARISON_SECONDS} {_environments.value()}"
    report_digest = digest_of(data, salt)
    node, listed = _require_node(*queries.mark_seen(token_digest, report_digest, now))
    if not node.known:
        report, row = read_report(make_storable(data)), Node.objects.get(pk=node.pk)
        cluster.check_runtime(report.runtime)
        if _was_away(row, now):
            # Before the node counts as seen again: jobs that its fence ended would count as having run until now.
            _store_containers(node.pk, containers)
        _store_report(row, report, report_digest, now, sample=node.sample_due)
        node, listed = _require_node(*queries.node_with_containers(token_digest, now))
    elif node.sample_due:
        queries.write_readings(node.pk, read_readings(data), now)
    if _has_changes(listed, containers):
        _store_containers(node.pk, containers)
        node, listed = _require_node(*queries.node_with_containers(token_digest, now))
    return _answer(node, listed, now)


def _was_away(node: Node, now: datetime) -> bool:
    away = timedelta(seconds=settings.NODE_LOST_AFTER_SECONDS)
    return node.last_seen_at is None or now - node.last_seen_at > away


def _require_node(
    node: ReportingNode | None, listed: list[ListedContainer]
) -> tuple[ReportingNode, list[ListedContainer]]:
    if node is None:
        raise UnknownTokenError
    return node, listed


def _store_report(node: Node, report: Report, report_digest: str, now: datetime, *, sample: bool) -> None:
    """Update the columns of the node, its GPUs and environments that differ from the report."""
    _update_node(node, report, now)
    with transaction.atomic():
        # Locks the node's row: of two reports at once, the digest and the rows come from the same one.
        Node.objects.filter(pk=node.pk).update(report_digest=report_digest)
        _store_gpus(node, _mark_duplicates_unfit(node, report.gpus, now), now if sample else None)
        _store_environments(node, report.environments)


def _update_node(node: Node, report: Report, now: datetime) -> None:
    reported = {
        "last_seen_at": now,
        "boot": report.boot,
        "ready": report.full_pass,
        "runtime": report.runtime,
        "facts": report.facts,
        "problems": list(report.problems),
    }
    was_away = _was_away(node, now)
    changed = {name: value for name, value in reported.items() if getattr(node, name) != value}
    Node.objects.filter(pk=node.pk).update(**changed)
    if "ready" in changed or "boot" in changed or was_away:
        wake_scheduler()
    for name, value in changed.items():
        setattr(node, name, value)


def _mark_duplicates_unfit(node: Node, reports: tuple[GpuReport, ...], now: datetime) -> tuple[GpuReport, ...]:
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

    def marked(report: GpuReport) -> GpuReport:
        if report.kind != Gpu.Kind.CUDA or report.uuid not in owners:
            return report
        return replace(report, healthy=False, problem=ReportedTwice(owners[report.uuid]).data())

    return tuple(marked(report) for report in reports)


def _store_gpus(node: Node, reports: tuple[GpuReport, ...], sampled_at: datetime | None) -> None:
    """Update the node's GPUs; with ``sampled_at`` also keep a sample of their readings."""
    known = {gpu.uuid: gpu for gpu in _locked_gpus(node.pk)}
    changed, read, news = [], [], False
    faults: list[tuple[Gpu, Any]] = []
    readings: list[Reading] = []
    for report in reports:
        gpu = known.pop(report.uuid, None)
        if gpu is not None and not report.fault:
            report = replace(report, fault=gpu.fault)  # an agent forgets it when it restarts
        if gpu is None:
            fields = {name: getattr(report, name) for name in (*GPU_FIELDS, *READINGS)}
            gpu, _ = Gpu.objects.get_or_create(node=node, uuid=report.uuid, defaults=fields)
            news = True
            if report.fault:
                faults.append((gpu, report.fault))
        elif not gpu.present or _differs(gpu, report, GPU_FIELDS):
            news = news or not gpu.present or gpu.healthy != report.healthy or gpu.outside != report.outside
            if report.fault and not quarantine.same_fault(report.fault, gpu.fault):
                faults.append((gpu, report.fault))
            gpu.present = True
            for name in (*GPU_FIELDS, *READINGS):
                setattr(gpu, name, getattr(report, name))
            changed.append(gpu)
        reading = Reading(gpu.pk, *(getattr(report, name) for name in READINGS))
        if (sampled_at or reading.is_empty) and _differs(gpu, report, READINGS):
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
        sampling.store_sample(node, sampled_at, readings)
    for gpu, fault in faults:
        quarantine.quarantine(gpu, quarantine.Fault(fault))
    if news:
        capacity.record(nodes=[node.pk])
        wake_scheduler()


def _locked_gpus(node_id: int) -> QuerySet[Gpu]:
    """Return the node's GPUs, locked in the order that all use, so that no two transactions wait for each other."""
    return Gpu.objects.select_for_update(no_key=True).filter(node=node_id).order_by("pk")


def _differs(row: object, report: object, names: Sequence[str]) -> bool:
    return any(getattr(row, name) != getattr(report, name) for name in names)


def _store_environments(node: Node, reports: tuple[EnvironmentReport, ...]) -> None:
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


def _has_changes(listed: Sequence[ListedContainer], reports: Sequence[ContainerReport]) -> bool:
    """Return whether the reports may change a row. A report about a container that is not listed may."""
    known = {container.name: container for container in listed}
    for report in reports:
        row = known.get(report.name)
        if row is None or report.state != row.state or report.detail != row.detail or report.collected:
            return True
    return False


def _store_containers(node_id: int, reports: Sequence[ContainerReport]) -> None:
    by_name = {report.name: report for report in reports}
    rows = Container.objects.filter(node=node_id, name__in=by_name).select_related("attempt", "node").defer("spec")
    ended: list[int] = []
    for row in rows.order_by("attempt__job_id", "id"):
        report = by_name[row.name]
        if report.epoch != row.attempt.number:
            continue  # it belongs to another attempt
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
            lifecycle.record_collected(row, "" if report.detail == row.detail else report.detail)
    if ended:
        gpu_failures.quarantine_failing_gpus(ended)


# --- desired state -----------------------------------------------------------------------------------------------


def desired_state(token_digest: str) -> dict[str, Any]:
    """Return the desired state of the node with this token, and ``seen``, a digest of that of its containers."""
    now = timezone.now()
    return _answer(*_require_node(*queries.node_with_containers(token_digest, now)), now)


def _answer(node: ReportingNode, listed: Sequence[ListedContainer], now: datetime) -> dict[str, Any]:
    wanted = {"approved": node.approved, "containers": _desired_containers(node, listed)}
    return {
        **wanted,
        "seen": hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:32],
        # Changes of the rest wake no node: the next answer brings them.
        "environments": [each.key for each in _environments.value() if not each.recipe] if node.approved else [],
        # Agents of earlier releases read only the curated ones, which they prepare themselves.
        "all_environments": [each.to_json() for each in _environments.value()] if node.approved else [],
        # How many commits wait to be fetched; agents of earlier releases do not read it.
        "git_fetches": _fetches.value() if node.approved else 0,
        "lease_seconds": settings.FENCE_SECONDS,
        "now": now.timestamp(),
        "rotate": node.rotate,
    }


def _desired_containers(node: ReportingNode, listed: Sequence[ListedContainer]) -> list[dict[str, Any]]:
    hosts = _hosts_by_attempt([each.attempt for each in listed if _needs_hosts(each)])
    others = _other_nodes(node.pk, {each.attempt for each in listed if (each.spec.get("ring") or {}).get("number")})
    no_others = OtherNodes()
    return [
        {
            "spec": each.spec,
            # Beside the spec: an agent of an earlier release refuses a spec with unknown keys.
            "identity": {"installation": installation_id(), "job": each.job_uid},
            # A container that does not stop gets no further lease; if that does not end it, the sweep declares it lost.
            "wanted": "collect" if each.state == ContainerState.EXITED or each.given_up else each.wanted,
            "stop": {"reason": each.stop_reason, "grace_seconds": each.spec.get("grace_seconds", 10)}
            if each.wanted == Container.Wanted.STOP
            else None,
            "hosts": hosts[each.attempt] if _needs_hosts(each) else [],
            "batch": each.batch,
            "driver": others.get(each.attempt, no_others).driver,
            "peers": sorted(others.get(each.attempt, no_others).peers),
        }
        for each in listed
    ]


def _needs_hosts(container: ListedContainer) -> bool:
    """Return whether it is a driver, which gathers the hosts, or a host of torchrun or Horovod, which must know the others."""
    return container.role == Container.Role.DRIVER or container.spec.get("launcher") != Job.Launcher.COMMAND


def _hosts_by_attempt(attempt_ids: list[int]) -> dict[int, list[dict[str, Any]]]:
    """Return the hosts of each attempt that may train together: those that should run and have not ended."""
    hosts: dict[int, list[dict[str, Any]]] = defaultdict(list)
    if attempt_ids:
        rows = Container.objects.filter(attempt__in=attempt_ids, role=Container.Role.HOST, wanted=Container.Wanted.RUN)
        for row in rows.exclude(state=ContainerState.EXITED).order_by("index"):
            hosts[row.attempt_id].append({"name": row.spec["hostname"], "slots": row.spec["slots"]})
    return hosts


@dataclass
class OtherNodes:
    """The addresses of an attempt on the nodes other than the one that reports."""

    driver: str = ""
    """The address of its driver, on whichever node."""
    peers: set[str] = field(default_factory=set)
    """The addresses of the other nodes on which it has live containers."""


def _other_nodes(node_id: int, attempts: set[int]) -> dict[int, OtherNodes]:
    found: dict[int, OtherNodes] = defaultdict(OtherNodes)
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


@dataclass(frozen=True, slots=True)
class WantedEnvironment:
    """An environment that nodes prepare. Without a recipe, each node does so from the files of its release."""

    key: str
    base: str = ""
    recipe: str = ""
    generation: int = 0
    send: str = ""
    """The digests of an image, separated by spaces, that nodes which have them are asked to send."""
    project: int = 0
    """The number of its project: nodes build for several projects at a time. 0 without one."""

    def to_json(self) -> dict[str, Any]:
        if not self.recipe:
            return {"key": self.key}
        wanted = {"key": self.key, "base": self.base, "recipe": self.recipe, "generation": self.generation}
        optional: dict[str, Any] = {"send": self.send, "project": self.project}
        return wanted | {name: value for name, value in optional.items() if value}


class EnvironmentOrder:
    """The environments that nodes prepare: those of waiting jobs in the order these came, those for which a
    user requested a build, then those offered to all."""

    def __init__(self) -> None:
        self._read_at = float("-inf")
        self._wanted: list[WantedEnvironment] = []

    def value(self) -> list[WantedEnvironment]:
        """Return them, at most ``ENVIRONMENTS_CACHE_SECONDS`` old. The base of each one precedes it."""
        now = time.monotonic()
        if now >= self._read_at + ENVIRONMENTS_CACHE_SECONDS:
            self._read_at, self._wanted = now, self._read()
        return self._wanted

    def forget(self) -> None:
        """Read them again the next time, as a process that has just started."""
        self._read_at = float("-inf")

    def _read(self) -> list[WantedEnvironment]:
        active = Job.objects.filter(state__in=(JobState.QUEUED, JobState.RUNNING)).order_by()
        first: dict[int, int] = dict(active.values_list("environment").annotate(first=Min("id")))
        asked = Q(requested_at__gt=timezone.now() - REQUESTED_FOR)
        rows = Environment.objects.filter(
            Q(pk__in=first) | Q(retired=False) & (asked | Q(project=None, on_demand=False))
        )
        by_need = sorted(
            rows.select_related("base").order_by("position", "key"),
            key=lambda row: (first.get(row.pk, float("inf")), row.requested_at is None),
        )
        send = _archives_to_send({row.recipe for row in by_need if row.image})
        wanted: dict[str, WantedEnvironment] = {}
        for row in by_need:
            if row.base is not None:
                wanted.setdefault(row.base.key, WantedEnvironment(row.base.key))
            base = base_key(row) if row.recipe else ""
            asked_for = send.get(row.recipe, "")
            each = WantedEnvironment(row.key, base, row.recipe, row.generation, asked_for, row.project_id or 0)
            wanted.setdefault(row.key, each)
        return list(wanted.values())


def _archives_to_send(recipes: set[str]) -> dict[str, str]:
    """Return, by recipe, the digests of images that nodes which have them are asked to send."""
    if not recipes:
        return {}
    done = Build.objects.filter(recipe__in=recipes, state=Build.State.DONE, lock__archive_sha256="")
    newest = list(newest_builds(done, per_kind=True).select_related("lock").order_by("kind"))
    needed = {lock.digest for lock in image_access.without_archive(build.lock for build in newest if build.lock)}
    send: dict[str, list[str]] = defaultdict(list)
    for build in newest:
        if build.lock is not None and build.lock.digest in needed:
            send[build.recipe].append(build.lock.digest)
    return {recipe: " ".join(digests) for recipe, digests in send.items()}


class FetchCount:
    """How many commits wait to be fetched from Git."""

    def __init__(self) -> None:
        self._read_at = float("-inf")
        self._count = 0

    def value(self) -> int:
        """Return the number, at most ``FETCHES_CACHE_SECONDS`` old."""
        now = time.monotonic()
        if now >= self._read_at + FETCHES_CACHE_SECONDS:
            self._read_at, self._count = now, fetches.count_waiting()
        return self._count

    def forget(self) -> None:
        """Read it again the next time, as a process that has just started."""
        self._read_at = float("-inf")


_environments = EnvironmentOrder()
_fetches = FetchCount()
