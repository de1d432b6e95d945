"""The pages of a project's repository."""

import io
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from portal.accounts.models import User
from portal.projects import services
from portal.projects.git import fetches, keys
from portal.projects.git.models import GitFetch, GitHost, GitSource
from portal.projects.models import Membership, Project
from portal.sentences import agents
from tests.portal import git_world as made
from tests.portal.jobs_world import make_job, make_project, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> None:
    settings.HOME = tmp_path


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def project(alice: User) -> Project:
    return make_project(alice)


@pytest.fixture
def client(alice: User, client: Client) -> Client:
    client.force_login(alice)
    return client


def page(client: Client, name: str, *args: Any, **options: Any) -> str:
    answer = client.get(reverse(f"projects:{name}", args=args), **options)
    assert answer.status_code == 200, answer.status_code
    return " ".join(answer.content.decode().split())


def post(client: Client, name: str, *args: Any, **data: Any) -> Any:
    return client.post(reverse(f"projects:{name}", args=args), data)


def test_bind_fetch_and_see_the_commit(client: Client, alice: User, project: Project) -> None:
    assert "No admin has allowed a Git host yet" in page(client, "git", project.pk)
    made.allow()
    node = made.make_node()
    sent = {"address": made.HTTPS, "branch": "main", "user": "robot", "token": "t0ken"}
    assert post(client, "git", project.pk, **sent).status_code == 302
    shown = page(client, "git", project.pk)
    assert "One is stored" in shown and "t0ken" not in shown
    answer = post(client, "git-fetch-now", project.pk)
    fetch = GitFetch.objects.get()
    assert answer.url == reverse("projects:git-fetch", args=[project.pk, fetch.pk])
    assert "as soon as a node that can fetch is free" in page(client, "git-fetch", project.pk, fetch.pk)
    made.start(node)
    fetches.record_progress(fetch_now(fetch), 40, agents.git.ReceivingCommit(60).data(), 0, b"remote: <b>hello\n")
    shown = page(client, "git-fetch", project.pk, fetch.pk)
    assert "40 %, receiving the commit: 60 %" in shown and "remote: &lt;b&gt;hello" in shown
    made.finish(fetch_now(fetch))
    assert "Version 1 was made from 1a1a1a1a1a" in page(client, "git-fetch", project.pk, fetch.pk)
    link = f'href="https://github.com/lab/train/commit/{made.FIRST}"'
    assert link in page(client, "detail", project.pk)
    shown = page(client, "code", project.pk, 1)
    assert link in shown and "on main, by Ada" in shown and "Train longer" in shown
    job = make_job(project, code=project.code_versions.get())
    details = client.get(reverse("jobs:tab", args=[job.pk, "details"])).content.decode()
    assert link in details and "Train longer" in details


def fetch_now(fetch: GitFetch) -> GitFetch:
    return GitFetch.objects.select_related("project", "requested_by").get(pk=fetch.pk)


def test_a_job_names_the_commit_that_was_uploaded_over(client: Client, alice: User, project: Project) -> None:
    made.bind(alice, project)
    made.fetch_commit(alice, project, made.make_node())
    first = make_job(project, code=project.code_versions.get())
    upload = services.store_code(alice, project, [("train.py", io.BytesIO(b"print(3)\n"))])
    job = make_job(project, code=upload)
    details = " ".join(client.get(reverse("jobs:tab", args=[job.pk, "details"])).content.decode().split())
    assert "uploaded after version 1" in details and "changes?from=1" in details
    assert f"which job #{first.pk} ran" in details


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ({"address": "ext::sh", "branch": "main"}, "run programs"),
        ({"address": "https://evil.org/x", "branch": "main"}, "may not be fetched from evil.org"),
        ({"address": made.HTTPS, "branch": "--upload-pack=x"}, "does not begin with a dash"),
    ],
)
def test_what_is_refused_is_explained_at_the_field(
    client: Client, project: Project, sent: dict[str, str], why: str
) -> None:
    made.allow()
    answer = post(client, "git", project.pk, **sent)
    assert answer.status_code == 400 and why in answer.content.decode()


def test_the_host_key_is_confirmed_on_the_page(client: Client, alice: User, project: Project) -> None:
    source = made.bind(alice, project, made.SSH)
    shown = page(client, "git", project.pk)
    assert source.public_key in shown and "PRIVATE" not in shown and "Confirm the host key" not in shown
    GitSource.objects.update(offered_host_key=made.KEY)
    fingerprint = keys.fingerprint(made.KEY)
    assert "Confirm the host key of github.com" in page(client, "git", project.pk)
    assert post(client, "git-confirm", project.pk, fingerprint="SHA256:other").status_code == 302
    assert GitSource.objects.get().host_key == ""
    post(client, "git-confirm", project.pk, fingerprint=fingerprint)
    assert GitSource.objects.get().host_key == made.KEY and GitFetch.objects.count() == 1
    GitSource.objects.update(offered_host_key=made.KEY.replace("AAAAC3", "AAAAC4"))
    assert "has another host key than the confirmed one" in page(client, "git", project.pk)


def test_the_secret_of_the_webhook_is_shown_once(client: Client, alice: User, project: Project) -> None:
    made.bind(alice, project)
    answer = post(client, "git-new-secret", project.pk)
    secret = keys.unseal(GitSource.objects.get().sealed_secret)
    assert secret and secret in answer.content.decode()
    shown = page(client, "git", project.pk)
    assert secret not in shown and f"/hooks/git/{GitSource.objects.get().hook}" in shown
    post(client, "git-remove-hook", project.pk)
    assert GitSource.objects.get().sealed_secret == ""


def test_the_host_calls_the_portal_at_its_own_address(
    client: Client, alice: User, project: Project, settings: Any
) -> None:
    settings.SITE_URL = "https://lab.example.org"
    made.bind(alice, project)
    hook = f"https://lab.example.org/hooks/git/{GitSource.objects.get().hook}"
    assert hook in page(client, "git", project.pk, HTTP_HOST="localhost:8000")
    answer = client.post(f"/api/v1/projects/{project.pk}/git/webhook/", HTTP_HOST="localhost:8000")
    assert answer.json()["url"] == hook


def test_what_members_and_viewers_see(client: Client, alice: User, project: Project) -> None:
    made.bind(alice, project, made.SSH)
    fetch = fetches.request(alice, project)
    for name, role in (("bob", "member"), ("victor", "viewer")):
        user = make_user(name)
        Membership.objects.create(project=project, user=user, role=role)
        other = Client()
        other.force_login(user)
        shown = page(other, "git", project.pk)
        assert "Webhook" not in shown and "Unbind" not in shown and "github.com/lab/train" in shown
        assert ("Fetch now" in shown) == (role == "member")
        assert ("Cancel fetch" in page(other, "git-fetch", project.pk, fetch.pk)) == (role == "member")


def test_without_a_node_that_can_the_pages_name_what_is_needed(client: Client, alice: User, project: Project) -> None:
    made.bind(alice, project)
    fetch = fetches.request(alice, project)
    for shown in (page(client, "git", project.pk), page(client, "git-fetch", project.pk, fetch.pk)):
        assert "git, openssh-client and bubblewrap" in shown


def test_the_log_is_followed_and_downloaded(client: Client, alice: User, project: Project) -> None:
    made.bind(alice, project)
    fetches.request(alice, project)
    fetch = made.start(made.make_node())
    fetches.record_progress(fetch, 1, "", 0, b"one\ntwo\n")
    here = [project.pk, fetch.pk]
    assert client.get(reverse("projects:git-log-from", args=here) + "?offset=4").content.decode().startswith("two")
    assert client.get(reverse("projects:git-log-from", args=here) + "?offset=8").status_code == 204
    assert client.get(reverse("projects:git-log-from", args=here) + "?offset=x").status_code == 404
    log = client.get(reverse("projects:git-log", args=here))
    assert b"".join(log) == b"one\ntwo\n"
    state = client.get(reverse("projects:git-fetch", args=here), headers={"HX-Request": "true", "Edition": ""})
    assert b"fetch-state" in state.content and b"<html" not in state.content
    post(client, "git-cancel", *here)
    over = client.get(reverse("projects:git-fetch", args=here), headers={"HX-Request": "true"})
    assert over.status_code == 204 and over["HX-Refresh"] == "true"


def test_admins_allow_hosts_on_their_page(alice: User) -> None:
    http = Client()
    http.force_login(made.make_admin())
    assert "no project can be bound" in page(http, "git-hosts")
    refused = post(http, "git-hosts", host="10.1.2.3", kind="other")
    assert refused.status_code == 400
    assert "local network. Confirm that nodes may fetch from it." in refused.content.decode()
    assert post(http, "git-hosts", host="git.lab:2222", internal="on", kind="gitea").status_code == 302
    shown = page(http, "git-hosts")
    assert "git.lab:2222" in shown and "Gitea or Forgejo" in shown and "in the local network" in shown
    post(http, "git-forbid-host", GitHost.objects.get().pk)
    assert not GitHost.objects.exists()


def test_who_reads_that_no_host_is_allowed_reads_what_to_do(client: Client, alice: User, project: Project) -> None:
    shown = page(client, "git", project.pk)
    assert "Ask an admin to allow the host of your repository" in shown and "/admin/git-hosts/" not in shown
    admin = Client()
    admin.force_login(made.make_admin())
    shown = page(admin, "git", project.pk)
    assert "Allow one under" in shown and reverse("projects:git-hosts") in shown
    made.bind(alice, project)
    assert "Fetch now" in page(client, "git", project.pk)
    GitHost.objects.all().delete()
    shown = page(client, "git", project.pk)
    assert "No admin allows code from" in shown and "projects/1/git/fetch" not in shown


def test_after_binding_the_owner_reads_what_comes_next(client: Client, project: Project) -> None:
    made.allow()
    answer = client.post(
        reverse("projects:git", args=[project.pk]), {"address": made.SSH, "branch": "main"}, follow=True
    )
    assert "Add the deploy key below to the repository" in answer.content.decode()
    GitSource.objects.update(host_key=made.KEY)
    sent = {"address": made.SSH, "branch": "dev", "shown_values": ""}
    row = GitSource.objects.get()
    assert row.is_ssh and sent["branch"] != row.branch
    answer = client.post(reverse("projects:git", args=[project.pk]), sent, follow=True)
    assert "makes a code version of the newest commit" in answer.content.decode()


def test_a_refused_form_names_the_token_as_what_has_to_be_entered_again(client: Client, project: Project) -> None:
    made.allow()
    sent = {"address": "https://evil.org/x", "branch": "main", "token": "t0ken"}
    shown = " ".join(post(client, "git", project.pk, **sent).content.decode().split())
    assert "Enter again: Token. Nothing else that you typed is lost." in shown and "t0ken" not in shown
    shown = " ".join(post(client, "git", project.pk, **(sent | {"token": ""})).content.decode().split())
    assert "Nothing you typed is lost." in shown


def test_the_list_has_the_reason_and_the_page_of_a_fetch_what_to_do(
    client: Client, alice: User, project: Project
) -> None:
    made.bind(alice, project)
    fetches.request(alice, project)
    fetch = made.start(made.make_node())
    fetches.fail(fetch, agents.git_failures.TokenRefused("github.com", has_token=True).data())
    for shown in (page(client, "git", project.pk), page(client, "detail", project.pk)):
        assert "does not accept the stored token for this repository." in shown and "can enter a new token" not in shown
    assert "An owner can enter a new token" in page(client, "git-fetch", project.pk, fetch.pk)


def test_the_list_shows_reasons_of_other_releases(client: Client, alice: User, project: Project) -> None:
    made.bind(alice, project)
    fetch = fetches.request(alice, project)
    for message, text in (({"code": "git.of_a_later_release", "host": "x.org"}, "x.org"), ("Why.", "Why.")):
        GitFetch.objects.filter(pk=fetch.pk).update(state="failed", message=message)
        assert text in page(client, "git", project.pk)


def test_the_page_of_a_project_shows_a_commit_once(client: Client, alice: User, project: Project) -> None:
    made.bind(alice, project)
    made.fetch_commit(alice, project, made.make_node())
    assert page(client, "detail", project.pk).count(f">{made.FIRST[:10]}<") == 1
    assert f"lab/train {made.FIRST[:10]}" not in page(client, "detail", project.pk)


def test_an_address_of_this_machine_alone_is_named_beside_the_webhook(
    client: Client, alice: User, project: Project, settings: Any
) -> None:
    made.bind(alice, project)
    settings.SITE_URL = "http://localhost:8000"
    assert "Only this machine can reach this address" in page(client, "git", project.pk)
    settings.SITE_URL = "https://lab.example.org"
    assert "Only this machine can reach this address" not in page(client, "git", project.pk)


def test_an_archived_project_offers_nothing_to_do(client: Client, alice: User, project: Project) -> None:
    made.bind(alice, project)
    services.archive_project(alice, project)
    shown = page(client, "git", project.pk)
    assert "This project is archived" in shown and "Only owners" not in shown and "Save" not in shown
