"""Which requests for more time need an admin: for the home page and the admin overview."""

from collections.abc import Iterator

from django.urls import reverse

from portal.cluster.attention import MAX_OF_A_KIND, Item
from portal.jobs.time_extensions.models import TimeExtension
from portal.ui import duration


def open_time_extensions() -> Iterator[Item]:
    """Yield the oldest requests that no admin has decided, in one query."""
    path = reverse("forecast:time-requests")
    rows = TimeExtension.objects.open().select_related("job", "asked_by").order_by("pk")
    found = list(rows[: MAX_OF_A_KIND + 1])
    for row in found[:MAX_OF_A_KIND]:
        text = f"{row.asked_by} asks for {duration(row.seconds)} more for {row.job.name} #{row.job_id}"
        yield Item("more_time", "clock", "amber", text, row.reason, "Decide", path)
    if len(found) > MAX_OF_A_KIND:
        yield Item("more_time", "clock", "amber", "More requests for more time wait for an admin", "", "See all", path)
