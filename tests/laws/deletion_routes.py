"""What each role gets at the routes that delete code versions: a part of ``route_matrix``."""

from typing import Any

from django.utils import timezone

from portal.accounts.models import User
from portal.projects.deletable import KEPT_FOR
from portal.projects.models import CodeVersion, Membership, Project
from tests.laws.people import World
from tests.laws.route_words import (
    ADMINS,
    API_ADMINS,
    API_IN_PROJECT,
    API_MEMBERS,
    API_OWNERS,
    DONE_BY_ADMINS,
    DONE_BY_OWNERS,
    MEMBERS,
    OWNERS,
    Visit,
    get,
    post,
)

FROM_TRASH = "401 404 404 404 200 200"
FROM_TRASH_GONE = "401 404 404 404 204 204"
DELETION_ROUTES: dict[str, list[Visit]] = {
    "projects/<int:pk>/code/delete": [
        get("/projects/{project}/code/delete", "302 404 404 200 200 200"),
        get("/projects/{project}/code/delete?unused=1", "302 404 404 302 200 200"),
        get("/projects/{project}/code/delete?version={spare_version}", "302 404 404 200 200 200"),
        post("/projects/{project}/code/delete", "302 404 404 302- 302 302", version="{spare_version}"),
        post("/projects/{project}/code/delete", "302 404 404 302- 302- 302-", version="{code_number}"),
    ],
    "projects/<int:pk>/delete": [
        get("/projects/{project}/delete", OWNERS),
        get("/projects/{idle_project}/delete", OWNERS),
        post("/projects/{idle_project}/delete", "302 404 404 404 302 302", name="Idle"),
        post("/projects/{idle_project}/delete", "302 404 404 404 400 400", name="idle"),
        post("/projects/{project}/delete", "302 404 404 404 400 400", name="Idle"),
    ],
    "accounts/export/": [get("/accounts/export/", MEMBERS)],
    "admin/users/<int:pk>/export": [post("/admin/users/{bob}/export", ADMINS)],
    "admin/users/<int:pk>/erase": [
        get("/admin/users/{bob}/erase", ADMINS),
        get("/admin/users/{left}/erase", ADMINS),
        post("/admin/users/{left}/erase", DONE_BY_ADMINS, name="dora", jobs="delete"),
        post("/admin/users/{bob}/erase", "302 404 404 404 404 400", name="bob", jobs="keep"),
    ],
    "api/v1/me/export/": [get("/api/v1/me/export/", API_MEMBERS)],
    "api/v1/users/<int:pk>/export/": [post("/api/v1/users/{bob}/export/", API_ADMINS)],
    "api/v1/users/<int:pk>/erasure/": [
        get("/api/v1/users/{bob}/erasure/", API_ADMINS),
        post("/api/v1/users/{left}/erasure/", "401 404 404 404 404 202", name="dora", delete_jobs=False),
        post("/api/v1/users/{bob}/erasure/", "401 404 404 404 404 409", name="bob", delete_jobs=False),
    ],
    "trash/projects/": [get("/trash/projects/", MEMBERS)],
    "trash/projects/(?P<pk>[0-9]{1,18})/(?P<what>restore|erase)": [
        post("/trash/projects/{deleted_project}/restore", DONE_BY_OWNERS),
        post("/trash/projects/{deleted_project}/erase", DONE_BY_OWNERS),
        post("/trash/projects/{project}/restore", "302 404 404 404 404 404"),
    ],
    "api/v1/projects/<int:pk>/deletion/": [
        get("/api/v1/projects/{project}/deletion/", API_OWNERS),
        post("/api/v1/projects/{idle_project}/deletion/", "401 404 403 403 204 204", name="Idle"),
        post("/api/v1/projects/{project}/deletion/", "401 404 403 403 400 400", name="Idle"),
        get("/api/v1/projects/{deleted_project}/deletion/", "401 404 404 404 404 404"),
    ],
    "api/v1/trash/projects/": [get("/api/v1/trash/projects/", API_MEMBERS)],
    "api/v1/trash/projects/<int:pk>/": [Visit("DELETE", "/api/v1/trash/projects/{deleted_project}/", FROM_TRASH_GONE)],
    "api/v1/trash/projects/<int:pk>/restore/": [
        post("/api/v1/trash/projects/{deleted_project}/restore/", FROM_TRASH_GONE)
    ],
    "trash/code/": [get("/trash/code/", MEMBERS)],
    "trash/code/(?P<pk>[0-9]{1,18})/(?P<what>restore|erase)": [
        post("/trash/code/{deleted_version}/restore", DONE_BY_OWNERS),
        post("/trash/code/{deleted_version}/erase", DONE_BY_OWNERS),
        post("/trash/code/{code}/restore", "302 404 404 404 404 404"),
    ],
    "api/v1/projects/<int:project_pk>/code/deletion/": [
        post("/api/v1/projects/{project}/code/deletion/", "401 404 403 200- 200 200", numbers=["{spare_version}"]),
        post("/api/v1/projects/{project}/code/deletion/", "401 404 403 400 400 400"),
    ],
    "api/v1/projects/<int:project_pk>/code/<int:number>/deletion/": [
        get("/api/v1/projects/{project}/code/{code_number}/deletion/", API_IN_PROJECT)
    ],
    "api/v1/trash/code/": [get("/api/v1/trash/code/", API_MEMBERS)],
    "api/v1/trash/code/<int:pk>/": [Visit("DELETE", "/api/v1/trash/code/{deleted_version}/", FROM_TRASH_GONE)],
    "api/v1/trash/code/<int:pk>/restore/": [post("/api/v1/trash/code/{deleted_version}/restore/", FROM_TRASH)],
}


def deletions_of(world: World) -> dict[str, Any]:
    """Return versions and projects of Alice's that can be deleted, and some that are in the trash."""

    def version(number: int, **more: Any) -> CodeVersion:
        same = {name: getattr(world.code, name) for name in ("sha256", "size", "files", "guess", "upload_name")}
        row: CodeVersion = CodeVersion.objects.create(
            project=world.project, number=number, created_by=world.alice, **same, **more
        )
        return row

    def project(name: str, **more: Any) -> Project:
        row: Project = Project.objects.create(name=name, created_by=world.alice, **more)
        for user, role in ((world.alice, "owner"), (world.bob, "member"), (world.victor, "viewer")):
            Membership.objects.create(project=row, user=user, role=role)
        return row

    now = timezone.now()
    trashed = {"deleted_at": now, "deleted_by": world.alice, "erase_at": now + KEPT_FOR}
    spare = version(3)
    version(4)
    return {
        "deleted_version": version(2, **trashed).pk,
        "spare_version": spare.number,
        "code_number": world.code.number,
        "left": User.objects.create(username="dora", email="dora@example.org", is_active=False).pk,
        "idle_project": project("Idle").pk,
        "deleted_project": project("Deleted", **trashed).pk,
    }
