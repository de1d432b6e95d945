"""Which environments need an admin: for the home page and the admin overview."""

from collections.abc import Iterator

from django.urls import reverse

from portal.cluster.attention import Item, first_items
from portal.environments.models import NodeEnvironment
from portal.environments.summary import ON_LIVE_NODE


def failed_environments() -> Iterator[Item]:
    """Yield environments that could not be prepared on a node, in one query."""
    failed = NodeEnvironment.objects.filter(
        ON_LIVE_NODE, state=NodeEnvironment.State.FAILED, environment__retired=False
    )
    yield from first_items(
        Item(
            "environment", "alert", "red", f"{row.environment.title} could not be prepared on {row.node.name}", "",
            "See the reason", reverse("jobs:environment", args=[row.environment.key]),
        )
        for row in failed.select_related("node", "environment").order_by("node__name", "environment")
    )  # fmt: skip
