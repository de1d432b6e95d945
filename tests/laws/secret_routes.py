"""What each role gets at the routes of secrets: a part of ``route_matrix``."""

from typing import Any

from portal.secrets import services
from tests.laws.people import CANARY, SECRET, World
from tests.laws.route_words import API_OWNERS, DONE_BY_OWNERS, MEMBERS, OWNERS, Visit, get, post

OWN_ROW = "302 404 404 404 200 404"
DONE_TO_OWN_ROW = "302 404 404 404 302 404"
IN_PROJECT_BUT_VIEWERS = "302 404 404 200 200 200"
API_IN_PROJECT_BUT_VIEWERS = "401 404 403 200 200 200"
API_OWN_ROW = "401 404 404 404 200 404"
NAME = f"HF_TOKEN_{CANARY}"


def secrets_of(world: World) -> dict[str, Any]:
    """Store a secret of Alice's own and one of her project; return their numbers and the name of both."""
    own = services.create(world.alice, world.alice, "variable", NAME, SECRET)
    shared = services.create(world.alice, world.project, "file", NAME, SECRET)
    return {"secret": own.row.pk, "project_secret": shared.row.pk, "secret_name": NAME}


OWN = "/accounts/secrets/"
SHARED = "/projects/{project}/secrets/"
API_OWN = "/api/v1/secrets/"
API_SHARED = "/api/v1/projects/{project}/secrets/"
VARIABLE = {"kind": "variable", "name": "WANDB_API_KEY", "value": "w-a-n-d-b"}
VALUE = {"value": "another value"}
SECRET_ROUTES: dict[str, list[Visit]] = {
    "accounts/secrets/": [
        get(OWN, MEMBERS),
        post(OWN, "302 302 302 302 302 302", **VARIABLE),
        post(OWN, "302 400 400 400 400 400", kind="file", name="x"),
        post(OWN, "302 400 400 400 400 400", kind="other"),
    ],
    "accounts/secrets/<int:pk>/": [
        get(f"{OWN}{{secret}}/", OWN_ROW),
        get(f"{OWN}{{project_secret}}/", "302 404 404 404 404 404"),
        post(f"{OWN}{{secret}}/", DONE_TO_OWN_ROW, **VALUE),
    ],
    "accounts/secrets/delete/<int:pk>": [post(f"{OWN}delete/{{secret}}", DONE_TO_OWN_ROW)],
    "projects/<int:pk>/secrets/": [
        get(SHARED, IN_PROJECT_BUT_VIEWERS),
        post(SHARED, DONE_BY_OWNERS, **VARIABLE),
    ],
    "projects/<int:pk>/secrets/<int:number>/": [
        get(f"{SHARED}{{project_secret}}/", OWNERS),
        get(f"{SHARED}{{secret}}/", "302 404 404 404 404 404"),
        post(f"{SHARED}{{project_secret}}/", DONE_BY_OWNERS, **VALUE),
    ],
    "projects/<int:pk>/secrets/delete/<int:number>": [post(f"{SHARED}delete/{{project_secret}}", DONE_BY_OWNERS)],
    "api/v1/secrets/": [
        get(API_OWN, "401 200 200 200 200 200"),
        post(API_OWN, "401 201 201 201 201 201", **VARIABLE | {"name": "OTHER_KEY"}),
    ],
    "api/v1/secrets/<str:name>/": [
        Visit("PUT", f"{API_OWN}{{secret_name}}/", API_OWN_ROW, VALUE),
        Visit("DELETE", f"{API_OWN}{{secret_name}}/", "401 404 404 404 204 404"),
    ],
    "api/v1/projects/<int:project_pk>/secrets/": [
        get(API_SHARED, API_IN_PROJECT_BUT_VIEWERS),
        post(API_SHARED, "401 404 403 403 201 201", **VARIABLE | {"name": "OTHER_KEY"}),
    ],
    "api/v1/projects/<int:project_pk>/secrets/<str:name>/": [
        Visit("PUT", f"{API_SHARED}{{secret_name}}/", API_OWNERS, VALUE),
        Visit("DELETE", f"{API_SHARED}{{secret_name}}/", "401 404 403 403 204 204"),
    ],
}
