"""What each role gets at the routes of datasets: a part of ``route_matrix``."""

import io
from typing import Any

from portal.storage import checking, incoming, services, uploads
from portal.storage.models import Dataset
from tests.laws.people import CANARY, World
from tests.laws.route_words import API_IN_PROJECT, API_MEMBERS, API_OWNERS, API_WRITERS, Visit, get, post

API = "/api/v1/datasets/{dataset}/"
DATASET = "api/v1/datasets/<int:dataset_pk>/"
VERSION = f"{DATASET}versions/<int:number>/"
OF_MAKERS = "401 404 404 404 200 200"
NOT_TUS = "401 412 412 412 412 412"
"""Requests without the header of the protocol, which none of the browser's forms can send."""

DATASET_ROUTES: dict[str, list[Visit]] = {
    "api/v1/datasets/": [
        get("/api/v1/datasets/", API_MEMBERS),
        post("/api/v1/datasets/", "401 201 201 201 201 201", name="cifar"),
    ],
    "api/v1/datasets/<int:pk>/": [
        get(API, API_IN_PROJECT),
        Visit("PATCH", API, API_OWNERS, {"title": "Digits"}),
        Visit("DELETE", API, "401 404 403 403 204 204"),
    ],
    "api/v1/datasets/<int:pk>/restore/": [post(f"{API}restore/", API_OWNERS)],
    f"{DATASET}versions/": [get(f"{API}versions/", API_IN_PROJECT), post(f"{API}versions/", API_WRITERS)],
    VERSION: [
        get(f"{API}versions/1/", API_IN_PROJECT),
        get(f"{API}versions/{{draft}}/", OF_MAKERS),
        Visit("DELETE", f"{API}versions/{{draft}}/", "401 404 404 404 204 204"),
    ],
    f"{VERSION}finish/": [post(f"{API}versions/{{draft}}/finish/", OF_MAKERS)],
    f"{VERSION}files/": [get(f"{API}versions/1/files/", API_IN_PROJECT)],
    f"{VERSION}files/<path:path>": [get(f"{API}versions/1/files/train.py", API_IN_PROJECT)],
    f"{VERSION}manifest/": [get(f"{API}versions/1/manifest/", API_IN_PROJECT)],
    f"{VERSION}uploads/": [
        get(f"{API}versions/{{draft}}/uploads/", OF_MAKERS),
        post(f"{API}versions/{{draft}}/uploads/", NOT_TUS),
    ],
    "api/v1/uploads/<uuid:pk>/": [
        get("/api/v1/uploads/{upload}/", "401 404 404 404 200 404"),
        Visit("PATCH", "/api/v1/uploads/{upload}/", NOT_TUS),
        Visit("DELETE", "/api/v1/uploads/{upload}/", NOT_TUS),
    ],
}


def datasets_of(world: World) -> dict[str, Any]:
    """Return a dataset of Alice's project with a version, and another version to which a file is uploaded."""
    about = {
        "name": "digits",
        "title": f"{CANARY} digits",
        "project": world.project,
        "visibility": Dataset.Visibility.PROJECT,
    }
    dataset = services.create(world.alice, about)
    for path in ("train.py", f"{CANARY}.csv"):
        version = services.begin_version(world.alice, dataset)
        content = f"{CANARY} in {path}".encode()
        upload = uploads.create(world.alice, version, uploads.NewUpload(path, len(content)))
        incoming.append(upload, 0, io.BytesIO(content), len(content))
        if path == "train.py":
            services.finish(world.alice, version)
            checking.run_queued()
    return {"dataset": dataset.pk, "draft": version.number, "upload": upload.pk}
