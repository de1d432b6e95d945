"""The rows of the database: who sees them, what they never show, and what may be changed there."""

import json
import re
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Group
from django.contrib.sessions.models import Session
from django.db import connection, models
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.accounts.models import AuditEntry, LabSettings, User
from portal.cluster.models import Reservation
from portal.jobs.models import Job
from portal.ops.data_admin.hidden import HIDDEN, shown_models
from portal.ops.data_admin.places import place_of
from portal.ops.data_admin.site import DataAdmin, site
from portal.projects.models import Project
from portal.scheduler.models import SchedulerConfig
from tests.laws.people import SECRET, World, make_world
from tests.portal.jobs_world import make_user

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases, pytest.mark.timeout(400)]

LOOKS_SECRET = re.compile(
    r"pass|secret|token|digest|salt|sha\d|hash|key|env|spec|session|cookie|prefix|permission|content"
)
NO_SECRET = {
    "jobs.job.secrets": "names of secrets",
    "accounts.user.name_key": "the user name in lower case",
    "accounts.groupname.name_key": "the name of the group in lower case",
    "environments.environment.key": "the name of the environment",
    "cluster.node.token_revoked_at": "a time",
    "environments.allowedhost.environment": "a relation",
    "notifications.notice.content": "of a mail with a secret, its code alone",
    "notifications.preferences.digest": "how often messages are summarised",
    "notifications.preferences.digest_at": "a time of day",
    "environments.build.environment": "a relation",
    "environments.lock.digest": "the name of a list of packages, also on pages",
    "environments.nodeenvironment.environment": "a relation",
    "jobs.job.environment": "a relation",
    "projects.gitfetch.commit": "the name of a commit, also on pages",
    "projects.versioncommit.commit": "the name of a commit, also on pages",
    "projects.gitsource.public_key": "the public part of the deploy key, also on pages",
    "projects.gitsource.host_key": "the public key of a host",
    "projects.gitsource.offered_host_key": "the public key of a host",
    "schedules.schedule.environment": "a relation",
    "schedules.schedule.zone": "the name of a time zone",
}
REVIEWED = {
    "accounts.auditentry.after",
    "accounts.auditentry.before",
    "accounts.listcolumns.columns",
    "environments.environment.constraints",
    "environments.environment.indexes",  # addresses with user names or passwords are refused
    "environments.environment.lines",
    "environments.environment.pins",
    "environments.environment.packages",
    "environments.imagesettings.allowed",
    "environments.lock.facts",  # of an image: its size, interpreter and libraries
    "environments.lock.modules",
    "environments.packagesettings.allowed_sources",
    "cluster.node.facts",
    "cluster.node.problems",
    "control.cycle.dropped",
    "control.policystate.state",
    "control.schedulerconfig.params",
    "forecast.forecast.kinds",
    "forecast.forecast.trail",
    "jobs.attempt.allowed_hosts",
    "jobs.attempt.cause",
    "jobs.job.arguments",
    "jobs.job.gpu_models",
    "jobs.jobevent.data",
    "jobs.networkuse.hosts",
    "jobs.progress.per_rank",
    "jobs.rankgroup.hosts",
    "jobs.timeextension.delays",
    "gauges.hour.minutes",
    "gauges.sample.readings",
    "notifications.channel.events",
    "notifications.channel.off",
    "notifications.notificationsettings.allowed_hosts",
    "notifications.notificationsettings.apprise_schemes",
    "notifications.notificationsettings.channel_types",
    "notifications.preferences.mail_off",
    "notifications.preferences.portal_off",
    "projects.codeversion.guess",
    "storage.datasetversion.notes",  # sentences on names of files
    "usage.usageday.waits",
    "whatif.simulation.parts",
    "whatif.simulation.policies",
    "whatif.simulation.result",
}
"""Structures of which a developer has made sure that no secret gets in."""


@pytest.fixture
def world() -> World:
    return make_world()


def browser_of(user: User) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(user)
    return client


@pytest.fixture
def admin(world: World) -> Client:
    return browser_of(world.ada)


@pytest.fixture
def lone_admin() -> Client:
    return browser_of(make_user("ada", is_staff=True))


def list_url(model: type[models.Model]) -> str:
    return f"/admin/data/{model._meta.app_label}/{model._meta.model_name}/"


def row_url(row: models.Model) -> str:
    return f"{list_url(type(row))}{row.pk}/change/"


def admin_of(model: type[models.Model]) -> DataAdmin:
    found = site._registry[model]
    assert isinstance(found, DataAdmin)
    return found


def name_of(field: Any) -> str:
    return f"{field.model._meta.label_lower}.{field.name}"


def looks_secret(field: Any) -> bool:
    if name_of(field) in NO_SECRET:
        return False
    is_digest = isinstance(field, models.CharField) and field.max_length == 64 and not field.choices
    is_structure = isinstance(field, models.JSONField | models.BinaryField) and name_of(field) not in REVIEWED
    return bool(LOOKS_SECRET.search(field.name)) or is_digest or is_structure


def fields_of(model: type[models.Model]) -> list[Any]:
    return [*model._meta.concrete_fields, *model._meta.many_to_many]


class TestWhatIsNeverShown:
    def test_every_model_of_the_portal_has_a_table_and_none_of_packages_but_groups(self) -> None:
        assert {model for model in site._registry if not model.__module__.startswith("portal.")} == {Group}
        assert set(site._registry) == set(shown_models()) and len(site._registry) > 35
        assert Session not in site._registry

    def test_every_field_that_looks_like_a_secret_is_hidden(self) -> None:
        shown = {
            name_of(field)
            for model in site._registry
            for field in fields_of(model)
            if looks_secret(field) and field.name not in HIDDEN.get(model._meta.label_lower, ())
        }
        assert not shown, "hide them in portal/ops/data_admin/hidden.py, or say here why they are none"

    def test_every_name_in_the_list_of_hidden_fields_exists(self) -> None:
        known = {name_of(field) for model in site._registry for field in fields_of(model)}
        assert {f"{label}.{name}" for label, names in HIDDEN.items() for name in names} <= known
        assert set(NO_SECRET) | REVIEWED <= known

    def test_no_column_search_or_filter_uses_a_hidden_field(self) -> None:
        for model in site._registry:
            hidden, table = HIDDEN.get(model._meta.label_lower, frozenset()), admin_of(model)
            columns = [*table.list_display, *table.page_fields]
            names = {name if isinstance(name, str) else name.__name__.removeprefix("show_") for name in columns}
            assert not hidden & (names | {path.partition("__")[0] for path in table.searched} | table.comparable)
            for path in table.searched:  # into other tables by names only
                assert path == "pk__exact" or path.partition("__")[2] in ("", "username", "name", "key"), path

    def test_no_page_has_the_content_of_a_hidden_field(self, world: World, admin: Client) -> None:
        rows = 0
        for model in site._registry:
            pages = [admin.get(list_url(model))]
            assert pages[0].status_code == 200, model
            if row := model._default_manager.first():
                rows += 1
                pages.append(admin.get(row_url(row)))
                assert pages[1].status_code == 200, model
            for name in HIDDEN.get(model._meta.label_lower, ()):
                if model._meta.get_field(name).many_to_many:
                    continue
                values = {str(value) for value in model._default_manager.values_list(name, flat=True) if value}
                text = "".join(page.content.decode() for page in pages)
                assert not [value for value in values if len(value) > 7 and value in text], (model, name)
            text = "".join(page.content.decode() for page in pages)
            assert SECRET not in text and not re.search(r">\s*(None|True|False|nan|\[\]|\{\})\s*<", text), model
        assert rows > 15

    @pytest.mark.parametrize(
        ("table", "query"),
        [
            ("accounts/user", "password__startswith=argon2"),
            ("accounts/user", "password=x"),
            ("accounts/user", "session_salt__gte=0"),
            ("accounts/user", "username__startswith=a"),
            ("accounts/user", "api_tokens__token_digest__startswith=a"),
            ("accounts/user", "logentry__object_repr=x"),
            ("jobs/job", "submitted_by__password__startswith=a"),
            ("jobs/job", "submitted_by__password=a"),
            ("jobs/job", "env_vars__icontains=a"),
            ("jobs/job", "env_vars__TOKEN__startswith=a"),
            ("jobs/job", "attempts__secret__startswith=a"),
            ("jobs/attempt", "job__env_vars__TOKEN=a"),
            ("jobs/attempt", "secret__startswith=a"),
            ("cluster/jointoken", "token_digest__gte=8"),
            ("accounts/invite", "created_by__session_salt__startswith=a"),
        ],
    )
    def test_a_filter_cannot_guess_a_hidden_column(self, world: World, admin: Client, table: str, query: str) -> None:
        assert admin.get(f"/admin/data/{table}/?{query}").status_code == 400

    def test_a_row_is_found_by_its_number_only(self, world: World, admin: Client) -> None:
        salt = world.alice.session_salt
        for field in ("session_salt", "password", "username"):
            response = admin.get(f"/admin/data/accounts/user/{salt}/change/?_to_field={field}")
            assert response.status_code in (400, 404) and b"alice" not in response.content

    def test_the_order_is_by_shown_columns_only(self, world: World, admin: Client) -> None:
        for table in ("accounts/user", "jobs/job", "cluster/node"):
            for order in (*range(-30, 31), "password", "-secret.1", "x"):
                with CaptureQueriesContext(
                    connection,
                ) as queries:
                    assert admin.get(f"/admin/data/{table}/?o={order}").status_code == 200
                ordered = " ".join(
                    query["sql"].partition("ORDER BY")[2] for query in queries if "django_session" not in query["sql"]
                )
                assert not LOOKS_SECRET.search(ordered), ordered

    def test_a_search_does_not_look_into_hidden_columns(self, world: World, admin: Client) -> None:
        def found(table: str, words: str) -> bool:
            return (
                b"0 results" not in (page := admin.get(f"/admin/data/{table}/", {"q": words})).content
                and b"field-row_number" in page.content
            )

        assert (
            found("accounts/user", "alice") and found("jobs/job", str(world.running.pk)) and found("jobs/job", "alice")
        )
        assert not found("accounts/user", world.alice.password[:12]) and not found("jobs/job", SECRET)
        assert not found("accounts/user", world.alice.session_salt)


class TestAccess:
    def test_only_admins_enter_and_for_others_nothing_is_there(self, world: World) -> None:
        paths = ["/admin/data/", "/admin/data/jobs/", *(list_url(model) for model in site._registry)]
        paths += [row_url(world.running), row_url(world.alice), "/admin/data/jsi18n/"]
        for path in paths:
            assert Client().get(path)["Location"] == f"/accounts/sign-in/?next={path}"
            for user in (world.alice, world.charlie):
                assert browser_of(user).get(path).status_code == 404, path
        superuser = make_user("root", is_superuser=True)
        assert browser_of(superuser).get("/admin/data/").status_code == 404

    def test_an_admin_opens_the_tables_of_each_app(self, lone_admin: Client) -> None:
        for label in {model._meta.app_label for model in site._registry}:
            response = lone_admin.get(f"/admin/data/{label}/")
            assert response.status_code == 200, label
        page = lone_admin.get("/admin/data/").content.decode()
        assert "Audit entries" in page and "entrys" not in page and "settingss" not in page

    def test_there_is_no_second_sign_in_and_no_way_to_write(self, world: World, admin: Client) -> None:
        job = row_url(world.running)
        gone = ("login/", "logout/", "password_change/", "r/1/1/", "autocomplete/", "jobs/job/add/")
        for path in (
            *(f"/admin/data/{name}" for name in gone),
            job.replace("change", "delete"),
            job.replace("change", "history"),
        ):
            assert admin.get(path).status_code == 404, path
            assert admin.post(path).status_code == 404, path

    def test_no_table_but_that_of_projects_can_be_changed(self, world: World, admin: Client) -> None:
        for model in site._registry:
            if model is Project or not (row := model._default_manager.first()):
                continue
            page = admin.get(row_url(row)).content.decode()
            assert 'type="submit"' not in page and "<textarea" not in page, model
            before = model._default_manager.filter(pk=row.pk).values().get()
            assert admin.post(row_url(row), {"name": "x", "is_staff": "on"}).status_code == 403, model
            assert model._default_manager.filter(pk=row.pk).values().get() == before
        before_list = list(Job.objects.order_by("pk").values())
        admin.post("/admin/data/jobs/job/", {"action": "delete_selected", "_selected_action": world.running.pk})
        assert list(Job.objects.order_by("pk").values()) == before_list


class TestProjects:
    def test_its_name_and_description_are_changed_with_an_audit_entry(self, world: World, admin: Client) -> None:
        old = world.project.name
        response = admin.post(
            row_url(world.project),
            {"name": "Birds  of prey", "description": "All.", "created_by": 1, "archived_at_0": "2020-01-01"},
        )
        assert response.status_code == 302
        project = Project.objects.get(pk=world.project.pk)
        assert (project.name, project.description, project.archived_at) == ("Birds of prey", "All.", None)
        assert project.created_by == world.alice
        entry = AuditEntry.objects.get(action="project.edited")
        assert entry.actor == world.ada and entry.before["name"] == old and entry.after["name"] == "Birds of prey"
        page = admin.get("/admin/audit/").content.decode()
        assert "changed the name or description of" in page

    def test_what_the_service_refuses_is_shown_and_not_stored(self, world: World, admin: Client) -> None:
        old = world.project.name
        response = admin.post(row_url(world.project), {"name": "a\u202eb", "description": "typed with care"})
        assert "typed with care" in response.content.decode()
        assert Project.objects.get(pk=world.project.pk).name == old
        assert not AuditEntry.objects.filter(action="project.edited").exists()
        assert "invisible characters" in str(response.context["adminform"].form.errors["name"])

    def test_what_someone_else_changed_meanwhile_is_not_overwritten(self, world: World, admin: Client) -> None:
        project, shown = world.project, json.dumps({"name": world.project.name, "description": "About birds"})
        Project.objects.filter(pk=project.pk).update(name="Renamed by its owner", description="About birds")
        typed = {"name": project.name, "description": "Typed", "shown_values": shown}
        answer = admin.post(row_url(project), typed)
        assert answer.status_code == 200 and "Renamed by its owner" in answer.content.decode()
        stored = Project.objects.get(pk=project.pk)
        assert (stored.name, stored.description) == ("Renamed by its owner", "About birds")
        form = answer.context["adminform"].form
        assert (form["name"].value(), form["description"].value()) == ("Renamed by its owner", "Typed")

    @pytest.mark.parametrize("button", ["_save", "_continue", "_addanother"])
    def test_every_button_stores_and_leads_to_a_page(self, world: World, admin: Client, button: str) -> None:
        data = {"name": "Owls", "description": "", button: "1"}
        answer = admin.post(row_url(world.project), data, follow=True)
        assert answer.status_code == 200 and "Owls is saved." in answer.content.decode()
        assert Project.objects.get(pk=world.project.pk).name == "Owls"

    def test_an_unchanged_project_leaves_no_entry(self, world: World, admin: Client) -> None:
        data = {"name": world.project.name, "description": world.project.description}
        assert admin.post(row_url(world.project), data).status_code == 302
        assert not AuditEntry.objects.filter(action="project.edited").exists()


class TestPages:
    def test_rows_are_linked_with_each_other_and_with_the_portal(self, world: World, admin: Client) -> None:
        page = admin.get(row_url(world.running)).content.decode()
        assert f'href="{row_url(world.project)}"' in page and f'href="{row_url(world.alice)}"' in page
        assert f'href="/jobs/{world.running.pk}/"' in page
        attempts = f"/admin/data/jobs/attempt/?job__exact={world.running.pk}"
        assert f'href="{attempts}"' in page
        listed = admin.get(attempts).content.decode()
        assert f'href="{row_url(world.running.attempts.get())}' in listed and listed.count("field-row_number") == 1

    def test_every_link_to_the_portal_leads_to_a_page(self, world: World, admin: Client) -> None:
        SchedulerConfig.objects.create(policy="fifo", created_by=world.ada)
        LabSettings.objects.create()
        places = set()
        for model in site._registry:
            if (row := model._default_manager.first()) and (place := admin_of(model).view_on_site(row)):
                places.add(place)
        for place in places:
            assert admin.get(place).status_code == 200, place
        assert len(places) > 8
        cancelled = Reservation(pk=9, cancelled_at=timezone.now())
        assert place_of(cancelled) == "/reservations/"

    def test_the_policy_is_switched_on_its_own_page(self, world: World, admin: Client) -> None:
        config = SchedulerConfig.objects.create(policy="fifo", created_by=world.ada)
        for path in (list_url(SchedulerConfig), row_url(config)):
            assert 'Switch it on the page\n    <a href="/admin/policy/">' in admin.get(path).content.decode()
        assert list_url(SchedulerConfig) in admin.get("/admin/policy/").content.decode()
        assert 'href="/admin/data/"' in admin.get("/admin/").content.decode()

    def test_hostile_texts_stay_texts(self, world: World, admin: Client) -> None:
        evil = "<script>alert(1)</script>\"'><img src=x>"
        Job.objects.filter(pk=world.running.pk).update(
            name=evil, description=evil, arguments=[evil], waiting_reason=evil
        )
        User.objects.filter(pk=world.alice.pk).update(first_name=evil, username=evil)
        Project.objects.filter(pk=world.project.pk).update(name=evil)
        for path in (
            row_url(world.running),
            list_url(Job),
            list_url(User),
            row_url(world.alice),
            row_url(world.project),
        ):
            page = admin.get(path).content.decode()
            assert "&lt;script&gt;" in page and "<script>alert" not in page and "<img src=x" not in page

    def test_lists_take_as_many_queries_for_fifty_rows_as_for_two(self, world: World, admin: Client) -> None:
        def queries(path: str) -> int:
            with CaptureQueriesContext(connection) as found:
                assert admin.get(path).status_code == 200
            return len(found)

        few = {model: queries(list_url(model)) for model in (Job, Project, User, Group)}
        for index in range(60):
            user, group = make_user(f"user{index}"), Group.objects.create(name=f"group{index}")
            user.groups.add(group)
            project = Project.objects.create(name=f"p{index}", created_by=user)
            job = Job.objects.get(pk=world.running.pk)
            job.pk, job.uid, job.project, job.submitted_by, job._state.adding = None, uuid4(), project, user, True
            job.save()
        many = {model: queries(list_url(model)) for model in few}
        assert many == few and max(many.values()) <= 6
        assert admin.get(list_url(Job)).content.decode().count("field-row_number") == 50
        assert queries(row_url(job)) <= 10

    def test_lists_read_no_long_columns(self, world: World, admin: Client) -> None:
        with CaptureQueriesContext(connection) as found:
            admin.get(list_url(Job))
        read = " ".join(query["sql"] for query in found if "jobs_job" in query["sql"] or "control_job" in query["sql"])
        assert read and "env_vars" not in read and "arguments" not in read and "search_text" not in read

    @pytest.mark.parametrize(
        "query",
        [
            "p=999999999999999999999",
            "p=x",
            "e=1",
            "all=",
            "q=%27",
            "q=1e9",
            "_facets=True",
            "state__exact=RUNNING",
            "state__exact=nothing",
            "submitted_at__gte=x",
            "elastic__exact=2",
            "deadline__isnull=True",
            "deadline__isnull=x",
            "job=1",
            "submitted_at__gte=0001-01-01T00:00:00%2B23:59",
            "submitted_at__gte=9999-12-31T23:59:59-23:59",
            "project__exact=99999999999999999999999",
            "q=" + "x%20" * 2000,
        ],
    )
    def test_odd_queries_break_nothing(self, world: World, admin: Client, query: str) -> None:
        assert admin.get(f"/admin/data/jobs/job/?{query}").status_code in (200, 302, 400)

    def test_a_row_that_is_not_there_is_not_found(self, lone_admin: Client) -> None:
        for number in ("1", "x", "-1", "9" * 30, "_5F"):
            for table in ("jobs/job", "control/recording", "forecast/forecast"):
                assert lone_admin.get(f"/admin/data/{table}/{number}/change/").status_code == 404, table
