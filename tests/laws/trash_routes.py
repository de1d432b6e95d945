"""What each role gets at the routes of deleted jobs: a part of ``route_matrix``."""

from typing import Any

from django.utils import timezone

from portal.jobs.trash import KEPT_FOR
from tests.laws.people import World, make_job
from tests.laws.route_words import API_MEMBERS, API_ON_JOB, DONE_BY_OWNERS, MEMBERS, ON_JOB, Visit, get, post

GONE = "401 404 403 403 204 204"
FROM_TRASH = "401 404 404 404 200 200"
TRASH_ROUTES: dict[str, list[Visit]] = {
    "jobs/trash": [get("/jobs/trash", MEMBERS)],
    "jobs/<int:pk>/delete": [
        get("/jobs/{failed}/delete", "302 404 302 302 200 200"),
        get("/jobs/{running}/delete", "302 404 302 302 200 200"),
        post("/jobs/{failed}/delete", ON_JOB),
        post("/jobs/{running}/delete", "302 404 302- 302- 302- 302-"),
        get("/jobs/{deleted}/delete", "302 404 404 404 404 404"),
    ],
    "jobs/(?P<pk>[0-9]{1,18})/(?P<what>restore|erase)": [
        post("/jobs/{deleted}/restore", DONE_BY_OWNERS),
        post("/jobs/{deleted}/erase", DONE_BY_OWNERS),
        post("/jobs/{failed}/restore", "302 404 404 404 404 404"),
    ],
    "api/v1/trash/": [get("/api/v1/trash/", API_MEMBERS)],
    "api/v1/trash/<int:pk>/": [Visit("DELETE", "/api/v1/trash/{deleted}/", "401 404 404 404 204 204")],
    "api/v1/trash/<int:pk>/restore/": [post("/api/v1/trash/{deleted}/restore/", FROM_TRASH)],
    "api/v1/jobs/<int:pk>/keep/": [post("/api/v1/jobs/{failed}/keep/", API_ON_JOB)],
    "api/v1/jobs/<int:pk>/stop-keeping/": [post("/api/v1/jobs/{failed}/stop-keeping/", API_ON_JOB)],
}
"""``DELETE`` of a job is beside its other methods in ``route_matrix``."""


def trash_of(world: World) -> dict[str, Any]:
    """Return a job of Alice's that is in the trash."""
    job = make_job(world, world.project, world.code, world.alice, "CANCELLED")
    job.deleted_at, job.deleted_by, job.erase_at = timezone.now(), world.alice, timezone.now() + KEPT_FOR
    job.save(update_fields=["deleted_at", "deleted_by", "erase_at"])
    return {"deleted": job.pk}
