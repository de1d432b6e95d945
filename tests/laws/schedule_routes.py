"""What each role gets at the routes of schedules: a part of ``route_matrix``."""

from datetime import time
from typing import Any

from portal.schedules import services
from tests.laws.people import CANARY, World
from tests.laws.route_words import (
    API_IN_PROJECT,
    API_MEMBERS,
    API_WRITERS,
    IN_PROJECT,
    MEMBERS,
    ON_JOB,
    Visit,
    get,
    post,
)

TIMES = {"at": "02:00", "zone": "Europe/Berlin"}
FORM = {
    **TIMES,
    "name": "nightly",
    "weekdays": ["0", "1"],
    "newest_code": "yes",
    "overlap": "skip",
    "max_late_hours": "6",
}
OWN = "302 404 404 404 200 404"
"""Only Alice edits what runs as her."""
API_OWN = "401 404 403 403 200 403"


def schedules_of(world: World) -> dict[str, Any]:
    """Make a schedule of Alice's; return the name of its row."""
    values = {"at": time(2), "zone": "Europe/Berlin", "name": f"{CANARY} schedule"}
    return {"schedule": services.create(world.alice, world.jobs["SUCCEEDED"], values).pk}


SCHEDULE_ROUTES: dict[str, list[Visit]] = {
    "schedules/": [get("/schedules/", MEMBERS), get("/schedules/?all=1", MEMBERS)],
    "schedules/new": [
        get("/schedules/new?job={job}", IN_PROJECT),
        post("/schedules/new?job={job}", "302 404 400 302 302 302", **FORM),
    ],
    "schedules/<int:pk>/": [get("/schedules/{schedule}/", IN_PROJECT)],
    "schedules/<int:pk>/edit": [
        get("/schedules/{schedule}/edit", OWN),
        post("/schedules/{schedule}/edit", "302 404 404 404 302 404", **FORM),
    ],
    "schedules/(?P<pk>[0-9]{1,18})/(?P<what>pause|resume|delete|submit)": [
        post("/schedules/{schedule}/pause", ON_JOB),
        post("/schedules/{schedule}/resume", "302 404 302- 302- 302 302-"),
        post("/schedules/{schedule}/delete", ON_JOB),
        post("/schedules/{schedule}/submit", "302 404 302- 302- 302 302-"),
    ],
    "projects/<int:pk>/schedules": [get("/projects/{project}/schedules", IN_PROJECT)],
    "api/v1/schedules/": [
        get("/api/v1/schedules/", API_MEMBERS),
        post("/api/v1/schedules/", API_WRITERS, job="{job}", **TIMES),
    ],
    "api/v1/schedules/<int:pk>/": [
        get("/api/v1/schedules/{schedule}/", API_IN_PROJECT),
        Visit("PATCH", "/api/v1/schedules/{schedule}/", API_OWN, {"at": "03:00"}),
        Visit("DELETE", "/api/v1/schedules/{schedule}/", "401 404 403 403 204 204"),
    ],
    "api/v1/schedules/<int:pk>/pause/": [post("/api/v1/schedules/{schedule}/pause/", "401 404 403 403 200 200")],
    "api/v1/schedules/<int:pk>/resume/": [post("/api/v1/schedules/{schedule}/resume/", API_OWN)],
    "api/v1/schedules/<int:pk>/submit/": [post("/api/v1/schedules/{schedule}/submit/", "401 404 403 403 201 403")],
    "api/v1/schedules/<int:schedule_pk>/runs/": [get("/api/v1/schedules/{schedule}/runs/", API_IN_PROJECT)],
}
