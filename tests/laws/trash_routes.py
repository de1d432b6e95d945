"""What each role gets at the routes of deleted jobs, and of rules that clean up: a part of ``route_matrix``."""

from typing import Any

from django.utils import timezone

from portal.jobs.models import RetentionRule
from portal.projects.deletable import KEPT_FOR
from tests.laws.people import World, make_job
from tests.laws.route_words import (
    ADMINS,
    API_ADMINS,
    API_IN_PROJECT,
    API_MEMBERS,
    API_ON_JOB,
    DONE_BY_ADMINS,
    DONE_BY_OWNERS,
    IN_PROJECT,
    MEMBERS,
    ON_JOB,
    Visit,
    get,
    post,
)

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
    "jobs/trash/(?P<pk>[0-9]{1,18})/(?P<what>restore|erase)": [
        post("/jobs/trash/{deleted}/restore", DONE_BY_OWNERS),
        post("/jobs/trash/{deleted}/erase", DONE_BY_OWNERS),
        post("/jobs/trash/{failed}/restore", "302 404 404 404 404 404"),
    ],
    "api/v1/trash/": [get("/api/v1/trash/", API_MEMBERS)],
    "api/v1/trash/<int:pk>/": [Visit("DELETE", "/api/v1/trash/{deleted}/", "401 404 404 404 204 204")],
    "api/v1/trash/<int:pk>/restore/": [post("/api/v1/trash/{deleted}/restore/", FROM_TRASH)],
    "admin/space/": [
        get("/admin/space/", ADMINS),
        post("/admin/space/", ADMINS, do="preview", part="outputs", ended="any", days=30),
        post("/admin/space/", DONE_BY_ADMINS, do="add", part="outputs", ended="any", days=30),
    ],
    "projects/<int:pk>/space": [
        get("/projects/{project}/space", IN_PROJECT),
        post("/projects/{project}/space", "302 404 400 400 200 200", do="preview", part="logs", ended="any", days=30),
        post("/projects/{project}/space", "302 404 400 400 302 302", do="add", part="logs", ended="any", days=30),
    ],
    "retention-rules/<int:pk>/remove": [
        post("/retention-rules/{rule}/remove", "302 404 302- 302- 302 302"),
        post("/retention-rules/{lab_rule}/remove", DONE_BY_ADMINS),
    ],
    "admin/space/people/": [get("/admin/space/people/", ADMINS)],
    "accounts/space/": [get("/accounts/space/", MEMBERS)],
    "projects/<int:pk>/space/limit": [post("/projects/{project}/space/limit", DONE_BY_ADMINS, max_space_gib=100)],
    "api/v1/space/projects/": [get("/api/v1/space/projects/", API_MEMBERS)],
    "api/v1/space/projects/<int:pk>/": [
        get("/api/v1/space/projects/{project}/", API_IN_PROJECT),
        Visit("PUT", "/api/v1/space/projects/{project}/", API_ADMINS, {"max_space_gib": 100}),
    ],
    "api/v1/space/people/": [get("/api/v1/space/people/", API_MEMBERS)],
    "api/v1/retention-rules/": [
        get("/api/v1/retention-rules/", API_MEMBERS),
        post("/api/v1/retention-rules/", "401 403 403 403 403 201", part="outputs", days=30),
        post("/api/v1/retention-rules/", "401 404 403 403 201 201", project="{project}", part="logs", days=30),
    ],
    "api/v1/retention-rules/preview/": [
        post("/api/v1/retention-rules/preview/", "401 404 403 403 200 200", project="{project}", part="jobs", days=1)
    ],
    "api/v1/retention-rules/<int:pk>/": [
        Visit("DELETE", "/api/v1/retention-rules/{rule}/", "401 404 403 403 204 204"),
        Visit("DELETE", "/api/v1/retention-rules/{lab_rule}/", "401 404 404 404 404 204"),
    ],
    "api/v1/jobs/<int:pk>/keep/": [post("/api/v1/jobs/{failed}/keep/", API_ON_JOB)],
    "api/v1/jobs/<int:pk>/stop-keeping/": [post("/api/v1/jobs/{failed}/stop-keeping/", API_ON_JOB)],
}
"""``DELETE`` of a job is beside its other methods in ``route_matrix``."""


def trash_of(world: World) -> dict[str, Any]:
    """Return a job of Alice's that is in the trash, and rules of her project and of the lab."""
    job = make_job(world, world.project, world.code, world.alice, "CANCELLED")
    job.deleted_at, job.deleted_by, job.erase_at = timezone.now(), world.alice, timezone.now() + KEPT_FOR
    job.save(update_fields=["deleted_at", "deleted_by", "erase_at"])
    rule = RetentionRule.objects.create(project=world.project, part="outputs", days=365)
    lab_rule = RetentionRule.objects.create(part="checkpoints", days=365)
    return {"deleted": job.pk, "rule": rule.pk, "lab_rule": lab_rule.pk}
