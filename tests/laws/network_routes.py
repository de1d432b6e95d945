"""What each role gets at the routes of the network for jobs: a part of ``route_matrix``."""

from tests.laws.route_words import (
    ADMINS,
    API_IN_PROJECT,
    API_MEMBERS,
    DONE_BY_ADMINS,
    IN_PROJECT,
    NODES_ONLY,
    Visit,
    get,
    post,
)

NETWORK_ROUTES: dict[str, list[Visit]] = {
    "projects/<int:pk>/network": [get("/projects/{project}/network", IN_PROJECT)],
    "admin/network/": [
        get("/admin/network/?project={project}&host=files.example.org", ADMINS),
        post("/admin/network/", DONE_BY_ADMINS, host="files.example.org", place="lab"),
    ],
    "admin/network/<int:pk>/remove": [post("/admin/network/{allowed_host}/remove", DONE_BY_ADMINS)],
    "api/v1/allowed-hosts/": [
        get("/api/v1/allowed-hosts/", API_MEMBERS),
        post("/api/v1/allowed-hosts/", "401 404 404 404 404 201", host="files.example.org", project="{project}"),
    ],
    "api/v1/allowed-hosts/<int:pk>/": [
        get("/api/v1/allowed-hosts/{allowed_host}/", API_IN_PROJECT),
        Visit("DELETE", "/api/v1/allowed-hosts/{allowed_host}/", "401 404 404 404 404 204"),
    ],
    "api/v1/jobs/<int:job_pk>/network/": [get("/api/v1/jobs/{job}/network/", API_IN_PROJECT)],
    "agent/v1/containers/<str:name>/network": [post("/agent/v1/containers/{container}/network", NODES_ONLY, hosts=[])],
}
