"""What each role gets at the routes of more time for jobs: a part of ``route_matrix``."""

from typing import Any

from portal.jobs.models import TimeExtension
from tests.laws.people import World, make_job
from tests.laws.route_words import ADMINS, API_ADMINS, API_IN_PROJECT, DONE_BY_ADMINS, ON_JOB, Visit, get, post

ON_RUNNING = "401 404 403 403 200 200"
MORE_TIME_ROUTES: dict[str, list[Visit]] = {
    "jobs/<int:pk>/more-time": [
        get("/jobs/{running}/more-time", "302 404 302 302 200 200"),
        post("/jobs/{started}/more-time", ON_JOB, time_amount=2, time_unit=3600, reason="one epoch is missing"),
    ],
    "jobs/<int:pk>/more-time/withdraw": [post("/jobs/{running}/more-time/withdraw", ON_JOB)],
    "admin/more-time/": [get("/admin/more-time/?status=all&user=alice", ADMINS)],
    "admin/more-time/<int:pk>/decide": [
        post("/admin/more-time/{time_request}/decide", DONE_BY_ADMINS, decision="grant", answer="Yes")
    ],
    "admin/more-time/<int:pk>/forecast": [post("/admin/more-time/{time_request}/forecast", DONE_BY_ADMINS)],
    "api/v1/jobs/<int:job_pk>/time-extensions/": [
        get("/api/v1/jobs/{running}/time-extensions/", API_IN_PROJECT),
        post("/api/v1/jobs/{started}/time-extensions/", "401 404 403 403 201 201", seconds=3600),
    ],
    "api/v1/jobs/<int:job_pk>/time-extensions/compare/": [
        post("/api/v1/jobs/{running}/time-extensions/compare/", ON_RUNNING, seconds=3600)
    ],
    "api/v1/jobs/<int:job_pk>/time-extensions/<int:pk>/withdraw/": [
        post("/api/v1/jobs/{running}/time-extensions/{time_request}/withdraw/", ON_RUNNING)
    ],
    "api/v1/time-extensions/": [get("/api/v1/time-extensions/?status=asked", API_ADMINS)],
    "api/v1/time-extensions/<int:pk>/grant/": [post("/api/v1/time-extensions/{time_request}/grant/", API_ADMINS)],
    "api/v1/time-extensions/<int:pk>/refuse/": [post("/api/v1/time-extensions/{time_request}/refuse/", API_ADMINS)],
}


def more_time_of(world: World) -> dict[str, Any]:
    """Return a request of Alice for her running job, and another job of hers that has run and has no request."""
    row = TimeExtension.objects.create(
        job=world.running, asked_by=world.alice, seconds=3600, delays=[[world.jobs["QUEUED"].pk, 600]],
        delays_at=world.running.submitted_at,
    )  # fmt: skip
    started = make_job(world, world.project, world.code, world.alice, "QUEUED")
    started.started_at = started.submitted_at
    started.save(update_fields=["started_at"])
    return {"time_request": row.pk, "started": started.pk}
