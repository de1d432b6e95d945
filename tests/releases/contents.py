"""What a portal holds, as JSON: ``python -m tests.releases.contents``; with ``pages`` it also visits its pages as an admin.

Only what must survive each upgrade unchanged: names, states, texts and bytes, not columns.
"""

import hashlib
import json
import os
import sys
from typing import Any


def contents() -> dict[str, Any]:
    from django.contrib.auth.models import Group

    from portal.accounts.models import AuditEntry, User
    from portal.cluster.models import Node
    from portal.jobs import logs
    from portal.jobs.models import Job, LogStream, Output
    from portal.projects import store
    from portal.projects.models import CodeVersion, Membership

    return {
        "users": sorted(User.objects.values_list("username", "email", "is_staff")),
        "groups": sorted(Group.objects.values_list("name", flat=True)),
        "projects": sorted(Membership.objects.values_list("project__name", "user__username", "role")),
        "code": {
            f"{code.project.name} {code.number}": _digest(path.read_bytes())
            for code in CodeVersion.objects.select_related("project")
            if (path := store.path_of(code.sha256)).exists()  # the seed's versions are rows only
        },
        "nodes": sorted((node.name, node.gpus.count()) for node in Node.objects.all()),
        "jobs": {
            str(job.pk): [job.name, job.state, job.attempts.count(), job.events.count()]
            for job in Job.objects.order_by("pk")
        },
        "logs": {
            str(stream.pk): _digest(logs.read(stream, 0, stream.size)) for stream in LogStream.objects.order_by("pk")
        },
        "outputs": sorted(Output.objects.values_list("path", "size", "sha256")),
        "audit": AuditEntry.objects.count(),
    }


def visit_pages() -> None:
    """Raise AssertionError for a page that an admin does not get."""
    from django.test import Client

    from portal.accounts.models import User
    from portal.jobs.models import Job
    from portal.projects.models import CodeVersion

    client = Client()
    client.force_login(User.objects.filter(is_staff=True).order_by("pk")[0])
    code = CodeVersion.objects.order_by("-pk")[0]
    project = f"/projects/{code.project_id}/"
    paths = ["/", "/jobs/", "/jobs/queue", "/projects/", project, f"{project}code/{code.number}/", "/nodes/", "/gpus/"]
    paths += [
        "/gpus/timeline/",
        "/usage/",
        "/usage/ledger/",
        "/reservations/",
        "/admin/",
        "/admin/audit/",
        "/admin/nodes/",
    ]
    paths += [
        "/admin/users/",
        "/admin/policy/",
        "/admin/limits/",
        "/api/v1/jobs/",
        "/api/v1/nodes/",
        "/api/v1/projects/",
    ]
    for job in Job.objects.order_by("pk")[:20]:
        paths += [f"/jobs/{job.pk}/{tab}" for tab in ("", "log/", "files/", "gpus/", "details/")] + [
            f"/jobs/{job.pk}/log.txt"
        ]
        paths += [f"/jobs/{job.pk}/outputs/{path}" for path in job.outputs.values_list("path", flat=True)]
    for path in paths:
        answer = client.get(path)
        assert answer.status_code == 200, (path, answer.status_code)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    import django

    django.setup()
    if "pages" in sys.argv[1:]:
        from django.conf import settings
        from django.test.utils import setup_test_environment

        setup_test_environment()
        settings.SECURE_SSL_REDIRECT = False
        visit_pages()
    json.dump(contents(), sys.stdout)
