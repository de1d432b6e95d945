"""Processes that tests kill: ``python -m tests.portal.notifications.programs seed|end|deliver|report HOOK_PORT``.

Each prints a line at every step at which it may be killed. ``DJANGO_SETTINGS_MODULE`` and ``SCHEDULEARN_HOME`` are in the
environment.
"""

import json
import sys
import threading
from datetime import timedelta

import django

django.setup()

from django.utils import timezone  # noqa: E402

from portal.jobs.models import Container, Job  # noqa: E402
from portal.notifications import delivery, sending, services  # noqa: E402
from portal.notifications.models import Delivery, Notice, NotificationSettings  # noqa: E402
from tests.portal import jobs_world as world  # noqa: E402

JOBS = 12
delivery.LEASE = timedelta(seconds=2)
delivery.PAUSES = (timedelta(),) * 40  # a killed attempt counts, and the test kills many
delivery.MAILS = delivery.MESSAGES = 3
delivery.MAX_TOGETHER = 0


def step(name: str) -> None:
    print(name, flush=True)


def seed(port: str) -> None:
    """Make jobs that run, of a person with a webhook and a project with one."""
    NotificationSettings.objects.create(pk=1, allowed_hosts=["127.0.0.1"])
    alice = world.make_user("alice", email="alice@example.org")
    project = world.make_project(alice)
    services.add_channel(alice, "webhook", "mine", {"url": f"http://127.0.0.1:{port}/mine"})
    services.add_webhook(alice, project, f"http://127.0.0.1:{port}/project", ["job.ended"])
    node = world.make_node(gpus=JOBS)
    for gpu in node.gpus.all():
        world.run(world.place(world.make_job(project), [gpu]).containers.get())


def end(port: str) -> None:
    """End the jobs that still run, one after the other."""
    for container in Container.objects.filter(state="RUNNING").order_by("pk"):
        step("ends")
        world.exit(container, 0)
        step("ended")


def deliver(port: str) -> None:
    """Empty the outbox, and go on until nothing waits."""
    send = sending.send

    def traced(message: delivery.Message) -> sending.Outcome:
        step("sends")
        outcome = send(message)
        step("sent")
        return outcome

    while Notice.objects.filter(expanded_at=None).exists() or Delivery.objects.filter(status="waiting").exists():
        if delivery.expand():
            step("expanded")
        # Each notice is a message of its own, at once.
        Delivery.objects.filter(status="waiting").update(due_at=timezone.now() - timedelta(seconds=1))
        if not delivery.tick(sender=traced):
            threading.Event().wait(0.1)  # until the lease of one that was killed has run out
            continue
        step("recorded")


def report(port: str) -> None:
    found = {
        "succeeded": list(Job.objects.filter(state="SUCCEEDED").values_list("pk", flat=True)),
        "uids": [[str(uid), job] for uid, job in Delivery.objects.values_list("uid", "notice__job")],
        "open": Delivery.objects.exclude(status="sent").count(),
    }
    step(json.dumps(found))


if __name__ == "__main__":
    {"seed": seed, "end": end, "deliver": deliver, "report": report}[sys.argv[1]](sys.argv[2])
