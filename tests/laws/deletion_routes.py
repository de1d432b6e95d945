"""What each role gets at the routes that delete code versions: a part of ``route_matrix``."""

from typing import Any

from django.utils import timezone

from portal.projects.deletable import KEPT_FOR
from portal.projects.models import CodeVersion
from tests.laws.people import World
from tests.laws.route_words import API_IN_PROJECT, API_MEMBERS, DONE_BY_OWNERS, MEMBERS, Visit, get, post

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
    """Return a version of Alice's project that nothing uses, and one that is in the trash."""

    def version(number: int, **more: Any) -> CodeVersion:
        same = {name: getattr(world.code, name) for name in ("sha256", "size", "files", "guess", "upload_name")}
        row: CodeVersion = CodeVersion.objects.create(
            project=world.project, number=number, created_by=world.alice, **same, **more
        )
        return row

    now = timezone.now()
    gone = version(2, deleted_at=now, deleted_by=world.alice, erase_at=now + KEPT_FOR)
    spare = version(3)
    version(4)
    return {"deleted_version": gone.pk, "spare_version": spare.number, "code_number": world.code.number}
