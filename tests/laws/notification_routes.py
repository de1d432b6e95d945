"""What each role gets at the routes of notices, channels and webhooks: a part of ``route_matrix``."""

from typing import Any

from django.utils import timezone

from portal.notifications import kinds, services, unsubscribe
from portal.notifications.messages import JobSucceeded
from portal.notifications.models import Delivery, Notice, NotificationSettings
from tests.laws.people import CANARY, SECRET, World
from tests.laws.route_words import (
    ADMINS,
    ANYBODY,
    API_ADMINS,
    API_MEMBERS,
    API_OWNERS,
    DONE,
    DONE_BY_ADMINS,
    DONE_BY_OWNERS,
    IN_PROJECT,
    MEMBERS,
    Visit,
    get,
    post,
)

OWN_ROW = "302 404 404 404 302 404"
"""Acts on a row of Alice's own."""
OWNERS_PAGE = "302 404 404 404 200 200"
DONE_IN_PROJECT = "302 404 302 302 302 302"
REFUSED_FOR_ADMINS = "302 404 404 404 404 400"
HOOK = f"https://hooks.example.org/{SECRET}"
EVENTS = ["job.ended"]
URL = {"url": "https://hooks.example.org/new", "events": EVENTS}
API_WEBHOOKS = "401 404 403 403 201 201"
API_DONE = "401 404 403 403 202 202"


def notifications_of(world: World) -> dict[str, Any]:
    """Make a notice, a channel and a webhook of Alice's, and one of the lab's; return the names of their rows."""
    NotificationSettings.objects.create(pk=1, chosen=True, channel_types=["webhook", "slack"])
    now, job = timezone.now(), world.running
    content = JobSucceeded(job.pk, f"{CANARY} job", world.project.name, 5).data()
    rows = {"kind": kinds.ENDED, "content": content, "user": world.alice, "project": world.project, "job": job}
    notice = Notice.objects.create(**rows, path=f"/jobs/{job.pk}/", shown=True, expanded_at=now)
    channel, _ = services.add_channel(world.alice, "webhook", f"{CANARY} channel", {"url": HOOK})
    webhook, _ = services.add_webhook(world.alice, world.project, HOOK, EVENTS, f"{CANARY} webhook")
    lab, _ = services.add_webhook(world.ada, None, HOOK, EVENTS, f"{CANARY} of the lab")
    delivery = Delivery.objects.create(
        notice=notice, channel=webhook, event="job.ended", due_at=now, status=Delivery.Status.GAVE_UP, error="gone"
    )
    return {
        "notice": notice.pk,
        "channel": channel.pk,
        "webhook": webhook.pk,
        "lab_webhook": lab.pk,
        "delivery": delivery.pk,
        "unsubscribe": unsubscribe.link(world.alice.pk, kinds.ENDED).rstrip("/").rpartition("/")[2],
    }


NOTIFICATION_ROUTES: dict[str, list[Visit]] = {
    "notices/": [get("/notices/", MEMBERS)],
    "notices/unread": [get("/notices/unread", MEMBERS)],
    "notices/read": [post("/notices/read", DONE)],
    "notices/<int:pk>/open": [get("/notices/{notice}/open", OWN_ROW)],
    "accounts/notifications/": [
        get("/accounts/notifications/", MEMBERS),
        post("/accounts/notifications/", DONE, digest="soon", digest_at="08:00", zone="Europe/Berlin", mail=["ended"]),
        post("/accounts/notifications/", "302 400 400 400 400 400", digest="never"),
    ],
    "accounts/notifications/test-mail": [post("/accounts/notifications/test-mail", DONE)],
    "accounts/notifications/unmute/<int:pk>": [
        post("/accounts/notifications/unmute/{project}", "302 404 404 404 404 404")
    ],
    "accounts/notifications/channels/new/<slug:type>": [
        get("/accounts/notifications/channels/new/slack", MEMBERS),
        get("/accounts/notifications/channels/new/ntfy", "302 302 302 302 302 302"),
        get("/accounts/notifications/channels/new/nothing", "302 302 302 302 302 302"),
        post("/accounts/notifications/channels/new/webhook", MEMBERS, url="https://hooks.example.org/x"),
        post("/accounts/notifications/channels/new/webhook", "302 400 400 400 400 400", url="https://10.0.0.1/"),
    ],
    "accounts/notifications/channels/(?P<pk>[0-9]{1,18})/(?P<act>test|remove|pause|resume)": [
        post(f"/accounts/notifications/channels/{{channel}}/{act}", OWN_ROW)
        for act in ("test", "pause", "resume", "remove")
    ],
    "notifications/unsubscribe/<str:token>/": [
        get("/notifications/unsubscribe/{unsubscribe}/", ANYBODY),
        get("/notifications/unsubscribe/wrong/", "404 404 404 404 404 404"),
        post("/notifications/unsubscribe/wrong/", "404 404 404 404 404 404"),
    ],
    "projects/<int:pk>/notifications": [
        get("/projects/{project}/notifications", IN_PROJECT),
        post("/projects/{project}/notifications", OWNERS_PAGE, **URL),
    ],
    "projects/<int:pk>/notifications/mute": [
        post("/projects/{project}/notifications/mute", DONE_IN_PROJECT, muted="yes")
    ],
    "projects/<int:pk>/notifications/privacy": [
        post("/projects/{project}/notifications/privacy", DONE_BY_OWNERS, private="yes")
    ],
    "webhooks/<int:pk>/": [
        get("/webhooks/{webhook}/", OWNERS_PAGE),
        get("/webhooks/{lab_webhook}/", ADMINS),
        get("/webhooks/{channel}/", "302 404 404 404 404 404"),
        post("/webhooks/{webhook}/", DONE_BY_OWNERS, events=["job.failed"]),
    ],
    "webhooks/(?P<pk>[0-9]{1,18})/(?P<act>test|remove|resume)": [
        *(post(f"/webhooks/{{webhook}}/{act}", DONE_BY_OWNERS) for act in ("test", "resume", "remove")),
        post("/webhooks/{lab_webhook}/remove", DONE_BY_ADMINS),
    ],
    "webhooks/deliveries/<int:pk>/again": [post("/webhooks/deliveries/{delivery}/again", DONE_BY_OWNERS)],
    "admin/notifications/": [get("/admin/notifications/", ADMINS)],
    "admin/notifications/deliveries/<int:pk>/retry": [
        post("/admin/notifications/deliveries/{delivery}/retry", DONE_BY_ADMINS)
    ],
    "admin/notifications/settings": [
        get("/admin/notifications/settings", ADMINS),
        post("/admin/notifications/settings", DONE_BY_ADMINS, allowed_hosts="chat", long_wait_minutes=30),
        post("/admin/notifications/settings", REFUSED_FOR_ADMINS, allowed_hosts="https://chat/x", long_wait_minutes=30),
    ],
    "admin/notifications/templates": [get("/admin/notifications/templates", ADMINS)],
    "admin/notifications/templates/<slug:kind>": [
        get("/admin/notifications/templates/failed", ADMINS),
        get("/admin/notifications/templates/nothing", "302 404 404 404 404 404"),
        post("/admin/notifications/templates/failed", DONE_BY_ADMINS, subject="Lab: {{title}}", intro="Hello"),
        post("/admin/notifications/templates/failed", REFUSED_FOR_ADMINS, subject="{{secret}}"),
    ],
    "admin/notifications/webhooks": [
        get("/admin/notifications/webhooks", ADMINS),
        post("/admin/notifications/webhooks", ADMINS, **URL),
    ],
    # REST
    "api/v1/notices/": [get("/api/v1/notices/", API_MEMBERS)],
    "api/v1/notices/read/": [post("/api/v1/notices/read/", API_MEMBERS, ids=[1])],
    "api/v1/projects/<int:project_pk>/webhooks/": [
        get("/api/v1/projects/{project}/webhooks/", API_OWNERS),
        post("/api/v1/projects/{project}/webhooks/", API_WEBHOOKS, **URL),
    ],
    "api/v1/projects/<int:project_pk>/webhooks/<int:pk>/": [
        get("/api/v1/projects/{project}/webhooks/{webhook}/", API_OWNERS),
        Visit("PATCH", "/api/v1/projects/{project}/webhooks/{webhook}/", API_OWNERS, {"events": ["job.idle"]}),
        Visit("DELETE", "/api/v1/projects/{project}/webhooks/{webhook}/", "401 404 403 403 204 204"),
    ],
    "api/v1/projects/<int:project_pk>/webhooks/<int:pk>/test/": [
        post("/api/v1/projects/{project}/webhooks/{webhook}/test/", API_DONE)
    ],
    "api/v1/projects/<int:project_pk>/webhooks/<int:pk>/resume/": [
        post("/api/v1/projects/{project}/webhooks/{webhook}/resume/", API_OWNERS)
    ],
    "api/v1/projects/<int:project_pk>/webhooks/<int:pk>/deliveries/": [
        get("/api/v1/projects/{project}/webhooks/{webhook}/deliveries/", API_OWNERS)
    ],
    "api/v1/projects/<int:project_pk>/webhooks/<int:pk>/deliveries/<int:delivery_pk>/again/": [
        post("/api/v1/projects/{project}/webhooks/{webhook}/deliveries/{delivery}/again/", API_DONE)
    ],
    "api/v1/webhooks/": [
        get("/api/v1/webhooks/", API_ADMINS),
        post("/api/v1/webhooks/", "401 404 404 404 404 201", **URL),
    ],
    "api/v1/webhooks/<int:pk>/": [
        get("/api/v1/webhooks/{lab_webhook}/", API_ADMINS),
        Visit("PATCH", "/api/v1/webhooks/{lab_webhook}/", API_ADMINS, {"events": ["job.idle"]}),
        Visit("DELETE", "/api/v1/webhooks/{lab_webhook}/", "401 404 404 404 404 204"),
    ],
}
