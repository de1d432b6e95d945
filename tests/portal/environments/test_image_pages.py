"""Pages and endpoints of environments that are images: what members may make, what admins decide, and that no token is shown."""

import html
from typing import Any

import pytest
from django.test import Client
from django.utils.timezone import now

from portal.accounts.models import AuditEntry, User
from portal.environments import credentials, image_access, images
from portal.environments.images import ImageRequest, RegistryRequest
from portal.environments.models import Build, Environment, ImageSettings, Lock, Registry
from portal.jobs import package_offers
from portal.projects.models import Project
from portal.refused import Refused
from tests.portal.jobs_world import make_code, make_node, make_project, make_user

pytestmark = pytest.mark.django_db
TOKEN = "t0ken-of-the-lab"


@pytest.fixture
def admin() -> User:
    return make_user("ada", is_staff=True)


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def project(alice: User) -> Project:
    return make_project(alice)


def as_user(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def text(response: Any) -> str:
    return html.unescape(response.content.decode())


def test_a_member_makes_an_environment_of_an_allowed_image(admin: User, alice: User, project: Project) -> None:
    client = as_user(alice)
    assert "An admin has to allow a registry first" in text(client.get("/environments/new-image/"))
    images.set_image_settings(admin, ["ghcr.io/lab/"], "needed")
    page = client.get(f"/environments/new-image/?project={project.pk}")
    assert "ghcr.io/lab" in text(page)
    sent = {"image": "GHCR.io/lab/train:1.2", "project": project.pk, "title": ""}
    made = client.post("/environments/new-image/", sent, follow=True)
    row = Environment.objects.get(project=project)
    assert (row.image, row.title, row.on_demand) == ("ghcr.io/lab/train:1.2", "train:1.2", True)
    assert row.requested_at is not None and row.key.startswith("train12-") or row.key
    assert "ghcr.io/lab/train:1.2" in text(made)
    client.post("/environments/new-image/", sent)
    assert Environment.objects.filter(project=project).count() == 1
    assert "train:1.2" in text(client.get("/environments/")) and "ghcr.io/lab/train:1.2" in text(
        client.get(f"/projects/{project.pk}/environments")
    )


def test_an_image_is_not_titled_as_an_environment_of_the_release(admin: User, alice: User, project: Project) -> None:
    images.set_image_settings(admin, ["ghcr.io/lab"], "never")
    with pytest.raises(Refused, match="comes with the release. Give this one another title"):
        images.create(alice, project, ImageRequest("ghcr.io/lab/train:1", "Pytorch"))
    digest = "5f" * 32
    assert (
        images.create(alice, project, ImageRequest(f"ghcr.io/lab/pytorch@sha256:{digest}")).title
        == "pytorch@5f5f5f5f5f5f"
    )
    assert images.create(alice, project, ImageRequest("ghcr.io/lab/pytorch:2")).title == "pytorch:2"


def test_what_is_not_allowed_is_refused_with_the_way_forward(admin: User, alice: User, project: Project) -> None:
    images.set_image_settings(admin, ["ghcr.io/lab"], "needed")
    client = as_user(alice)
    cases = {
        "ghcr.io/lab-of-others/train:1": "is not allowed",
        "ubuntu": "docker.io/library/ubuntu:latest is not allowed",
        "https://ghcr.io/lab/train": "Leave out https://",
        "ghcr.io/lab/../x": "is not part of a name",
    }
    for image, words in cases.items():
        answer = client.post("/environments/new-image/", {"image": image, "project": project.pk})
        assert answer.status_code == 400 and words in text(answer), image
    with pytest.raises(Refused):
        images.create(make_user("bob"), project, ImageRequest("ghcr.io/lab/train"))
    with pytest.raises(Refused):
        images.create(alice, None, ImageRequest("ghcr.io/lab/train"))


def test_an_admin_allows_images_and_stores_tokens_that_are_never_shown_again(admin: User, alice: User) -> None:
    client = as_user(admin)
    client.post("/admin/images/", {"allowed": "ghcr.io/lab/\r\nubuntu\r\n", "archives": "always"})
    assert ImageSettings.current().allowed == ["ghcr.io/lab", "docker.io/library/ubuntu"]
    wrong = client.post("/admin/images/", {"allowed": "ghcr.io\nhttps://x", "archives": "always"})
    assert wrong.status_code == 400 and "Line 2" in text(wrong)
    client.post("/admin/images/registries", {"host": "GHCR.io", "user": "lab", "token": TOKEN})
    row = Registry.objects.get()
    assert (row.host, row.user, row.insecure) == ("ghcr.io", "lab", False)
    assert credentials.unseal(row.sealed_token) == TOKEN
    assert image_access.access_to("ghcr.io/lab/x:1") == {"user": "lab", "token": TOKEN, "insecure": False}
    assert image_access.access_to("quay.io/lab/x:1")["token"] == ""
    page = text(client.get("/admin/images/"))
    assert "ghcr.io" in page and TOKEN not in page and row.sealed_token not in page
    half = client.post("/admin/images/registries", {"host": "ghcr.io", "user": "lab", "token": ""})
    assert half.status_code == 400 and "Enter a user and a token" in text(half) and TOKEN not in text(half)
    wrong = client.post("/admin/images/registries", {"host": "https://ghcr.io", "user": "lab", "token": TOKEN})
    assert wrong.status_code == 400 and TOKEN not in text(wrong)
    client.post(f"/admin/images/registries/{row.pk}/remove")
    assert not Registry.objects.exists()
    entries = list(AuditEntry.objects.filter(action__startswith="images."))
    assert len(entries) == 3 and all(TOKEN not in f"{entry.before}{entry.after}" for entry in entries)
    log = text(client.get("/admin/audit/"))
    assert "changed how nodes use the registry" in log and TOKEN not in log
    assert as_user(alice).get("/admin/images/").status_code == 404


def test_a_token_that_is_left_out_stays_and_a_new_one_is_audited(admin: User) -> None:
    images.set_registry(admin, RegistryRequest("ghcr.io", "lab", TOKEN))
    images.set_registry(admin, RegistryRequest("ghcr.io", "lab", None, insecure=True))
    assert image_access.access_to("ghcr.io/x") == {"user": "lab", "token": TOKEN, "insecure": True}
    images.set_registry(admin, RegistryRequest("ghcr.io", "lab", "another", insecure=True))
    assert AuditEntry.objects.first().after.get("new_token") is True  # type: ignore[union-attr]


def test_a_token_of_a_lost_key_is_named(admin: User, monkeypatch: pytest.MonkeyPatch) -> None:
    images.set_registry(admin, RegistryRequest("ghcr.io", "lab", TOKEN))
    Registry.objects.update(sealed_token="gAAAAA-of-another-key")
    assert image_access.access_to("ghcr.io/x") == {"user": "", "token": "", "insecure": False}
    assert "Enter it again" in text(as_user(admin).get("/admin/images/"))


def test_pages_of_an_image_name_no_packages(admin: User, alice: User, project: Project) -> None:
    images.set_image_settings(admin, ["ghcr.io/lab"], "needed")
    row = images.create(alice, project, ImageRequest("ghcr.io/lab/train:1.2"))
    lock = Lock.objects.create(
        digest="d" * 64,
        kind="image-linux-amd64",
        text=f"ghcr.io/lab/train@sha256:{'a' * 64}",
        unpacked_bytes=5_000_000,
        facts={"content": "c" * 64},
    )
    done = Build.objects.create(
        environment=row, recipe=row.recipe, kind=lock.kind, node_name="n1", state="done", lock=lock, ended_at=now()
    )
    client = as_user(alice)
    listed = text(client.get(f"/environments/?project={project.pk}"))
    assert "an image" in listed and "comes with the release" not in listed
    shown = text(client.get(f"/environments/{row.key}/"))
    assert "Each pulls it when a job needs it" in shown and "Built packages" not in shown
    assert "has deleted its copy" not in shown
    for address in (f"builds/{done.pk}/", f"locks/{lock.digest}/"):
        page = text(client.get(f"/environments/{row.key}/{address}"))
        assert "Exact image" in page and "0 packages" not in page and "Versions" not in page
    (sent,) = client.get(f"/api/v1/environments/{row.key}/").json()["locks"]
    assert (sent["digest"], sent["image"], sent["size_bytes"]) == (lock.digest, lock.text, 5_000_000)
    again = text(client.post(f"/environments/{row.key}/build-again", follow=True))
    assert "the image that its name means now" in again


def test_the_api_of_images(admin: User, alice: User, project: Project) -> None:
    ours, theirs = as_user(admin), as_user(alice)
    settings = {"allowed": ["ghcr.io/lab"], "archives": "never"}
    assert ours.put("/api/v1/images/", settings, "application/json").json() == settings
    assert ours.put("/api/v1/images/", {**settings, "allowed": ["*"]}, "application/json").status_code == 400
    made = theirs.post("/api/v1/images/", {"project": project.pk, "image": "ghcr.io/lab/train"}, "application/json")
    assert made.status_code == 201 and made.json()["image"] == "ghcr.io/lab/train:latest"
    body = {"host": "ghcr.io", "user": "lab", "token": TOKEN}
    stored = ours.post("/api/v1/registries/", body, "application/json")
    assert stored.json()["signs_in"] is True and TOKEN not in text(stored)
    listed = ours.get("/api/v1/registries/")
    assert TOKEN not in text(listed) and "sealed" not in text(listed)
    assert theirs.get("/api/v1/registries/").status_code == 404
    assert theirs.get("/api/v1/images/").status_code == 404
    pk = Registry.objects.get().pk
    assert ours.delete(f"/api/v1/registries/{pk}/").status_code == 204


def test_the_form_warns_of_imports_once_a_node_has_looked_into_the_image(
    admin: User, alice: User, project: Project
) -> None:
    images.set_image_settings(admin, ["ghcr.io/lab"], "needed")
    row = images.create(alice, project, ImageRequest("ghcr.io/lab/train"))
    code = make_code(project)
    code.guess = {**code.guess, "imports": {"pandas": {"path": "train.py", "line": 1}}}
    assert package_offers.offer_for(code, row, [row]).missing == []
    with pytest.raises(Refused, match="Dockerfile"):
        package_offers.install(alice, code, row, package_offers.IMPORTS)


def test_a_lab_without_docker_is_named_as_what_keeps_an_image_away(admin: User, alice: User, project: Project) -> None:
    images.set_image_settings(admin, ["ghcr.io/lab"], "needed")
    row = images.create(alice, project, ImageRequest("ghcr.io/lab/train:1.2"))
    make_node("alpha", runtime="process")
    assert "No node of this lab has Docker" in text(as_user(alice).get(f"/environments/{row.key}/"))
    make_node("beta", runtime="docker")
    assert "No node of this lab has Docker" not in text(as_user(alice).get(f"/environments/{row.key}/"))
