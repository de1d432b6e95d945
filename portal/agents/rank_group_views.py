"""The agents' API about rank groups: ``POST /agent/v1/containers/<name>/rings``, from a driver's status.json.

Users' code can write that file: numbers are brought into bounds, and nothing is decided by them.
"""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.utils import timezone

from portal.agents.protocol import BadReportError, parse_storable
from portal.agents.views import agent_view, authenticate, not_found, own_container, read_body
from portal.jobs.models import Container
from portal.jobs.resize_timeline import reports
from portal.jobs.resize_timeline.reports import GroupReport

MAX_BYTES = 256 * 1024
MAX_GROUPS = 50
MAX_RANKS = 4096
MAX_NAME = 63
MAX_COST_SECONDS = timedelta(days=7).total_seconds()


@agent_view("POST")
def report(request: HttpRequest, name: str) -> HttpResponseBase:
    """Accept ``{"rings": [{"number", "at", "hosts", "cost_seconds"}]}`` with the latest groups, any number of times."""
    driver = own_container(authenticate(request), name)
    if driver.role != Container.Role.DRIVER:
        raise not_found()
    reports.store_groups(driver, read_groups(parse_storable(read_body(request, MAX_BYTES)), driver.assigned_at))
    return JsonResponse({})


def read_groups(data: dict[str, Any], earliest: datetime) -> list[GroupReport]:
    """Return the groups of a report; their moments lie between ``earliest`` and now. Raises BadReportError."""
    items = data.get("rings")
    if not isinstance(items, list) or len(items) > MAX_GROUPS:
        raise BadReportError(f"rings must be a list of at most {MAX_GROUPS} objects.")
    now = timezone.now()
    return [_read_group(item, earliest, now) for item in items]


def _read_group(item: Any, earliest: datetime, now: datetime) -> GroupReport:
    wrong = BadReportError("Each of rings has a number, a moment, the hosts of its ranks, and seconds or null.")
    if not isinstance(item, dict):
        raise wrong
    number, at, hosts, cost = (item.get(key) for key in ("number", "at", "hosts", "cost_seconds"))
    if not (isinstance(number, int) and 0 < number < 2**31 and _is_number(at)):
        raise wrong
    if not (isinstance(hosts, list) and len(hosts) <= MAX_RANKS and all(isinstance(host, str) for host in hosts)):
        raise wrong
    if not (cost is None or _is_number(cost)):
        raise wrong
    try:
        moment = datetime.fromtimestamp(at or 0, UTC)
    except (ValueError, OverflowError, OSError):
        raise wrong from None
    names = tuple(host[:MAX_NAME] for host in hosts)
    seconds = None if cost is None else min(max(float(cost), 0.0), MAX_COST_SECONDS)
    return GroupReport(number, min(max(moment, earliest), now), names, seconds)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
