"""What each role gets at the routes of environments, of a project of Alice's and of the lab: a part of ``route_matrix``."""

from datetime import timedelta
from typing import Any

from django.utils import timezone

from portal.environments import builds, images
from portal.environments import services as environments
from portal.environments.models import Build, Environment
from tests.laws.people import CANARY, World
from tests.laws.route_words import (
    ADMINS,
    API_ADMINS,
    API_IN_PROJECT,
    API_MEMBERS,
    DONE_BY_ADMINS,
    IN_PROJECT,
    MEMBERS,
    NODES_ONLY,
    Visit,
    get,
    post,
)
from tests.portal import environments_world as made

BASE = "route-base"
IMAGE = "registry.example.org/lab/train:1"
NEW_ENVIRONMENT = {"project": "{project}", "base": "{base}", "packages": "tqdm", "do": "create"}


def an_environment(world: World) -> dict[str, Any]:
    """Make an environment of Alice's project with a build that has ended, and one that runs."""
    base, _ = Environment.objects.get_or_create(key=BASE, defaults={"title": "Route base"})
    request = environments.PackageRequest(lines=("rich",), base=base)
    own = environments.create(world.alice, world.project, request, "Tools of Alice")
    Environment.objects.filter(pk=own.pk).update(title=f"Tools {CANARY}")  # its key is part of addresses
    lock = made.finish(made.start(world.node, own, "cp311-linux_x86_64-glibc2.36-cpu-0"))
    running = made.start(world.node, own)
    builds.record_progress(running, 5, "", 0, f"{CANARY} in the log of a build".encode())
    until = timezone.now() + timedelta(hours=1)  # or its lease ends before the last visit on a slow machine
    Build.objects.filter(pk=running.pk).update(renewed_at=until)
    images.set_image_settings(world.ada, ["registry.example.org"], "needed")
    registry = images.set_registry(world.ada, images.RegistryRequest("registry.example.org", "lab", CANARY))
    return {"own_environment": own.key, "build": running.pk, "lock": lock.digest, "registry": registry.pk}


ENVIRONMENT_ROUTES: dict[str, list[Visit]] = {
    "environments/": [get("/environments/", MEMBERS), get("/environments/?project={project}&sort=-size", MEMBERS)],
    "environments/new/": [
        get("/environments/new/", MEMBERS),
        get("/environments/new/?project={project}", MEMBERS),
        post("/environments/new/", "302 400 400 302 302 302", **NEW_ENVIRONMENT),
    ],
    "environments/new-image/": [
        get("/environments/new-image/", MEMBERS),
        post("/environments/new-image/", "302 400 400 302 302 302", image=IMAGE, project="{project}"),
    ],
    "admin/images/": [
        get("/admin/images/", ADMINS),
        post("/admin/images/", DONE_BY_ADMINS, allowed="registry.example.org", archives="needed"),
    ],
    "admin/images/registries": [
        post("/admin/images/registries", DONE_BY_ADMINS, host="registry.example.org", user="lab", token="a-token")
    ],
    "admin/images/registries/<int:pk>/remove": [
        post("/admin/images/registries/{registry}/remove", DONE_BY_ADMINS),
    ],
    "environments/<slug:key>/": [
        get("/environments/{environment}/", MEMBERS),
        get("/environments/{own_environment}/", IN_PROJECT),
        get("/environments/nothing/", "302 404 404 404 404 404"),
    ],
    "environments/<slug:key>/build-again": [
        post("/environments/{environment}/build-again", "302 302- 302- 302- 302- 302-"),
        # it is being built now
        post("/environments/{own_environment}/build-again", "302 404 302- 302- 302- 302-"),
    ],
    "api/v1/environments/<slug:key>/deletion/": [
        get("/api/v1/environments/{own_environment}/deletion/", API_IN_PROJECT)
    ],
    "environments/<slug:key>/remove": [
        get("/environments/{own_environment}/remove", "302 404 302 302 200 200"),
        post("/environments/{environment}/remove", "302 302- 302- 302- 302- 302-"),
        post("/environments/{own_environment}/remove", "302 404 302- 302- 302 302"),
    ],
    "environments/<slug:key>/locks/<slug:digest>/": [
        get("/environments/{own_environment}/locks/{lock}/", IN_PROJECT),
        get("/environments/{own_environment}/locks/{lock}/?download=1", IN_PROJECT),
        get("/environments/{environment}/locks/{lock}/", "302 404 404 404 404 404"),
    ],
    "environments/(?P<key>[-\\w]{1,50})/builds/(?P<pk>[0-9]{1,18})/": [
        get("/environments/{own_environment}/builds/{build}/", IN_PROJECT),
        get("/environments/{environment}/builds/{build}/", "302 404 404 404 404 404"),
    ],
    "environments/(?P<key>[-\\w]{1,50})/builds/(?P<pk>[0-9]{1,18})/log": [
        get("/environments/{own_environment}/builds/{build}/log?offset=0", IN_PROJECT)
    ],
    "environments/(?P<key>[-\\w]{1,50})/builds/(?P<pk>[0-9]{1,18})/log.txt": [
        get("/environments/{own_environment}/builds/{build}/log.txt", IN_PROJECT)
    ],
    "environments/(?P<key>[-\\w]{1,50})/builds/(?P<pk>[0-9]{1,18})/cancel": [
        post("/environments/{own_environment}/builds/{build}/cancel", "302 404 302- 302- 302 302")
    ],
    "projects/<int:pk>/environments": [get("/projects/{project}/environments", IN_PROJECT)],
    "admin/environments/": [
        get("/admin/environments/", ADMINS),
        post("/admin/environments/", DONE_BY_ADMINS, allowed_sources="https://download.example.org/"),
    ],
    "api/v1/environments/": [
        get("/api/v1/environments/", API_MEMBERS),
        post("/api/v1/environments/", "401 400 403 201 201 201", project="{project}", base="{base}", packages=["tqdm"]),
    ],
    "api/v1/environments/<slug:key>/": [
        get("/api/v1/environments/{environment}/", API_MEMBERS),
        get("/api/v1/environments/{own_environment}/", API_IN_PROJECT),
        Visit("DELETE", "/api/v1/environments/{own_environment}/", "401 404 403 403 204 204"),
    ],
    "api/v1/images/": [
        get("/api/v1/images/", API_ADMINS),
        post("/api/v1/images/", "401 400 403 201 201 201", project="{project}", image=IMAGE),
        Visit("PUT", "/api/v1/images/", API_ADMINS, {"allowed": ["registry.example.org"], "archives": "needed"}),
    ],
    "api/v1/registries/": [
        get("/api/v1/registries/", API_ADMINS),
        post("/api/v1/registries/", API_ADMINS, host="registry.example.org", user="lab", token="a-token"),
    ],
    "api/v1/registries/<int:pk>/": [
        Visit("DELETE", "/api/v1/registries/{registry}/", "401 404 404 404 404 204"),
    ],
    "api/v1/environments/<slug:key>/build/": [
        post("/api/v1/environments/{own_environment}/build/", "401 404 403 403 409 409")
    ],
    "api/v1/environments/<slug:environment_key>/locks/<slug:digest>/": [
        get("/api/v1/environments/{own_environment}/locks/{lock}/", API_IN_PROJECT)
    ],
    "api/v1/environments/<slug:environment_key>/builds/": [
        get("/api/v1/environments/{own_environment}/builds/", API_IN_PROJECT)
    ],
    "api/v1/environments/<slug:environment_key>/builds/<int:pk>/": [
        get("/api/v1/environments/{own_environment}/builds/{build}/", API_IN_PROJECT)
    ],
    "api/v1/environments/<slug:environment_key>/builds/<int:pk>/log/": [
        get("/api/v1/environments/{own_environment}/builds/{build}/log/?offset=3", API_IN_PROJECT)
    ],
    "api/v1/environments/<slug:environment_key>/builds/<int:pk>/cancel/": [
        post("/api/v1/environments/{own_environment}/builds/{build}/cancel/", "401 404 403 403 200 200")
    ],
    "agent/v1/images/<str:digest>/source": [post("/agent/v1/images/{lock}/source", NODES_ONLY)],
    "agent/v1/environments/<slug:key>/claim": [
        post("/agent/v1/environments/{own_environment}/claim", NODES_ONLY, kind="cp311-linux")
    ],
    "agent/v1/builds/<int:pk>/progress": [
        post("/agent/v1/builds/{build}/progress", NODES_ONLY, percent=1, message=None, offset=0, log="")
    ],
    "agent/v1/builds/<int:pk>/archive": [
        Visit("PUT", "/agent/v1/builds/{build}/archive?offset=0", NODES_ONLY, raw=b"x")
    ],
    "agent/v1/builds/<int:pk>/end": [post("/agent/v1/builds/{build}/end", NODES_ONLY, state="failed")],
    "agent/v1/layers/<str:digest>": [get("/agent/v1/layers/{lock}?offset=0", NODES_ONLY)],
}
