"""The pages of environments, as Alice (owner), Bob (member), Victor (viewer), Charlie (no access) and an admin see them."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from portal.accounts.models import User
from portal.environments import builds, services
from portal.environments.models import Environment, NodeEnvironment, PackageSettings
from portal.projects.models import Membership
from portal.sentences import agents
from runners.messages.layer_failures import NoSuchPackage
from tests.portal import environments_world as made
from tests.portal import jobs_world as world
from tests.portal.pages import compact, one_line

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert(1)</script>"


class Lab:
    def __init__(self) -> None:
        self.alice, self.bob, self.victor, self.charlie = (
            world.make_user(name) for name in ("alice", "bob", "victor", "charlie")
        )
        self.ada = world.make_user("ada", is_staff=True)
        self.project = world.make_project(self.alice, "Vision")
        Membership.objects.create(project=self.project, user=self.bob, role=Membership.Role.MEMBER)
        Membership.objects.create(project=self.project, user=self.victor, role=Membership.Role.VIEWER)
        self.base = made.make_base()
        self.node = world.make_node("alpha")
        self.mine = made.make_environment(self.alice, self.project, ["rich", "pandas>=2"], "Vision tools")
        self.shared = made.make_environment(self.ada, None, ["tqdm"], "Tools of the lab")

    def get(self, user: User, address: str, **options: Any) -> Any:
        client = Client()
        client.force_login(user)
        return client.get(address, **options)

    def post(self, user: User, address: str, data: dict[str, Any] | None = None, **options: Any) -> Any:
        client = Client()
        client.force_login(user)
        return client.post(address, data or {}, **options)


@pytest.fixture
def lab(settings: Any, tmp_path: Path) -> Lab:
    settings.HOME = tmp_path  # rows of earlier tests had the same numbers, by which logs are called
    return Lab()


def text_of(response: Any) -> str:
    return one_line(response.content.decode())


# --- the list ----------------------------------------------------------------------------------------------------


def test_the_list_has_environments_of_the_lab_and_of_ones_projects(lab: Lab) -> None:
    for user, sees in ((lab.bob, True), (lab.victor, True), (lab.ada, True), (lab.charlie, False)):
        page = text_of(lab.get(user, "/environments/"))
        assert "Tools of the lab" in page
        assert ("Vision tools" in page) is sees, user


def test_a_row_shows_where_the_environment_stands(lab: Lab) -> None:
    build = made.start(lab.node, lab.mine)
    builds.record_progress(build, 40, "", 0, b"")
    page = text_of(lab.get(lab.bob, "/environments/"))
    assert "being built" in page
    assert "alpha builds it: 40 %" in page

    made.finish(build)
    made.place(lab.node, lab.mine, "ready")
    page = compact(lab.get(lab.bob, "/environments/").content.decode())
    assert "on 1 node" in page
    assert "4.8 MiB" in page
    assert "+ 2" in page


def test_a_row_shows_why_a_build_failed_until_it_is_requested_again(lab: Lab) -> None:
    builds.fail(made.start(lab.node, lab.mine), made.failure())
    page = text_of(lab.get(lab.bob, "/environments/?q=vision"))
    assert "The node that built it stopped, the last time the node of rich." in page
    lab.post(lab.alice, f"/environments/{lab.mine.key}/build-again")
    assert "waits for a node" in text_of(lab.get(lab.bob, "/environments/?q=vision"))


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", {"PyTorch", "Vision tools", "Tools of the lab"}),
        ("?q=PANDAS", {"Vision tools"}),
        ("?q=vision", {"Vision tools"}),
        ("?show=lab", {"PyTorch", "Tools of the lab"}),
        ("?show=mine", {"Vision tools"}),
        ("?project={project}", {"Vision tools"}),
        ("?state=ready", {"PyTorch"}),
        ("?state=building", {"Tools of the lab"}),
        ("?state=failed", {"Vision tools"}),
        ("?state=not_built", {"Vision tools", "Tools of the lab"}),
        ("?state=removed", {"Old"}),
    ],
)
def test_the_list_is_filtered(lab: Lab, query: str, found: set[str]) -> None:
    shown = [lab.base.pk, lab.mine.pk, lab.shared.pk]
    Environment.objects.filter(base__recipe="").exclude(pk__in=shown).delete()
    Environment.objects.exclude(pk__in=shown).delete()
    Environment.objects.create(key="old", title="Old", retired=True)
    made.place(lab.node, lab.base, NodeEnvironment.State.READY)
    builds.fail(made.start(lab.node, lab.mine), made.failure())
    made.start(lab.node, lab.shared)
    page = lab.get(lab.alice, f"/environments/{query.format(project=lab.project.pk)}")
    assert {environment.title for environment, _ in page.context["rows"]} == found


def test_what_of_a_query_string_means_nothing_is_named(lab: Lab) -> None:
    page = text_of(lab.get(lab.alice, "/environments/?show=x&state=y&project=z&sort=a"))
    for part in ("“x”", "“y”", "“z”", "“a”"):
        assert part in page


def test_every_order_of_the_list_works(lab: Lab) -> None:
    made.build(lab.node, lab.mine)
    for sort in ("title", "place", "base", "size", "used", "jobs", "creator", "created"):
        for sign in ("", "-"):
            assert len(lab.get(lab.alice, f"/environments/?sort={sign}{sort}").context["rows"]) >= 3


def test_the_number_of_queries_of_the_list_does_not_grow(lab: Lab) -> None:
    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as seen:
            assert lab.get(lab.alice, "/environments/").status_code == 200
        return len(seen)

    made.build(lab.node, lab.mine)
    few = queries()
    for number in range(6):
        row = made.make_environment(lab.alice, lab.project, [f"package{number}"])
        made.build(lab.node, row)
        world.make_job(lab.project, environment=row)
    assert queries() == few


def test_only_jobs_that_the_reader_may_see_are_counted(lab: Lab) -> None:
    world.make_job(lab.project, environment=lab.shared)
    world.make_job(world.make_project(lab.charlie, "Other"), environment=lab.shared)
    for user, count in ((lab.bob, 1), (lab.ada, 2)):
        rows = lab.get(user, "/environments/?q=lab").context["rows"]
        assert [row.job_count for row, _ in rows] == [count]
        listed = lab.get(user, f"/jobs/?environment={lab.shared.key}").context["page"]
        assert len(listed.object_list) == count


# --- one environment ---------------------------------------------------------------------------------------------


def test_the_page_shows_what_it_is_made_of_and_where_it_is(lab: Lab) -> None:
    lock = made.build(lab.node, lab.mine)
    other = world.make_node("beta")
    made.place(other, lab.mine, "failed", detail=made.failure("pandas"))
    world.make_job(lab.project, environment=lab.mine, name="fine-tune")
    page = text_of(lab.get(lab.victor, f"/environments/{lab.mine.key}/"))
    for part in ("pandas&gt;=2", "PyTorch", "alice", "Python 3.11, x86_64, CPU", "alpha", "beta", "the node of pandas"):
        assert part in page, part
    assert "Look at that node, then choose Build again" in page
    assert reverse("environments:lock", args=[lab.mine.key, lock.digest]) in page
    assert "fine-tune" in page
    assert "Build again" not in page.split("<main")[1].split("Nodes")[0].split("page-head")[1].split("</header>")[0]


def test_an_environment_behind_others_names_their_node(lab: Lab) -> None:
    made.place(lab.node, lab.mine, "waiting", detail=agents.environments.BehindOthers().data())
    for address in (f"/environments/{lab.mine.key}/", "/environments/?q=vision"):
        page = text_of(lab.get(lab.bob, address))
        assert "alpha prepares other" in page and "usually within a minute" not in page


def test_the_page_names_nodes_that_could_not_begin_a_build(lab: Lab) -> None:
    lacks = agents.layer_failures.NeedsPython("3.13", "3.11").data()
    made.place(lab.node, lab.mine, "failed", detail=lacks)
    page = text_of(lab.get(lab.victor, f"/environments/{lab.mine.key}/"))
    assert "Nothing is built. The nodes below show why." in page and "This node has no Python 3.13." in page
    assert "Nothing is built yet" not in page


def test_strangers_see_nothing_of_an_environment_of_a_project(lab: Lab) -> None:
    lock = made.build(lab.node, lab.mine)
    number = lock.builds.get().pk
    for path in (
        "",
        f"locks/{lock.digest}/",
        f"builds/{number}/",
        f"builds/{number}/log.txt",
        f"builds/{number}/log?offset=0",
    ):
        address = f"/environments/{lab.mine.key}/{path}"
        assert lab.get(lab.charlie, address).status_code == 404, path
        assert lab.get(lab.victor, address).status_code in (200, 204), path
    assert lab.get(lab.alice, f"/environments/{lab.shared.key}/locks/{lock.digest}/").status_code == 404
    assert lab.get(lab.alice, f"/environments/{lab.shared.key}/builds/{number}/").status_code == 404
    assert lab.get(lab.alice, f"/environments/{lab.base.key}/builds/{number}/").status_code == 404


def test_titles_lines_and_logs_of_strangers_stay_text(lab: Lab) -> None:
    Environment.objects.filter(pk=lab.mine.pk).update(
        title=HOSTILE, description=HOSTILE, lines=[HOSTILE], packages=[HOSTILE]
    )
    build = made.start(lab.node, lab.mine)
    log = f"{HOSTILE}\n\x1b[31mred\x1b[0m \x1b]0;title\x07\u202egnp.exe\n10 %\r20 %\rdone\n".encode()
    builds.record_progress(build, 5, HOSTILE, 0, log)
    for path in ("", f"builds/{build.pk}/", f"builds/{build.pk}/log?offset=0"):
        page = lab.get(lab.alice, f"/environments/{lab.mine.key}/{path}").content.decode()
        assert HOSTILE not in page, path
    shown = lab.get(lab.alice, f"/environments/{lab.mine.key}/builds/{build.pk}/").content.decode()
    assert "red \\u202egnp.exe\ndone\n" in shown
    assert "\x1b" not in shown
    assert HOSTILE not in lab.get(lab.alice, "/environments/").content.decode()


def test_a_curated_environment_has_its_page_too(lab: Lab) -> None:
    made.place(lab.node, lab.base, "ready")
    page = text_of(lab.get(lab.charlie, f"/environments/{lab.base.key}/"))
    assert "each node prepares it itself" in page
    assert "torch, numpy" in page
    assert "Remove" not in page.split("<main")[1]


def test_the_part_that_changes_is_fetched_alone(lab: Lab) -> None:
    made.start(lab.node, lab.mine)
    part = lab.get(lab.alice, f"/environments/{lab.mine.key}/", headers={"HX-Request": "true", "Edition": ""})
    assert part.content.decode().strip().startswith("<div")
    assert "alpha builds it" in text_of(part) and 'id="builds"' in part.content.decode()
    same = lab.get(
        lab.alice, f"/environments/{lab.mine.key}/", headers={"HX-Request": "true", "Edition": part["Edition"]}
    )
    assert same.status_code == 204


def test_why_it_failed_is_stated_once_for_the_build_and_its_node(lab: Lab) -> None:
    build = made.start(lab.node, lab.mine)
    failure = NoSuchPackage("somepkg").data()
    builds.fail(build, failure)
    NodeEnvironment.objects.create(node=lab.node, environment=lab.mine, state="failed", detail=failure)
    page = text_of(lab.get(lab.alice, f"/environments/{lab.mine.key}/"))
    assert page.count("has no package somepkg") == 2  # above, and in the table of builds
    assert "Change the list" in page and "Build again helps if the cause has gone" in page


def test_exact_versions_of_an_environment_that_nodes_prepare_are_on_its_page(lab: Lab) -> None:
    lab.base.pins = ["torch==2.13.0", "numpy==2.4.6"]
    lab.base.save()
    page = text_of(lab.get(lab.bob, f"/environments/{lab.base.key}/"))
    assert "Exact versions of 2 packages" in page and "torch==2.13.0" in page
    assert "Exact versions" not in text_of(lab.get(lab.alice, f"/environments/{lab.mine.key}/"))


def test_lines_that_contradict_the_base_are_named_before_the_environment_is_made(lab: Lab) -> None:
    lab.base.pins = ["torch==2.13.0", "numpy==2.4.6"]
    lab.base.save()
    sent = {"packages": "torch==1.12\nrich\nnumpy<2", "project": lab.project.pk, "do": "preview"}
    page = text_of(lab.post(lab.bob, "/environments/new/", sent | {"base": lab.base.key}))
    assert "<code>torch==1.12</code>: the base has torch 2.13.0" in page
    assert "<code>numpy&lt;2</code>: the base has numpy 2.4.6" in page
    assert "the base has" not in text_of(lab.post(lab.bob, "/environments/new/", sent | {"base": "full"}))


def test_one_that_exists_and_failed_is_not_announced_as_being_built(lab: Lab) -> None:
    builds.fail(made.start(lab.node, lab.mine), made.failure("rich"))
    sent = {"packages": "rich\npandas>=2", "project": lab.project.pk, "base": lab.base.key, "do": "create"}
    response = lab.post(lab.bob, "/environments/new/", sent, follow=True)
    assert [str(message) for message in response.context["messages"]] == [
        "“Vision tools” exists already, with the same packages."
    ]


# --- builds ------------------------------------------------------------------------------------------------------


def test_the_log_of_a_running_build_is_continued_where_the_page_ends(lab: Lab) -> None:
    build = made.start(lab.node, lab.mine)
    address = f"/environments/{lab.mine.key}/builds/{build.pk}/"
    builds.record_progress(build, 5, "", 0, "Grüße\n".encode())
    page = lab.get(lab.alice, address)
    assert "Grüße" in page.content.decode()
    end = page.context["log"].end
    assert lab.get(lab.alice, f"{address}log?offset={end}").status_code == 204
    builds.record_progress(build, 6, "", end, b"more\n")
    part = lab.get(lab.alice, f"{address}log?offset={end}").content.decode()
    assert part.startswith("more\n<span")
    assert f"offset={end + 5}" in part
    for bad in ("", "-1", "x", "9" * 13, "٣"):
        assert lab.get(lab.alice, f"{address}log?offset={bad}").status_code == 404, bad


def test_a_page_of_a_running_build_is_loaded_again_once_it_is_over(lab: Lab) -> None:
    build = made.start(lab.node, lab.mine)
    address = f"/environments/{lab.mine.key}/builds/{build.pk}/"
    headers = {"HX-Request": "true", "Edition": ""}
    assert lab.get(lab.alice, address, headers=headers).status_code == 200
    made.finish(build)
    assert lab.get(lab.alice, address, headers=headers)["HX-Refresh"] == "true"
    page = text_of(lab.get(lab.alice, address))
    assert "2 packages, 4.8 MiB" in page
    assert "This build has no log." in page


def test_only_the_end_of_a_long_log_is_on_the_page(lab: Lab) -> None:
    build = made.start(lab.node, lab.mine)
    line = b"x" * 99 + b"\n"
    builds.record_progress(build, 5, "", 0, b"first\n" + line * 2000 + b"last\n")
    page = lab.get(lab.alice, f"/environments/{lab.mine.key}/builds/{build.pk}/").content.decode()
    assert "last" in page
    assert "first" not in page.split("<pre>")[1]
    whole = b"".join(lab.get(lab.alice, f"/environments/{lab.mine.key}/builds/{build.pk}/log.txt").streaming_content)
    assert whole.startswith(b"first\n")


def test_a_user_of_another_project_is_not_named_where_a_build_is_shared(lab: Lab) -> None:
    evelyn = world.make_user("evelyn-k")
    hers = made.make_environment(evelyn, world.make_project(evelyn, "Hers"), lab.mine.lines, "Hers")
    build = made.start(lab.node, hers)
    services.cancel_build(evelyn, build)
    mine, theirs = f"environments/{lab.mine.key}/", f"environments/{hers.key}/"
    for path in (mine, f"{mine}builds/{build.pk}/", f"api/v1/{mine}builds/", f"api/v1/{mine}builds/{build.pk}/"):
        text = text_of(lab.get(lab.alice, f"/{path}"))
        assert "Another project that shares this build cancelled it. Choose Build again" in text, path
        assert evelyn.username not in text, path
    assert f'action="/{mine}build-again"' in text_of(lab.get(lab.alice, f"/{mine}"))
    assert "Another project that shares this build" in text_of(lab.get(lab.alice, "/environments/"))
    for path in (theirs, f"{theirs}builds/{build.pk}/", f"api/v1/{theirs}builds/"):
        assert "evelyn-k cancelled the build" in text_of(lab.get(evelyn, f"/{path}")), path
    messages = [builds.claim(lab.node, row, made.KIND).failure for row in (lab.mine, hers)]
    assert [message["user"] for message in messages] == ["", "evelyn-k"]


def test_all_who_use_an_environment_of_the_lab_read_who_cancelled_its_build(lab: Lab) -> None:
    other = made.make_environment(lab.alice, lab.project, lab.shared.lines, "The same")
    services.cancel_build(lab.ada, made.start(lab.node, lab.shared))
    assert "ada cancelled the build" in text_of(lab.get(lab.bob, f"/environments/{other.key}/"))


# --- actions -----------------------------------------------------------------------------------------------------


def test_who_may_build_again_cancel_and_remove(lab: Lab) -> None:
    made.start(lab.node, lab.mine)
    number = lab.mine.builds.get().pk
    for path in (f"builds/{number}/cancel", "build-again", "remove"):
        for user in (lab.bob, lab.victor, lab.charlie):
            lab.post(user, f"/environments/{lab.mine.key}/{path}")
            lab.mine.refresh_from_db()
            assert (lab.mine.generation, lab.mine.retired, lab.mine.builds.get().state) == (1, False, "running"), path
    lab.post(lab.alice, f"/environments/{lab.mine.key}/builds/{number}/cancel")
    assert lab.mine.builds.get().state == "cancelled"
    lab.post(lab.alice, f"/environments/{lab.mine.key}/build-again")
    lab.mine.refresh_from_db()
    assert lab.mine.generation == 2
    lab.post(lab.alice, f"/environments/{lab.mine.key}/remove")
    lab.mine.refresh_from_db()
    assert lab.mine.retired


def test_an_environment_that_a_job_needs_is_not_removed(lab: Lab) -> None:
    world.make_job(lab.project, environment=lab.mine)
    page = text_of(lab.post(lab.alice, f"/environments/{lab.mine.key}/remove", follow=True))
    assert "has not ended" in page
    lab.mine.refresh_from_db()
    assert not lab.mine.retired


def test_a_removed_environment_keeps_its_page(lab: Lab) -> None:
    lab.post(lab.alice, f"/environments/{lab.mine.key}/remove")
    page = text_of(lab.get(lab.alice, f"/environments/{lab.mine.key}/"))
    assert "This environment was removed" in page
    assert "Remove it" not in page and "nodes-title" not in page
    assert "This environment was removed" in text_of(
        lab.post(lab.alice, f"/environments/{lab.mine.key}/build-again", follow=True)
    )


# --- a new one ---------------------------------------------------------------------------------------------------


def form(lab: Lab, **fields: Any) -> dict[str, Any]:
    return {"project": str(lab.project.pk), "base": "pytorch", "packages": "rich", "do": "preview", **fields}


def test_a_preview_shows_what_was_understood_and_makes_nothing(lab: Lab) -> None:
    count = Environment.objects.count()
    page = lab.post(
        lab.bob, "/environments/new/", form(lab, packages="pip install seaborn -e ./mine\ngit+https://x.org/a")
    )
    text = text_of(page)
    assert page.status_code == 200
    assert "seaborn" in text
    assert "Create without the refused lines" in text
    assert "-e ./mine" in text
    assert Environment.objects.count() == count


def test_what_was_shown_is_created(lab: Lab) -> None:
    sent = form(lab, packages="seaborn==0.13.2\n-e .")
    digest = lab.post(lab.bob, "/environments/new/", sent).context["understood"].digest
    answer = lab.post(lab.bob, "/environments/new/", {**sent, "do": "create", "understood": digest})
    row = Environment.objects.get(lines=["seaborn==0.13.2"])
    assert answer["Location"] == f"/environments/{row.key}/"
    assert (row.project, row.created_by, row.base, row.title) == (
        lab.project,
        lab.bob,
        lab.base,
        "PyTorch with seaborn",
    )


def test_another_list_than_was_shown_is_shown_first(lab: Lab) -> None:
    digest = lab.post(lab.bob, "/environments/new/", form(lab)).context["understood"].digest
    sent = form(lab, packages="seaborn\n-e .", do="create", understood=digest)
    answer = lab.post(lab.bob, "/environments/new/", sent)
    assert answer.status_code == 409
    assert "The list is another one than you last saw here." in text_of(answer)
    assert not Environment.objects.filter(lines=["seaborn"]).exists()


def test_a_file_is_read_and_carried_to_the_next_step(lab: Lab) -> None:
    content = "name: x\ndependencies:\n  - python=3.10\n  - pandas\n  - cudatoolkit\n  - pip:\n    - rich\n"
    sent = form(lab, packages="", file=SimpleUploadedFile("environment.yml", content.encode()))
    page = lab.post(lab.bob, "/environments/new/", sent)
    understood = page.context["understood"]
    assert set(understood.lines) == {"pandas", "rich"}
    assert "The list asks for Python 3.10." in text_of(page)
    again = form(
        lab,
        packages="",
        do="create",
        understood=understood.digest,
        file_name=page.context["file_name"],
        file_text=page.context["file_text"],
    )
    assert lab.post(lab.bob, "/environments/new/", again).status_code == 302
    assert Environment.objects.filter(lines=list(understood.lines)).exists()
    dropped = lab.post(lab.bob, "/environments/new/", {**again, "drop": "file", "do": "preview", "packages": "tqdm"})
    assert dropped.context["understood"].lines == ("tqdm",)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.yml", b"rich"),
        ("environment.yml", b"a: &a [1,1]\nb: &b [*a,*a]\nc: [*b,*b]\n"),
        ("requirements.txt", b"\xff\xfe\0\0"),
        ("requirements.txt", b"x" * 300_000),
        ("../requirements.txt", b"-r /etc/passwd\n--index-url https://evil.example\n"),
        ("pyproject.toml", b"[project\n"),
    ],
)
def test_files_that_cannot_be_used_are_refused_in_words(lab: Lab, name: str, content: bytes) -> None:
    sent = form(lab, packages="", do="create", file=SimpleUploadedFile(name, content))
    page = lab.post(lab.bob, "/environments/new/", sent)
    assert page.status_code in (400, 409)
    assert Environment.objects.count() == len(Environment.objects.filter(created_by=None)) + 2


def test_the_rules_for_new_ones_hold(lab: Lab) -> None:
    for user, changes, words in (
        (lab.victor, {}, "Select a valid choice"),
        (lab.charlie, {}, "Select a valid choice"),
        (lab.bob, {"project": "lab"}, "Select a valid choice"),
        (lab.bob, {"base": lab.shared.key}, "Select a valid choice"),
        (lab.bob, {"python": "3.12"}, "Only a full environment has it"),
        (lab.bob, {"horovod": "on"}, "Only a full environment has it"),
        (lab.bob, {"title": "a\u202eb"}, "invisible"),
        (lab.bob, {"packages": "", "do": "create"}, "no package to install"),
    ):
        page = lab.post(user, "/environments/new/", form(lab, **({"do": "create"} | changes)))
        text = text_of(page)
        assert page.status_code in (400, 409) or "belongs to a project" in text, (user, changes)
        if user is lab.bob:
            assert words in text, changes
    assert Environment.objects.filter(lines=["rich"]).count() == 0


def test_a_full_environment_with_python_and_horovod(lab: Lab) -> None:
    sent = form(lab, base="full", python="3.12", horovod="on", packages="torch==2.4.1", do="create")
    assert lab.post(lab.bob, "/environments/new/", sent).status_code == 302
    row = Environment.objects.get(lines=["torch==2.4.1"])
    assert (row.base, row.python, row.horovod, row.is_full) == (None, "3.12", True, True)


def test_admins_make_environments_of_the_lab_and_from_source(lab: Lab) -> None:
    assert "source_builds" not in lab.get(lab.bob, "/environments/new/").context["form"].fields
    sent = form(lab, project="lab", source_builds="on", do="create", packages="imgaug")
    assert lab.post(lab.ada, "/environments/new/", sent).status_code == 302
    row = Environment.objects.get(lines=["imgaug"])
    assert (row.project, row.source_builds) == (None, True)


def test_the_same_packages_make_no_second_environment(lab: Lab) -> None:
    sent = form(lab, packages="pandas>=2\nrich", do="create")
    answer = lab.post(lab.bob, "/environments/new/", sent)
    assert answer.status_code == 302
    assert lab.project.environments.count() in (1, 2)  # by the order of the lines
    again = lab.post(lab.alice, "/environments/new/", sent)
    assert again["Location"] == answer["Location"]


# --- for admins --------------------------------------------------------------------------------------------------


def test_admins_decide_what_environments_may_contain(lab: Lab) -> None:
    assert lab.get(lab.alice, "/admin/environments/").status_code == 404
    page = lab.get(lab.ada, "/admin/environments/")
    assert page.status_code == 200
    sent = {
        "allowed_sources": "HTTPS://Download.example.org/whl/\n\nhttps://download.example.org:443/whl/",
        "source_builds": "on",
    }
    assert lab.post(lab.ada, "/admin/environments/", sent).status_code == 302
    settings = PackageSettings.current()
    assert (settings.allowed_sources, settings.source_builds) == (["https://download.example.org/whl/"], True)
    wrong = lab.post(lab.ada, "/admin/environments/", {"allowed_sources": "https://a.org/\nftp://b.org/"})
    assert wrong.status_code == 400
    assert "Line 2:" in text_of(wrong)
    assert PackageSettings.current().allowed_sources == ["https://download.example.org/whl/"]


def test_two_admins_do_not_overwrite_each_other(lab: Lab) -> None:
    shown = '{"allowed_sources": "", "source_builds": false}'
    first = {"allowed_sources": "https://a.org/", "shown_values": shown}
    assert lab.post(lab.ada, "/admin/environments/", first).status_code == 302
    second = lab.post(lab.ada, "/admin/environments/", {"allowed_sources": "https://b.org/", "shown_values": shown})
    assert second.status_code == 409
    assert "ada has changed this since you opened it" in text_of(second)
    assert PackageSettings.current().allowed_sources == ["https://a.org/"]


def test_the_page_of_admins_shows_sizes_users_and_what_is_unused(lab: Lab) -> None:
    made.build(lab.node, lab.mine)
    world.make_job(lab.project, environment=lab.mine, submitted_by=lab.bob)
    world.make_job(lab.project, environment=lab.mine)
    old = lab.shared.created_at - timedelta(days=100)
    Environment.objects.filter(pk=lab.shared.pk).update(created_at=old, requested_at=old)
    page = lab.get(lab.ada, "/admin/environments/")
    rows = {row.title: row for row, _ in page.context["rows"]}
    assert (rows["Vision tools"].users, rows["Vision tools"].job_count, rows["Vision tools"].size) == (2, 2, 5_000_000)
    assert page.context["unused"] == {lab.shared.pk}
    assert page.context["layers"] == {"count": 1, "bytes": len(made.CONTENT)}
    only = lab.get(lab.ada, "/admin/environments/?unused=1")
    assert [row.title for row, _ in only.context["rows"]] == ["Tools of the lab"]
    back = lab.post(lab.ada, f"/environments/{lab.shared.key}/remove", {"next": "/admin/environments/?unused=1"})
    assert back["Location"] == "/admin/environments/?unused=1"
    assert "Every environment has been used" in text_of(lab.get(lab.ada, "/admin/environments/?unused=1"))


def test_the_page_of_a_project_has_its_environments(lab: Lab) -> None:
    address = f"/projects/{lab.project.pk}/environments"
    assert address in lab.get(lab.bob, f"/projects/{lab.project.pk}/").content.decode()
    part = text_of(lab.get(lab.bob, address))
    assert "Vision tools" in part
    assert "New environment" in part
    assert "New environment" not in text_of(lab.get(lab.victor, address))
    assert lab.get(lab.charlie, address).status_code == 404
