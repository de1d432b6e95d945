"""What each role gets at the routes of a project's repository: a part of ``route_matrix``."""

from typing import Any

from portal.projects.git import fetches, files, hosts, sources
from portal.projects.git.models import GitSource
from tests.laws.people import CANARY, World
from tests.laws.route_words import (
    ADMINS,
    API_ADMINS,
    API_IN_PROJECT,
    API_OWNERS,
    DONE_BY_ADMINS,
    DONE_BY_OWNERS,
    IN_PROJECT,
    NODES_ONLY,
    Visit,
    get,
    post,
)

ADDRESS = "ssh://git@git.example.org/lab/train.git"
DONE_BY_MEMBERS = "302 404 302- 302 302 302"
API_FETCH = "401 404 403 202 202 202"
API_CANCEL = "401 404 403 200 200 200"


def a_repository(world: World) -> dict[str, Any]:
    """Bind Alice's project to a repository, with a webhook and a fetch that waits."""
    host = hosts.allow(world.ada, "git.example.org", extras=True)
    wanted = sources.SourceRequest(ADDRESS, f"main-{CANARY}")
    source = sources.bind(world.alice, world.project, wanted)
    sources.new_webhook_secret(world.alice, source)
    GitSource.objects.filter(pk=source.pk).update(offered_host_key=f"ssh-ed25519 {'A' * 68}")
    fetch = fetches.request(world.alice, world.project)
    path = files.log_path(fetch)
    path.write_text(f"{CANARY} in the log of a fetch")
    return {"git_host": host.pk, "fetch": fetch.pk, "hook": source.hook}


HERE = "/projects/{project}/git"
API = "/api/v1/projects/{project}/git/"
GIT_ROUTES: dict[str, list[Visit]] = {
    "projects/<int:pk>/git": [
        get(HERE, IN_PROJECT),
        Visit("POST", HERE, DONE_BY_OWNERS, {"address": ADDRESS, "branch": "main"}),
    ],
    "projects/<int:pk>/git/unbind": [post(f"{HERE}/unbind", DONE_BY_OWNERS)],
    "projects/<int:pk>/git/confirm-host-key": [post(f"{HERE}/confirm-host-key", "302 404 404 404 302- 302-")],
    "projects/<int:pk>/git/new-key": [post(f"{HERE}/new-key", DONE_BY_OWNERS)],
    "projects/<int:pk>/git/new-secret": [post(f"{HERE}/new-secret", "302 404 404 404 200 200")],
    "projects/<int:pk>/git/remove-webhook": [post(f"{HERE}/remove-webhook", DONE_BY_OWNERS)],
    "projects/<int:pk>/git/fetch": [post(f"{HERE}/fetch", DONE_BY_MEMBERS)],
    "projects/<int:pk>/git/fetches/<int:number>/": [get(f"{HERE}/fetches/{{fetch}}/", IN_PROJECT)],
    "projects/<int:pk>/git/fetches/<int:number>/log": [get(f"{HERE}/fetches/{{fetch}}/log?offset=0", IN_PROJECT)],
    "projects/<int:pk>/git/fetches/<int:number>/log.txt": [get(f"{HERE}/fetches/{{fetch}}/log.txt", IN_PROJECT)],
    "projects/<int:pk>/git/fetches/<int:number>/cancel": [post(f"{HERE}/fetches/{{fetch}}/cancel", DONE_BY_MEMBERS)],
    "admin/git-hosts/": [
        get("/admin/git-hosts/", ADMINS),
        post("/admin/git-hosts/", DONE_BY_ADMINS, host="github.com", kind="github"),
    ],
    "admin/git-hosts/<int:pk>/remove": [post("/admin/git-hosts/{git_host}/remove", DONE_BY_ADMINS)],
    "hooks/git/<slug:hook>": [post("/hooks/git/{hook}", "403 403 403 403 403 403", ref="refs/heads/main")],
    "api/v1/projects/<int:project_pk>/git/": [
        get(API, API_IN_PROJECT),
        Visit("PUT", API, API_OWNERS, {"address": ADDRESS, "branch": "main"}),
        Visit("DELETE", API, "401 404 403 403 204 204"),
    ],
    "api/v1/projects/<int:project_pk>/git/fetch/": [post(f"{API}fetch/", API_FETCH)],
    "api/v1/projects/<int:project_pk>/git/confirm-host-key/": [
        post(f"{API}confirm-host-key/", "401 404 403 403 409 409", fingerprint="SHA256:x")
    ],
    "api/v1/projects/<int:project_pk>/git/new-key/": [post(f"{API}new-key/", API_OWNERS)],
    "api/v1/projects/<int:project_pk>/git/webhook/": [
        post(f"{API}webhook/", API_OWNERS),
        Visit("DELETE", f"{API}webhook/", "401 404 403 403 204 204"),
    ],
    "api/v1/projects/<int:project_pk>/git/fetches/": [get(f"{API}fetches/", API_IN_PROJECT)],
    "api/v1/projects/<int:project_pk>/git/fetches/<int:pk>/": [get(f"{API}fetches/{{fetch}}/", API_IN_PROJECT)],
    "api/v1/projects/<int:project_pk>/git/fetches/<int:pk>/log/": [get(f"{API}fetches/{{fetch}}/log/", API_IN_PROJECT)],
    "api/v1/projects/<int:project_pk>/git/fetches/<int:pk>/cancel/": [
        post(f"{API}fetches/{{fetch}}/cancel/", API_CANCEL)
    ],
    "api/v1/git-hosts/": [
        get("/api/v1/git-hosts/", API_ADMINS),
        post("/api/v1/git-hosts/", "401 404 404 404 404 201", host="github.com"),
    ],
    "api/v1/git-hosts/<int:pk>/": [
        get("/api/v1/git-hosts/{git_host}/", API_ADMINS),
        Visit("DELETE", "/api/v1/git-hosts/{git_host}/", "401 404 404 404 404 204"),
    ],
    "agent/v1/git/claim": [post("/agent/v1/git/claim", NODES_ONLY)],
    "agent/v1/git/<int:pk>/progress": [
        post("/agent/v1/git/{fetch}/progress", NODES_ONLY, percent=1, message=None, offset=0, log="")
    ],
    "agent/v1/git/<int:pk>/archive": [Visit("PUT", "/agent/v1/git/{fetch}/archive?offset=0", NODES_ONLY, raw=b"x")],
    "agent/v1/git/<int:pk>/end": [post("/agent/v1/git/{fetch}/end", NODES_ONLY, state="failed")],
}
