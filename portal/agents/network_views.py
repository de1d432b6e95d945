"""The agents' API about the network of jobs: ``POST /agent/v1/containers/<name>/network``.

Names of hosts come from users' code by way of the proxy. Texts and numbers are brought into bounds, and nothing is decided by
them.
"""

import math
import re
from typing import Any

from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.utils import timezone

from portal.agents.protocol import BadReportError, parse_storable
from portal.agents.views import agent_view, authenticate, own_container, read_body
from portal.jobs import network_use
from portal.jobs.network_use import HostUse
from portal.sentences.network import REASONS

MAX_BYTES = 512 * 1024
MAX_HOSTS = 201
"""As many as agents count, and the rest together."""
MAX_HOST_CHARACTERS = 253
MAX_DETAIL_CHARACTERS = 200
MAX_COUNT = 2**53
UNPRINTABLE = re.compile(r"[^\x21-\x7e]")


@agent_view("POST")
def report(request: HttpRequest, name: str) -> HttpResponseBase:
    """Accept ``{"hosts": [...]}``, all that a container has contacted so far, any number of times."""
    container = own_container(authenticate(request), name)
    network_use.store(container, read_hosts(parse_storable(read_body(request, MAX_BYTES))))
    return JsonResponse({})


def read_hosts(data: dict[str, Any]) -> list[HostUse]:
    """Return the hosts of a report, each once. Raises BadReportError."""
    items = data.get("hosts")
    if not isinstance(items, list) or len(items) > MAX_HOSTS or not all(isinstance(item, dict) for item in items):
        raise BadReportError(f"hosts must be a list of at most {MAX_HOSTS} objects.")
    uses = [_read_host(item) for item in items]
    return list({(use.host, use.port): use for use in uses}.values())


def _read_host(item: dict[str, Any]) -> HostUse:
    reason, detail, now = item.get("reason"), item.get("detail"), timezone.now().timestamp()
    first, last = (min(_number(item.get(key)), now) for key in network_use.SPAN)
    return HostUse(
        host=UNPRINTABLE.sub("?", str(item.get("host") or ""))[:MAX_HOST_CHARACTERS],
        port=min(int(_number(item.get("port"))), 65535),
        connections=int(_number(item.get("connections"))),
        received_bytes=int(_number(item.get("received_bytes"))),
        sent_bytes=int(_number(item.get("sent_bytes"))),
        refused=int(_number(item.get("refused"))),
        reason=reason if reason in REASONS else "",
        detail=" ".join(detail.split())[:MAX_DETAIL_CHARACTERS] if isinstance(detail, str) else "",
        first_at=first,
        last_at=max(first, last),
    )


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise BadReportError("A host has numbers of connections and bytes, and moments.")
    return min(max(value, 0), MAX_COUNT)
