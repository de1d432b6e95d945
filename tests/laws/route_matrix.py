"""The status that every route returns to every role: the table behind ``test_route_matrix``.

One ``Visit`` per route and method (and more where it matters). ``expect`` has one status per person, in the order of
``people.ROLES``: anonymous, Charlie (a stranger to the project), Victor (viewer), Bob (member), Alice (owner), Ada
(admin). A minus after a status means: refused in a friendly way, nothing may have changed. Statuses of 400 and above,
and all answers to anonymous visitors, mean that anyway.
"""

import io
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import Group
from django.contrib.auth.tokens import default_token_generator
from django.utils import timezone
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from portal.accounts import services as accounts
from portal.accounts.models import ApiToken, SavedView
from portal.cluster import agent_package
from portal.cluster import services as cluster
from portal.cluster.models import Reservation
from portal.environments import hosts
from portal.home import wall as walls
from portal.jobs import outputs
from portal.jobs.models import LogStream
from portal.projects import services as projects
from portal.projects.models import Membership
from portal.whatif import services as whatif
from tests.laws.dataset_routes import DATASET_ROUTES, datasets_of
from tests.laws.deletion_routes import DELETION_ROUTES, deletions_of
from tests.laws.environment_routes import BASE, ENVIRONMENT_ROUTES, an_environment
from tests.laws.git_routes import GIT_ROUTES, a_repository
from tests.laws.more_time_routes import MORE_TIME_ROUTES, more_time_of
from tests.laws.network_routes import NETWORK_ROUTES
from tests.laws.notification_routes import NOTIFICATION_ROUTES, notifications_of
from tests.laws.people import CANARY, World
from tests.laws.route_words import (
    ADMINS,
    ANYBODY,
    API_ADMINS,
    API_IN_PROJECT,
    API_MEMBERS,
    API_ON_JOB,
    API_OWNERS,
    API_WRITERS,
    DONE,
    DONE_BY_ADMINS,
    DONE_BY_OWNERS,
    IN_PROJECT,
    MEMBERS,
    NO_PASSWORD,
    NODES_ONLY,
    ON_JOB,
    OWNERS,
    Visit,
    get,
    post,
)
from tests.laws.schedule_routes import SCHEDULE_ROUTES, schedules_of
from tests.laws.secret_routes import SECRET_ROUTES, secrets_of
from tests.laws.trash_routes import GONE, TRASH_ROUTES, trash_of
from tests.portal.files import tiny_png


def names(world: World) -> dict[str, Any]:
    """Return the names used in addresses and forms of the table; all are Alice's or the lab's unless named otherwise."""
    _, invite = accounts.create_invite(world.ada)
    wall_link, wall_secret = walls.create_link(world.ada, "Corridor", names_people=True)
    return {
        "project": world.project.pk,
        "view": SavedView.objects.create(user=world.alice, list="jobs", name="Hers", query="state=failed").pk,
        "job": world.jobs["QUEUED"].pk,
        "held": world.jobs["HELD"].pk,
        "running": world.running.pk,
        "failed": world.jobs["FAILED"].pk,
        "code": world.code.pk,
        "stream": LogStream.objects.get(container__attempt__job=world.running, name="0").pk,
        "token_row": ApiToken.objects.get(user=world.alice).pk,
        "bob_member": Membership.objects.get(user=world.bob).pk,
        "group": Group.objects.get().pk,
        "bob": world.bob.pk,
        "node": world.node.pk,
        "gpu": world.node.gpus.order_by("index")[0].pk,
        "join_token": cluster.token_id(cluster.issue_join_token(world.ada)),
        "agent": agent_package.package().sha256,
        "invite": invite,
        "invite_row": world.ada.invites.get().pk,
        "uid": urlsafe_base64_encode(force_bytes(world.alice.pk)),
        "reset": default_token_generator.make_token(world.alice),
        "environment": world.environment.key,
        "base": BASE,
        "allowed_host": hosts.allow(world.ada, "huggingface.co", world.project, note=f"{CANARY} in a note").pk,
        **an_environment(world),
        **notifications_of(world),
        **a_repository(world),
        **more_time_of(world),
        **trash_of(world),
        **deletions_of(world),
        **schedules_of(world),
        **secrets_of(world),
        **datasets_of(world),
        "container": world.running.attempts.get().containers.get().name,
        "sha256": world.code.sha256,
        "reservation": reserve(world).pk,
        "wall": wall_secret,
        "wall_row": wall_link.pk,
        "shown": show_files(world),
        "simulation": whatif.queue_simulation(world.ada, 7, [("srjf", {})]).pk,
    }


def show_files(world: World) -> int:
    """Store files that pages show as what they are, as outputs and as a version of the code; return its number."""
    for name, content in SHOWN.items():
        outputs.store(world.running.attempts.get(), f"results/{name}", [content])
    files = [(f"p/{name}", io.BytesIO(content)) for name, content in SHOWN.items()]
    return projects.store_code(world.alice, world.project, files, "").number


def reserve(world: World) -> Reservation:
    """Make a reservation for Ada alone: all others may see that it exists, but not for whom."""
    start = timezone.now() + timedelta(hours=1)
    return Reservation.objects.create(
        name="Course", node=world.node, gpus=1, start=start, end=start + timedelta(hours=1)
    )


SHOWN = {
    "plot.png": tiny_png(),
    "sample.wav": b"RIFF\x2c\0\0\0WAVEfmt " + CANARY.encode() + bytes(20),
    "report.html": f"<p>{CANARY} in the report</p>".encode(),
}

NEW_JOB = {
    "launcher": "command",
    "command": "python train.py",
    "min_gpus": 1,
    "max_gpus": 1,
    "time_amount": 1,
    "time_unit": 3600,
    "retries": 0,
    "priority": 0,
    "tier": "standard",
    "key": "tour",
    "environment": "{environment}",
}

TABLE: dict[str, list[Visit]] = {
    **ENVIRONMENT_ROUTES,
    **GIT_ROUTES,
    **NETWORK_ROUTES,
    **NOTIFICATION_ROUTES,
    **MORE_TIME_ROUTES,
    **TRASH_ROUTES,
    **DELETION_ROUTES,
    **SCHEDULE_ROUTES,
    **SECRET_ROUTES,
    **DATASET_ROUTES,
    "": [get("/", MEMBERS)],
    # tests/portal/ops/test_data_admin.py visits all tables
    "admin/data/": [get("/admin/data/", ADMINS)],
    "admin/data/jsi18n/": [get("/admin/data/jsi18n/", ADMINS)],
    "admin/data/(?P<app_label>...)/": [get("/admin/data/jobs/", ADMINS)],
    "admin/data/<app>/<model>/": [
        get("/admin/data/jobs/job/", ADMINS),
        get("/admin/data/accounts/user/", ADMINS),
        get("/admin/data/accounts/user/?password__startswith=p", "302 404 404 404 404 400"),
    ],
    "admin/data/<app>/<model>/<path:object_id>/change/": [
        get("/admin/data/jobs/job/{job}/change/", ADMINS),
        get("/admin/data/jobs/job/x/change/", "302 404 404 404 404 404"),
        post("/admin/data/jobs/job/{job}/change/", "302 404 404 404 404 403", name="Theirs"),
        post("/admin/data/projects/project/{project}/change/", DONE_BY_ADMINS, name="Renamed", description="By Ada"),
    ],
    "home/seen": [post("/home/seen", DONE, until="2026-01-01T00:00:00Z"), post("/home/seen", DONE, until="then")],
    "home/<slug:name>": [
        *(get(f"/home/{name}", MEMBERS) for name in ("cluster", "queue", "runs", "attention")),
        get("/home/nothing", "302 404 404 404 404 404"),
    ],
    "banner/dismiss": [post("/banner/dismiss", DONE_BY_ADMINS)],
    "wall/<str:secret>/": [get("/wall/{wall}/", ANYBODY), get("/wall/wrong/", "404 404 404 404 404 404")],
    "wall/<str:secret>/now": [get("/wall/{wall}/now", ANYBODY), get("/wall/wrong/now", "404 404 404 404 404 404")],
    "admin/walls/": [
        get("/admin/walls/", ADMINS),
        post("/admin/walls/", ADMINS, name="Corridor"),
        post("/admin/walls/", "302 404 404 404 404 400"),
    ],
    "admin/walls/<int:pk>/revoke": [post("/admin/walls/{wall_row}/revoke", DONE_BY_ADMINS)],
    # accounts
    "accounts/sign-in/": [get("/accounts/sign-in/", "200 302 302 302 302 302")],
    "accounts/sign-out/": [post("/accounts/sign-out/", DONE)],
    "accounts/sign-out-everywhere/": [post("/accounts/sign-out-everywhere/", DONE)],
    "accounts/password/": [
        get("/accounts/password/", MEMBERS),
        post("/accounts/password/", "302 200- 200- 200- 200- 200-"),
    ],
    "accounts/password/reset/": [
        get("/accounts/password/reset/", ANYBODY),
        post("/accounts/password/reset/", DONE, email="x@example.org"),
    ],
    "accounts/password/reset/sent/": [get("/accounts/password/reset/sent/", ANYBODY)],
    "accounts/password/reset/<uidb64>/<token>/": [
        get("/accounts/password/reset/{uid}/{reset}/", "302 302 302 302 302 302"),
        get("/accounts/password/reset/{uid}/x-y/", ANYBODY),
        get("/accounts/password/reset/x/x-y/", ANYBODY),
    ],
    "accounts/invite/<str:token>/": [
        get("/accounts/invite/{invite}/", ANYBODY),
        get("/accounts/invite/wrong/", "404 404 404 404 404 404"),
    ],
    "accounts/profile/": [get("/accounts/profile/", MEMBERS), post("/accounts/profile/", NO_PASSWORD)],
    "accounts/tokens/": [
        get("/accounts/tokens/", MEMBERS),
        post("/accounts/tokens/", MEMBERS, name="t", scope="read", days="30"),
    ],
    "accounts/tokens/<int:pk>/revoke/": [post("/accounts/tokens/{token_row}/revoke/", "302 404 404 404 302 404")],
    # people, for admins
    "admin/users/": [get("/admin/users/", ADMINS)],
    "admin/users/(?P<pk>[0-9]{1,18})/(?P<act>make-admin|make-member|activate)/": [
        post(f"/admin/users/{{bob}}/{act}/", DONE_BY_ADMINS) for act in ("make-admin", "make-member", "activate")
    ],
    "admin/users/<int:pk>/deactivate/": [
        get("/admin/users/{bob}/deactivate/", ADMINS),
        post("/admin/users/{bob}/deactivate/", DONE_BY_ADMINS, cancel_waiting="on", reservations="end"),
    ],
    "admin/users/<int:pk>/reset-link/": [post("/admin/users/{bob}/reset-link/", ADMINS)],
    "admin/groups/": [get("/admin/groups/", ADMINS), post("/admin/groups/", DONE_BY_ADMINS, name="new")],
    "admin/groups/<int:pk>/": [
        get("/admin/groups/{group}/", ADMINS),
        post("/admin/groups/{group}/", DONE_BY_ADMINS, names="bob"),
    ],
    "admin/groups/<int:pk>/delete/": [post("/admin/groups/{group}/delete/", DONE_BY_ADMINS)],
    "admin/limits/": [get("/admin/limits/", ADMINS)],
    "admin/limits/users/<int:pk>/": [
        get("/admin/limits/users/{bob}/", ADMINS),
        post("/admin/limits/users/{bob}/", DONE_BY_ADMINS, max_gpus=1),
    ],
    "admin/limits/groups/<int:pk>/": [
        get("/admin/limits/groups/{group}/", ADMINS),
        post("/admin/limits/groups/{group}/", DONE_BY_ADMINS, max_gpus=1),
    ],
    "admin/invites/": [get("/admin/invites/", ADMINS), post("/admin/invites/", ADMINS)],
    "admin/invites/<int:pk>/revoke/": [post("/admin/invites/{invite_row}/revoke/", DONE_BY_ADMINS)],
    "admin/audit/": [get("/admin/audit/", ADMINS)],
    # projects
    "projects/": [get("/projects/", MEMBERS)],
    "projects/new": [get("/projects/new", MEMBERS), post("/projects/new", DONE, name="New")],
    "projects/<int:pk>/": [get("/projects/{project}/", IN_PROJECT)],
    "projects/<int:pk>/edit": [
        get("/projects/{project}/edit", OWNERS),
        post("/projects/{project}/edit", DONE_BY_OWNERS, name="New"),
    ],
    "projects/<int:pk>/archive": [post("/projects/{project}/archive", DONE_BY_OWNERS)],
    "projects/<int:pk>/empty-caches": [post("/projects/{project}/empty-caches", DONE_BY_OWNERS)],
    "projects/<int:pk>/unarchive": [post("/projects/{project}/unarchive", DONE_BY_OWNERS)],
    "projects/<int:pk>/members": [post("/projects/{project}/members", DONE_BY_OWNERS, username="ada", role="viewer")],
    "projects/<int:pk>/members/<int:member>/role": [
        post("/projects/{project}/members/{bob_member}/role", DONE_BY_OWNERS, role="viewer")
    ],
    "projects/<int:pk>/members/<int:member>/remove": [
        post("/projects/{project}/members/{bob_member}/remove", "302 404 404 302 302 302")
    ],
    "projects/<int:pk>/code": [post("/projects/{project}/code", "302 404 403 400 400 400")],
    "projects/<int:pk>/code/<int:number>/": [
        get("/projects/{project}/code/1/", IN_PROJECT),
        get("/projects/{project}/code/1/?path=train.py", IN_PROJECT),
    ],
    "projects/<int:pk>/code/<int:number>/changes": [get("/projects/{project}/code/1/changes", IN_PROJECT)],
    "projects/<int:pk>/code/<int:number>/download": [get("/projects/{project}/code/1/download", IN_PROJECT)],
    "projects/<int:pk>/code/<int:number>/file": [get("/projects/{project}/code/1/file?path=train.py", IN_PROJECT)],
    **{
        f"projects/<int:pk>/code/<int:number>/{part}": [
            get(f"/projects/{{project}}/code/{{shown}}/{part}?path={path}", IN_PROJECT),
            get(f"/projects/{{project}}/code/1/{part}?path=train.py", "302 404 404 404 404 404"),
        ]
        for part, path in (("image", "plot.png"), ("media", "sample.wav"), ("framed", "report.html"))
    },
    "gallery/": [get("/gallery/", MEMBERS)],
    "gallery/<slug:key>/": [get("/gallery/failing/", MEMBERS), get("/gallery/nothing/", "302 404 404 404 404 404")],
    "gallery/<slug:key>/copy": [post("/gallery/failing/copy", DONE)],
    "gallery/<slug:key>/run": [
        post("/gallery/failing/run", DONE),
        post("/gallery/nothing/run", "302 404 404 404 404 404"),
    ],
    # the pages themselves
    "search/": [get("/search/", MEMBERS), get("/search/?q=digits&part=1", MEMBERS)],
    "glossary/": [get("/glossary/", MEMBERS)],
    "help/": [get("/help/", ANYBODY)],
    "help/<path:path>": [
        get("/help/index.html", ANYBODY),
        get("/help/nothing.html", "404 404 404 404 404 404"),
    ],
    "admin/components/": [get("/admin/components/", ADMINS)],
    # jobs
    "jobs/": [get("/jobs/", MEMBERS), get("/jobs/?project={project}", MEMBERS)],
    "jobs/new": [
        get("/jobs/new", MEMBERS),
        get("/jobs/new?code={code}", IN_PROJECT),
        get("/jobs/new?copy={running}", IN_PROJECT),
        post("/jobs/new?code={code}", "302 404 400 302 302 302", **NEW_JOB),
    ],
    "jobs/new/warnings": [get("/jobs/new/warnings?code={code}&environment={environment}", IN_PROJECT)],
    "jobs/selected": [
        post("/jobs/selected", "302 302- 302- 302- 302 302", do="cancel", job=["{job}"]),
        post("/jobs/selected", "302 302- 302- 302- 302- 302-", do="compare", job=["{job}"]),
        post("/jobs/selected", "302 302- 302- 302- 302- 302-", do="nonsense", job=["{job}"]),
    ],
    "jobs/queue": [get("/jobs/queue", MEMBERS)],
    "projects/<int:pk>/jobs": [get("/projects/{project}/jobs", IN_PROJECT)],
    "lists/<slug:key>/columns": [
        post("/lists/jobs/columns", DONE, column=["state"]),
        post("/lists/nothing/columns", "302 404 404 404 404 404", column=["state"]),
    ],
    "lists/<slug:key>/views": [
        post("/lists/jobs/views", DONE, name="Mine", query="state=failed"),
        post("/lists/nothing/views", "302 404 404 404 404 404", name="Mine"),
    ],
    "lists/views/<int:pk>": [
        post("/lists/views/{view}", "302 404 404 404 302 404", do="rename", name="Ours"),
    ],
    "admin/lab/": [get("/admin/lab/", ADMINS), post("/admin/lab/", DONE_BY_ADMINS, hours_granted_by_rule=0)],
    "jobs/<int:pk>/": [
        get("/jobs/{running}/", IN_PROJECT),
        get("/jobs/{failed}/", IN_PROJECT),
        get("/jobs/{job}/", IN_PROJECT),
    ],
    "jobs/(?P<pk>[0-9]{1,18})/(?P<key>log|files|gpus|details)/": [
        get("/jobs/{running}/log/", IN_PROJECT),
        get("/jobs/{running}/files/", IN_PROJECT),
        get("/jobs/{failed}/gpus/", IN_PROJECT),
        get("/jobs/{failed}/details/", IN_PROJECT),
    ],
    "jobs/<int:pk>/live": [
        get("/jobs/{running}/live", IN_PROJECT),
        get("/jobs/{failed}/live?tab=files", IN_PROJECT),
        get("/jobs/{failed}/live?tab=other", "302 404 404 404 404 404"),
    ],
    "jobs/(?P<pk>[0-9]{1,18})/(?P<what>cancel|hold|release|retry|keep|stop-keeping)": [
        post("/jobs/{job}/cancel", ON_JOB),
        post("/jobs/{job}/hold", ON_JOB),
        post("/jobs/{held}/release", ON_JOB),
        post("/jobs/{failed}/retry", "302 404 302- 302 302 302"),
        post("/jobs/{failed}/keep", ON_JOB),
        post("/jobs/{failed}/stop-keeping", ON_JOB),
    ],
    "jobs/<int:pk>/help": [get("/jobs/{job}/help", IN_PROJECT), get("/jobs/{running}/help", IN_PROJECT)],
    "jobs/<int:pk>/change": [post("/jobs/{job}/change", "302 404 302- 302- 302 302-", change="time-1800")],
    "jobs/compare": [get("/jobs/compare?job={running}&job={failed}&job=x&smoothing=much", MEMBERS)],
    "jobs/curves.json": [get("/jobs/curves.json?job={running}&job={failed}&after={running}:0", MEMBERS)],
    "jobs/<int:pk>/edit": [
        get("/jobs/{job}/edit", "302 404 302 302 200 200"),
        get("/jobs/{failed}/edit", "302 404 302 302 200 200"),
        post("/jobs/{job}/edit", ON_JOB, name="renamed", priority=0, time_amount=1, time_unit=3600),
    ],
    "jobs/<int:pk>/training": [get("/jobs/{running}/training", IN_PROJECT)],
    "jobs/<int:pk>/metrics.csv": [get("/jobs/{running}/metrics.csv", IN_PROJECT)],
    "jobs/<int:pk>/log.txt": [get("/jobs/{running}/log.txt", IN_PROJECT)],
    "jobs/<int:pk>/streams/<int:stream_pk>.log": [get("/jobs/{running}/streams/{stream}.log", IN_PROJECT)],
    "jobs/<int:pk>/outputs.zip": [get("/jobs/{running}/outputs.zip", IN_PROJECT)],
    "jobs/<int:pk>/outputs/<path:path>": [get("/jobs/{running}/outputs/results/metrics.txt", IN_PROJECT)],
    "jobs/<int:pk>/checkpoints/<path:path>": [get("/jobs/{running}/checkpoints/last/step.pt", IN_PROJECT)],
    "jobs/<int:pk>/view/<path:path>": [get("/jobs/{running}/view/results/metrics.txt", IN_PROJECT)],
    "jobs/<int:pk>/image/<path:path>": [
        get("/jobs/{running}/image/results/plot.png?size=small", IN_PROJECT),
        get("/jobs/{running}/image/results/metrics.txt", "302 404 404 404 404 404"),
    ],
    "jobs/<int:pk>/media/<path:path>": [
        get("/jobs/{running}/media/results/sample.wav", IN_PROJECT),
        get("/jobs/{running}/media/results/metrics.txt", "302 404 404 404 404 404"),
    ],
    "jobs/<int:pk>/framed/<path:path>": [
        get("/jobs/{running}/framed/results/report.html", IN_PROJECT),
        get("/jobs/{running}/framed/results/metrics.txt", "302 404 404 404 404 404"),
    ],
    # machines
    "nodes/": [get("/nodes/", MEMBERS)],
    "reservations/": [
        get("/reservations/", MEMBERS),
        get("/reservations/?view=month&from=2026-11-23&list=past", MEMBERS),
        post("/reservations/", "302 404 404 404 404 400", name="Course", node="{node}", gpus=1),
    ],
    "reservations/new": [
        get("/reservations/new", ADMINS),
        post("/reservations/new", "302 404 404 404 404 400", name="Course", node="{node}", gpus=1),
    ],
    "reservations/(?P<pk>[0-9]{1,18})/": [get("/reservations/{reservation}/", MEMBERS)],
    "reservations/(?P<pk>[0-9]{1,18})/cancel": [post("/reservations/{reservation}/cancel", DONE_BY_ADMINS)],
    "admin/": [get("/admin/", ADMINS)],
    "admin/hide/(?P<key>processes|mail|site|invitations)": [post("/admin/hide/mail", DONE_BY_ADMINS)],
    "admin/policy/": [
        get("/admin/policy/", ADMINS),
        get("/admin/policy/?policy=nothing", "302 404 404 404 404 404"),
    ],
    "admin/policy/preview/": [
        get("/admin/policy/preview/?policy=fifo", ADMINS),
        get("/admin/policy/preview/?policy=nothing", "302 404 404 404 404 404"),
        post("/admin/policy/preview/?policy=fifo", "302 404 404 404 404 409", ticket="x"),
    ],
    "admin/policy/keep/": [post("/admin/policy/keep/", "302 404 404 404 404 302-")],
    "admin/policy/undo/": [post("/admin/policy/undo/", "302 404 404 404 404 302-", config=1)],
    "admin/simulations/": [get("/admin/simulations/", ADMINS)],
    "admin/simulations/new": [
        get("/admin/simulations/new", ADMINS),
        get("/admin/simulations/new?policy=nothing", "302 404 404 404 404 404"),
        post("/admin/simulations/new", DONE_BY_ADMINS, days=7, policy="fifo", **{"p0-size": "most"}),
    ],
    "admin/simulations/<int:pk>/": [get("/admin/simulations/{simulation}/", ADMINS)],
    "admin/simulations/<int:pk>/cancel": [post("/admin/simulations/{simulation}/cancel", DONE_BY_ADMINS)],
    "admin/nodes/": [get("/admin/nodes/", ADMINS)],
    "admin/nodes/add": [post("/admin/nodes/add", ADMINS)],
    "admin/nodes/added/(?P<pk>[0-9]{1,18})": [get("/admin/nodes/added/{join_token}", ADMINS)],
    "admin/nodes/(?P<pk>[0-9]{1,18})/": [get("/admin/nodes/{node}/", ADMINS)],
    "admin/nodes/(?P<pk>[0-9]{1,18})/rejoin": [post("/admin/nodes/{node}/rejoin", ADMINS)],
    "admin/nodes/(?P<pk>[0-9]{1,18})/gpus/(?P<gpu>[0-9]{1,18})/(?P<what>quarantine|release)": [
        post(f"/admin/nodes/{{node}}/gpus/{{gpu}}/{act}", DONE_BY_ADMINS) for act in ("quarantine", "release")
    ],
    "admin/nodes/(?P<pk>[0-9]{1,18})/(?P<what>approve|cordon|drain|resume|rotate|revoke|remove)": [
        *(
            post(f"/admin/nodes/{{node}}/{act}", DONE_BY_ADMINS)
            for act in ("approve", "cordon", "drain", "resume", "rotate", "revoke")
        ),
        post("/admin/nodes/{node}/remove", "302 404 404 404 404 302-"),
    ],
    # what GPUs do
    "gpus/": [get("/gpus/", MEMBERS), get("/gpus/?state=mine&q=gpu&node={node}", MEMBERS)],
    "gpus/nodes/<int:pk>/": [get("/gpus/nodes/{node}/", MEMBERS), get("/gpus/nodes/{node}/?window=week", MEMBERS)],
    "gpus/timeline/": [get("/gpus/timeline/", MEMBERS), get("/gpus/timeline/?window=nothing&node=x", MEMBERS)],
    "jobs/<int:pk>/gpus": [
        get("/jobs/{running}/gpus", IN_PROJECT),
        get("/jobs/{job}/gpus?part=resizes", IN_PROJECT),
        get("/jobs/{running}/gpus?part=idle", IN_PROJECT),
        get("/jobs/{running}/gpus?part=other", "302 404 404 404 404 404"),
    ],
    # usage
    "usage/": [get("/usage/", MEMBERS), get("/usage/?by=project&project={project}", "302 400 200 200 200 200")],
    "usage/usage.csv": [
        get("/usage/usage.csv", MEMBERS),
        get("/usage/usage.csv?user={bob}", "302 400 400 200 400 200"),
    ],
    "usage/ledger/": [get("/usage/ledger/", MEMBERS)],
    "usage/ledger.csv": [get("/usage/ledger.csv", MEMBERS)],
    # REST
    "api/docs/": [get("/api/docs/", MEMBERS)],
    "api/schema/": [get("/api/schema/", API_MEMBERS)],
    "api/(?P<rest>.*)": [get("/api/v1/nothing/", "404 404 404 404 404 404"), get("/api/", "404 404 404 404 404 404")],
    "api/v1/me/": [get("/api/v1/me/", API_MEMBERS)],
    "api/v1/tokens/": [
        get("/api/v1/tokens/", API_MEMBERS),
        post("/api/v1/tokens/", "401 201 201 201 201 201", name="t"),
    ],
    "api/v1/tokens/<int:pk>/": [
        get("/api/v1/tokens/{token_row}/", "401 404 404 404 200 404"),
        Visit("DELETE", "/api/v1/tokens/{token_row}/", "401 404 404 404 204 404"),
    ],
    "api/v1/limits/": [get("/api/v1/limits/", API_MEMBERS)],
    "api/v1/limits/users/<str:username>/": [
        get("/api/v1/limits/users/bob/", "401 404 404 200 404 200"),
        Visit("PUT", "/api/v1/limits/users/bob/", API_ADMINS, {"max_gpus": 3}),
    ],
    "api/v1/limits/groups/<path:name>/": [
        get("/api/v1/limits/groups/students/", "401 200 404 404 404 200"),
        Visit("PUT", "/api/v1/limits/groups/students/", API_ADMINS, {"max_gpus": 3}),
    ],
    "api/v1/users/": [get("/api/v1/users/", API_ADMINS)],
    "api/v1/users/<int:pk>/": [get("/api/v1/users/{bob}/", API_ADMINS)],
    **{
        f"api/v1/users/<int:pk>/{act}/": [post(f"/api/v1/users/{{bob}}/{act}/", API_ADMINS)]
        for act in ("activate", "deactivate", "make-admin", "make-member")
    },
    "api/v1/groups/": [
        get("/api/v1/groups/", API_ADMINS),
        post("/api/v1/groups/", "401 404 404 404 404 201", name="New"),
    ],
    "api/v1/groups/<int:pk>/": [
        get("/api/v1/groups/{group}/", API_ADMINS),
        Visit("DELETE", "/api/v1/groups/{group}/", "401 404 404 404 404 204"),
    ],
    "api/v1/groups/<int:pk>/members/": [
        Visit("PUT", "/api/v1/groups/{group}/members/", API_ADMINS, {"members": ["bob"]})
    ],
    "api/v1/invitations/": [
        get("/api/v1/invitations/", API_ADMINS),
        post("/api/v1/invitations/", "401 404 404 404 404 201", email="new@example.org"),
    ],
    "api/v1/invitations/<int:pk>/": [
        get("/api/v1/invitations/{invite_row}/", API_ADMINS),
        Visit("DELETE", "/api/v1/invitations/{invite_row}/", "401 404 404 404 404 204"),
    ],
    "api/v1/audit/": [get("/api/v1/audit/", API_ADMINS)],
    "api/v1/projects/": [
        get("/api/v1/projects/", API_MEMBERS),
        post("/api/v1/projects/", "401 201 201 201 201 201", name="New"),
    ],
    "api/v1/projects/<int:pk>/": [
        get("/api/v1/projects/{project}/", API_IN_PROJECT),
        Visit("PATCH", "/api/v1/projects/{project}/", API_OWNERS, {"name": "New"}),
        Visit("DELETE", "/api/v1/projects/{project}/", "401 404 403 403 204 204"),
    ],
    "api/v1/projects/<int:pk>/empty-caches/": [
        post("/api/v1/projects/{project}/empty-caches/", "401 404 403 403 204 204")
    ],
    "api/v1/projects/<int:pk>/restore/": [post("/api/v1/projects/{project}/restore/", API_OWNERS)],
    "api/v1/projects/<int:project_pk>/members/": [
        get("/api/v1/projects/{project}/members/", API_IN_PROJECT),
        post("/api/v1/projects/{project}/members/", "401 404 403 403 201 201", username="charlie"),
    ],
    "api/v1/projects/<int:project_pk>/members/<str:username>/": [
        Visit("PATCH", "/api/v1/projects/{project}/members/bob/", API_OWNERS, {"role": "viewer"}),
        Visit("DELETE", "/api/v1/projects/{project}/members/bob/", "401 404 403 204 204 204"),
    ],
    "api/v1/projects/<int:project_pk>/code/": [
        get("/api/v1/projects/{project}/code/", API_IN_PROJECT),
        Visit("POST", "/api/v1/projects/{project}/code/?name=train.py", API_WRITERS, raw=b"print(1)\n"),
    ],
    "api/v1/projects/<int:project_pk>/code/<int:number>/": [
        get("/api/v1/projects/{project}/code/1/", API_IN_PROJECT),
        Visit("DELETE", "/api/v1/projects/{project}/code/1/", "401 404 403 403 409 409"),
        Visit("DELETE", "/api/v1/projects/{project}/code/{spare_version}/", GONE),
    ],
    "api/v1/projects/<int:project_pk>/code/<int:number>/files/": [
        get("/api/v1/projects/{project}/code/1/files/", API_IN_PROJECT)
    ],
    "api/v1/projects/<int:project_pk>/code/<int:number>/files/<path:path>": [
        get("/api/v1/projects/{project}/code/1/files/train.py", API_IN_PROJECT)
    ],
    "api/v1/projects/<int:project_pk>/code/<int:number>/diff/": [
        get("/api/v1/projects/{project}/code/1/diff/", API_IN_PROJECT)
    ],
    "api/v1/projects/<int:project_pk>/code/<int:number>/download/": [
        get("/api/v1/projects/{project}/code/1/download/", API_IN_PROJECT)
    ],
    "api/v1/gallery/": [get("/api/v1/gallery/", API_MEMBERS)],
    "api/v1/gallery/<slug:key>/use/": [post("/api/v1/gallery/failing/use/", API_WRITERS, project="{project}")],
    "api/v1/jobs/": [
        get("/api/v1/jobs/", API_MEMBERS),
        get("/api/v1/jobs/?project={project}", API_MEMBERS),
        post("/api/v1/jobs/", API_WRITERS, project="{project}", launcher="command", entry="python train.py"),
    ],
    "api/v1/jobs/<int:pk>/": [
        get("/api/v1/jobs/{running}/", API_IN_PROJECT),
        get("/api/v1/jobs/{failed}/", API_IN_PROJECT),
        Visit("PATCH", "/api/v1/jobs/{job}/", API_ON_JOB, {"priority": 2, "tags": ["baseline"]}),
        Visit("PATCH", "/api/v1/jobs/{running}/", "401 404 403 403 409 409", {"priority": 2}),
        Visit("DELETE", "/api/v1/jobs/{failed}/", GONE),
        Visit("DELETE", "/api/v1/jobs/{running}/", "401 404 403 403 409 409"),
    ],
    "api/v1/jobs/<int:pk>/cancel/": [post("/api/v1/jobs/{job}/cancel/", API_ON_JOB)],
    "api/v1/jobs/<int:pk>/hold/": [post("/api/v1/jobs/{job}/hold/", API_ON_JOB)],
    "api/v1/jobs/<int:pk>/release/": [post("/api/v1/jobs/{held}/release/", API_ON_JOB)],
    "api/v1/jobs/<int:pk>/retry/": [post("/api/v1/jobs/{failed}/retry/", API_WRITERS)],
    "api/v1/jobs/<int:job_pk>/forecast/": [
        get("/api/v1/jobs/{job}/forecast/", API_IN_PROJECT),
        get("/api/v1/jobs/{running}/forecast/", API_IN_PROJECT),
    ],
    "api/v1/jobs/<int:job_pk>/forecast/changes/": [
        get("/api/v1/jobs/{job}/forecast/changes/", API_IN_PROJECT),
        post("/api/v1/jobs/{job}/forecast/changes/", "401 404 403 403 201 403", change="time-1800"),
    ],
    "api/v1/jobs/<int:job_pk>/events/": [get("/api/v1/jobs/{running}/events/", API_IN_PROJECT)],
    "api/v1/jobs/<int:job_pk>/attempts/": [get("/api/v1/jobs/{running}/attempts/", API_IN_PROJECT)],
    "api/v1/jobs/<int:job_pk>/attempts/<int:number>/": [get("/api/v1/jobs/{failed}/attempts/1/", API_IN_PROJECT)],
    "api/v1/jobs/<int:job_pk>/streams/": [get("/api/v1/jobs/{running}/streams/", API_IN_PROJECT)],
    "api/v1/jobs/<int:job_pk>/log/": [
        get("/api/v1/jobs/{running}/log/", API_IN_PROJECT),
        get("/api/v1/jobs/{running}/log/?stream={stream}", API_IN_PROJECT),
    ],
    "api/v1/jobs/<int:job_pk>/log/follow/": [get("/api/v1/jobs/{running}/log/follow/", API_IN_PROJECT)],
    "api/v1/jobs/<int:job_pk>/metrics/": [get("/api/v1/jobs/{running}/metrics/", API_IN_PROJECT)],
    "api/v1/jobs/<int:job_pk>/progress/": [
        get("/api/v1/jobs/{running}/progress/", API_IN_PROJECT),
        get("/api/v1/jobs/{job}/progress/", "401 404 404 404 404 404"),
    ],
    "api/v1/jobs/<int:job_pk>/checkpoints/": [get("/api/v1/jobs/{running}/checkpoints/", API_IN_PROJECT)],
    "api/v1/jobs/<int:job_pk>/checkpoints/<path:path>": [
        get("/api/v1/jobs/{running}/checkpoints/last/step.pt", API_IN_PROJECT)
    ],
    "api/v1/jobs/<int:job_pk>/outputs/": [get("/api/v1/jobs/{running}/outputs/", API_IN_PROJECT)],
    "api/v1/jobs/<int:job_pk>/outputs/<path:path>": [
        get("/api/v1/jobs/{running}/outputs/results/metrics.txt", API_IN_PROJECT)
    ],
    "api/v1/jobs/<int:job_pk>/band/": [get("/api/v1/jobs/{running}/band/", API_IN_PROJECT)],
    "api/v1/jobs/<int:job_pk>/readings/": [
        get("/api/v1/jobs/{running}/readings/", API_IN_PROJECT),
        get("/api/v1/jobs/{job}/readings/", "401 404 404 404 404 404"),
    ],
    "api/v1/queue/": [get("/api/v1/queue/", API_MEMBERS)],
    "api/v1/gpus/": [get("/api/v1/gpus/", API_MEMBERS)],
    "api/v1/gpus/<int:pk>/readings/": [get("/api/v1/gpus/{gpu}/readings/?window=6h", API_MEMBERS)],
    "api/v1/occupancy/": [get("/api/v1/occupancy/", API_MEMBERS)],
    "api/v1/timeline/": [get("/api/v1/timeline/", API_MEMBERS)],
    "api/v1/nodes/": [get("/api/v1/nodes/", API_MEMBERS)],
    "api/v1/reservations/": [
        get("/api/v1/reservations/", API_MEMBERS),
        post("/api/v1/reservations/", "401 404 404 404 404 400", name="Course"),
    ],
    "api/v1/reservations/<int:pk>/": [
        Visit("DELETE", "/api/v1/reservations/{reservation}/", "401 404 404 404 404 204"),
    ],
    "api/v1/nodes/join-token/": [post("/api/v1/nodes/join-token/", "401 404 404 404 404 201")],
    "api/v1/nodes/<int:pk>/": [
        get("/api/v1/nodes/{node}/", API_MEMBERS),
        Visit("DELETE", "/api/v1/nodes/{node}/", "401 404 404 404 404 409"),
    ],
    **{
        f"api/v1/nodes/<int:pk>/{act}/": [post(f"/api/v1/nodes/{{node}}/{act}/", API_ADMINS)]
        for act in ("approve", "cordon", "drain", "resume", "rotate-token", "revoke-token")
    },
    "api/v1/nodes/<int:pk>/rejoin-token/": [post("/api/v1/nodes/{node}/rejoin-token/", "401 404 404 404 404 201")],
    "api/v1/nodes/<int:pk>/gpus/<int:index>/quarantine/": [post("/api/v1/nodes/{node}/gpus/0/quarantine/", API_ADMINS)],
    "api/v1/nodes/<int:pk>/gpus/<int:index>/release/": [
        post("/api/v1/nodes/{node}/gpus/0/release/", "401 404 404 404 404 409")
    ],
    "api/v1/usage/": [
        get("/api/v1/usage/", API_MEMBERS),
        get("/api/v1/usage/?by=month&project={project}", "401 400 200 200 200 200"),
    ],
    "api/v1/ledger/": [get("/api/v1/ledger/", API_MEMBERS)],
    "api/v1/policy/": [
        get("/api/v1/policy/", API_MEMBERS),
        Visit("PUT", "/api/v1/policy/", API_ADMINS, {"policy": "fifo"}),
    ],
    "api/v1/policy/preview/": [post("/api/v1/policy/preview/", API_ADMINS, policy="fifo")],
    "api/v1/policy/undo/": [post("/api/v1/policy/undo/", "401 404 404 404 404 409")],
    "api/v1/policy/history/": [get("/api/v1/policy/history/", API_ADMINS)],
    "api/v1/cycles/": [get("/api/v1/cycles/", API_ADMINS)],
    "api/v1/policies/": [get("/api/v1/policies/", API_MEMBERS)],
    "api/v1/simulations/": [
        get("/api/v1/simulations/", API_ADMINS),
        post("/api/v1/simulations/", "401 404 404 404 404 201", policies=[{"policy": "round_robin"}]),
    ],
    "api/v1/simulations/<int:pk>/": [get("/api/v1/simulations/{simulation}/", API_ADMINS)],
    "api/v1/simulations/<int:pk>/cancel/": [post("/api/v1/simulations/{simulation}/cancel/", API_ADMINS)],
    # for machines that are not nodes yet: nothing in it is secret
    "agent/install.sh": [get("/agent/install.sh", ANYBODY)],
    "agent/schedulearn-agent-<str:sha256>.tar.gz": [get("/agent/schedulearn-agent-{agent}.tar.gz", ANYBODY)],
    # what only a node's token opens; test_nodes_see_their_own_work_only visits with those
    "agent/v1/join": [
        post("/agent/v1/join", "403 403 403 403 403 403", join_token="x", name="n", runtime="docker", facts={})
    ],
    "agent/v1/sync": [post("/agent/v1/sync", NODES_ONLY)],
    "agent/v1/token": [post("/agent/v1/token", NODES_ONLY)],
    "agent/v1/erased-jobs": [post("/agent/v1/erased-jobs", NODES_ONLY)],
    "agent/v1/wait": [get("/agent/v1/wait", NODES_ONLY)],
    "agent/v1/code/<str:sha256>": [get("/agent/v1/code/{sha256}", NODES_ONLY)],
    "agent/v1/containers/<str:name>/logs/<str:stream>": [
        Visit("POST", "/agent/v1/containers/{container}/logs/0?offset=0", NODES_ONLY, raw=b"x")
    ],
    "agent/v1/containers/<str:name>/identity": [get("/agent/v1/containers/{container}/identity", NODES_ONLY)],
    "agent/v1/containers/<str:name>/rings": [post("/agent/v1/containers/{container}/rings", NODES_ONLY, rings=[])],
    "agent/v1/containers/<str:name>/outputs/<path:path>": [
        Visit("PUT", "/agent/v1/containers/{container}/outputs/x.txt", NODES_ONLY, raw=b"x")
    ],
    "agent/v1/containers/<str:name>/datasets/<str:sha256>/manifest": [
        get("/agent/v1/containers/{container}/datasets/" + "0" * 64 + "/manifest", NODES_ONLY)
    ],
    "agent/v1/containers/<str:name>/datasets/<str:sha256>/contents": [
        get("/agent/v1/containers/{container}/datasets/" + "0" * 64 + "/contents", NODES_ONLY)
    ],
    "agent/v1/containers/<str:name>/secrets": [get("/agent/v1/containers/{container}/secrets", NODES_ONLY)],
    "agent/v1/containers/<str:name>/inputs": [get("/agent/v1/containers/{container}/inputs", NODES_ONLY)],
    "agent/v1/containers/<str:name>/inputs/<str:sha256>": [
        get("/agent/v1/containers/{container}/inputs/" + "0" * 64, NODES_ONLY)
    ],
    "agent/v1/containers/<str:name>/checkpoints": [
        get("/agent/v1/containers/{container}/checkpoints", NODES_ONLY),
        post("/agent/v1/containers/{container}/checkpoints", NODES_ONLY),
    ],
    "agent/v1/containers/<str:name>/checkpoints/<str:sha256>": [
        get("/agent/v1/containers/{container}/checkpoints/{sha256}", NODES_ONLY),
        Visit("PUT", "/agent/v1/containers/{container}/checkpoints/{sha256}", NODES_ONLY, raw=b"x"),
    ],
}

SOCKETS: dict[str, str] = {
    r"^ws/jobs/(?P<job_id>[0-9]{1,18})/log/$": "no no yes yes yes yes",
    r"^ws/page/$": "no yes yes yes yes yes",
    "": "no no no no no no",
}
"""The roles that are admitted, by the pattern of a websocket route."""

SOCKET_ADDRESSES: dict[str, Callable[[World], str]] = {
    r"^ws/jobs/(?P<job_id>[0-9]{1,18})/log/$": lambda world: f"/ws/jobs/{world.running.pk}/log/",
    r"^ws/page/$": lambda world: "/ws/page/?topics=lab,mine,nodes,gpus,charts",
    "": lambda world: "/ws/anything/",
}
