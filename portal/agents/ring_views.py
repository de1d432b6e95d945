"""The agents' API about rings: ``POST /agent/v1/containers/<name>/rings``, what a driver's status.json says of them.

What it says was in the reach of users' code: numbers are brought into bounds, and nothing decides by it.
"""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.utils import timezone

from portal.agents.protocol import BadReport, parse
from portal.agents.views import agent_view, authenticated, body_of, not_found, own_container
from portal.jobs.models import Container
from portal.monitoring import rings
from portal.monitoring.rings import Told

MAX_BYTES = 256 * 1024
MOST_AT_ONCE = 50
MOST_RANKS = 4096
MOST_NAME = 63
MOST_SECONDS = timedelta(days=7).total_seconds()


@agent_view("POST")
def tell(request: HttpRequest, name: str) -> HttpResponseBase:
    """``{"rings": [{"number", "at", "hosts", "cost_seconds"}]}``; the latest ones, as often as one likes."""
    driver = own_container(authenticated(request), name)
    if driver.role != Container.Role.DRIVER:
        raise not_found()
    rings.keep(driver, read(parse(body_of(request, MAX_BYTES)), driver.assigned_at))
    return JsonResponse({})


def read(data: dict[str, Any], earliest: datetime) -> list[Told]:
    """Raises BadReport for what is no list of rings. A moment is believed within what the portal knows."""
    items = data.get("rings")
    if not isinstance(items, list) or len(items) > MOST_AT_ONCE:
        raise BadReport(f"rings must be a list of at most {MOST_AT_ONCE} objects.")
    now = timezone.now()
    return [_ring(item, earliest, now) for item in items]


def _ring(item: Any, earliest: datetime, now: datetime) -> Told:
    wrong = BadReport("A ring has a number, a moment, the hosts of its ranks, and seconds or null.")
    if not isinstance(item, dict):
        raise wrong
    number, at, hosts, cost = (item.get(key) for key in ("number", "at", "hosts", "cost_seconds"))
    if not (isinstance(number, int) and 0 < number < 2**31 and _is_number(at)):
        raise wrong
    if not (isinstance(hosts, list) and len(hosts) <= MOST_RANKS and all(isinstance(host, str) for host in hosts)):
        raise wrong
    if not (cost is None or _is_number(cost)):
        raise wrong
    try:
        moment = datetime.fromtimestamp(at or 0, UTC)
    except (ValueError, OverflowError, OSError):
        raise wrong from None
    names = tuple(host[:MOST_NAME] for host in hosts)
    seconds = None if cost is None else min(max(float(cost), 0.0), MOST_SECONDS)
    return Told(number, min(max(moment, earliest), now), names, seconds)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
