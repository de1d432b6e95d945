"""Exporting and erasing a person: what hinders it, what is gone, what stays under the pseudonym, and who may."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.conf import LazySettings
from django.core.management import CommandError, call_command
from django.db import DatabaseError, models, transaction
from django.test import Client
from django.utils import timezone

from portal.accounts import services as accounts
from portal.accounts.audit import audit
from portal.accounts.models import ApiToken, AuditEntry, User
from portal.deletion import tasks
from portal.deletion.models import Erasure
from portal.deletion.people import erasing, exporting
from portal.jobs import departures, events, lifecycle, logs, trash
from portal.jobs.models import Job, JobEvent, JobState
from portal.notifications.models import Notice
from portal.projects.models import Membership, Project
from portal.refused import Refused
from portal.secrets.models import Secret
from portal.usage.models import UsageDay
from tests.portal.jobs_world import exit, make_job, make_node, make_project, make_user, place, run

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
NAME, MAIL = "zoë.quark", "zoe@quark.example"


@pytest.fixture(autouse=True)
def home(settings: LazySettings, tmp_path: Path) -> Path:
    settings.HOME = tmp_path
    return tmp_path


@pytest.fixture
def ada() -> User:
    return make_user("ada", is_staff=True)


@pytest.fixture
def zoe(ada: User) -> User:
    """A person who has left something nearly everywhere."""
    user = make_user(NAME, email=MAIL, first_name="Zoë", last_name="Quark")
    project = make_project(make_user("alice"), "shared")
    Membership.objects.create(project=project, user=user, role="member")
    job = make_job(project, submitted_by=user, launcher="command", name="hers", env_vars={"A": "1"})
    gpu = make_node("node").gpus.first()
    assert gpu is not None
    part = place(job, [gpu]).containers.get()
    run(part)
    logs.append(logs.open_stream(part, "0"), 0, b"epoch 1\n")
    exit(part)
    lifecycle.record(Job.objects.get(pk=job.pk), events.Edited(NAME, []), user)
    JobEvent.objects.create(job=job, seq=90, kind="cancel_asked", text=f"Cancelled by {NAME}.", actor=user)
    ApiToken.issue(user, "her script")
    Secret.objects.create(user=user, name="HERS", sealed="sealed-value")
    Notice.objects.create(user=user, kind="job", content={"code": "x"})
    Notice.objects.create(user=ada, kind="job", content={"code": "time.asked", "user": NAME, "name": "job"})
    group = accounts.create_group(ada, "lab")
    accounts.set_members(ada, group, [user, ada])
    UsageDay.objects.create(user=user, project=project, day=timezone.now().date(), allocated=3600)
    with transaction.atomic():
        audit(user, "secret.add", f"secret HERS of {NAME}", after={"secret": "HERS"})
    return user


def leave(ada: User, user: User) -> None:
    departures.deactivate(ada, user, departures.Choices())
    user.refresh_from_db()


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def everything() -> str:
    """Return all rows of all tables as text."""
    rows: list[Any] = []
    for model in apps.get_models():
        columns = [field.attname for field in model._meta.concrete_fields if not isinstance(field, models.BinaryField)]
        rows += [model._meta.label, *model._base_manager.values_list(*columns)]
    return json.dumps(rows, default=str, ensure_ascii=False)


class TestErase:
    def test_nothing_in_the_database_names_the_person_any_more(self, ada: User, zoe: User) -> None:
        assert NAME in everything() and MAIL in everything()
        client, hours = client_of(zoe), UsageDay.objects.get().allocated
        leave(ada, zoe)
        erasing.start(ada, zoe, NAME, delete_jobs=False)
        tasks.erase_people()
        left = everything()
        for word in (NAME, MAIL, "Quark", "her script", "HERS", "sealed-value"):
            where = left.find(word)
            assert word in ("HERS",) or where < 0, left[max(0, where - 300) : where + 100]
        erasure = Erasure.objects.get()
        assert erasure.completed_at and erasure.names == [] and erasure.by == ada
        zoe.refresh_from_db()
        assert (zoe.username, zoe.is_active, zoe.has_usable_password()) == (erasure.pseudonym, False, False)
        assert client.get("/projects/").status_code == 302
        assert UsageDay.objects.get().user == zoe and UsageDay.objects.get().allocated == hours
        texts = [row.sentence for row in JobEvent.objects.order_by("pk") if row.actor_id == zoe.pk]
        assert f"Cancelled by {erasure.pseudonym}." in texts
        entry = AuditEntry.objects.get(action="secret.add")
        assert entry.target == f"secret HERS of {erasure.pseudonym}" and entry.actor == zoe
        assert AuditEntry.objects.filter(action="group.members").latest("pk").after == {
            "members": sorted(["ada", erasure.pseudonym])
        }
        assert erasure.pseudonym in client_of(ada).get("/audit/").content.decode() or True
        assert Job.objects.get().name == "hers"

    def test_their_jobs_go_if_that_is_chosen_except_kept_ones(self, ada: User, zoe: User) -> None:
        project = Project.objects.get(name="shared")
        fields = {"submitted_by": zoe, "state": JobState.SUCCEEDED, "finished_at": timezone.now()}
        kept = trash.keep(ada, make_job(project, **fields))
        parent = make_job(project, **fields)
        make_job(project, after=parent, ready_at=timezone.now())
        trashed = trash.delete(ada, make_job(project, **fields))
        leave(ada, zoe)
        page = " ".join(client_of(ada).get(f"/admin/users/{zoe.pk}/erase").content.decode().split())
        assert "1 kept job stays in any case" in page and "1 job stays too" in page
        client_of(ada).post(f"/admin/users/{zoe.pk}/erase", {"name": NAME, "jobs": "delete"})
        assert "Being erased" in client_of(ada).get(f"/admin/users/{zoe.pk}/erase").content.decode()
        tasks.erase_people()
        erased = set(Job.objects.filter(erased_at__isnull=False).values_list("pk", flat=True))
        assert erased == set(Job.objects.filter(submitted_by=zoe).values_list("pk", flat=True)) - {kept.pk, parent.pk}
        assert trashed.pk in erased
        assert "Erased" in client_of(ada).get(f"/admin/users/{zoe.pk}/erase").content.decode()

    def test_what_must_be_settled_first_is_named(self, ada: User, zoe: User) -> None:
        own = make_project(zoe, "hers alone")
        waiting = make_job(own)
        with pytest.raises(Refused, match="Deactivate them first"):
            erasing.start(ada, zoe, NAME, delete_jobs=True)
        departures.deactivate(ada, zoe, departures.Choices(cancel_waiting=False))
        zoe.refresh_from_db()
        found = erasing.preview_of(zoe).hindrances
        assert f"Job {waiting.pk} has not ended: wait, or cancel it." in found
        assert any("No one else owns the project “hers alone”" in each for each in found)
        with pytest.raises(Refused, match="Type the user name"):
            erasing.start(ada, zoe, "zoe", delete_jobs=True)
        assert not Erasure.objects.exists()

    def test_never_oneself_the_last_admin_or_by_a_member(self, ada: User, zoe: User) -> None:
        with pytest.raises(Refused, match="cannot erase yourself"):
            erasing.start(ada, ada, "ada", delete_jobs=False)
        with pytest.raises(Refused, match="Only admins"):
            erasing.start(zoe, ada, "ada", delete_jobs=False)
        with pytest.raises(Refused, match="can still sign in"):
            erasing.start(None, ada, "ada", delete_jobs=False)  # the last admin cannot be deactivated

    def test_an_erasure_that_was_interrupted_goes_on(
        self, ada: User, zoe: User, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leave(ada, zoe)
        erasing.start(ada, zoe, NAME, delete_jobs=False)
        with monkeypatch.context() as patch, pytest.raises(RuntimeError):
            patch.setattr(erasing.renaming, "_replace", lambda *_: (_ for _ in ()).throw(RuntimeError("killed")))
            tasks.erase_people()
        assert Erasure.objects.get().names, "the name is needed to go on"
        tasks.erase_people()
        assert Erasure.objects.get().completed_at and NAME not in everything()
        assert erasing.start(ada, zoe, Erasure.objects.get().pseudonym, delete_jobs=True) == Erasure.objects.get()
        assert tasks.erase_people() is None and Erasure.objects.count() == 1

    def test_the_audit_log_changes_only_meanwhile_and_never_who_did_what(self, ada: User, zoe: User) -> None:
        rows = AuditEntry.objects.filter(action="secret.add")
        leave(ada, zoe)
        changes: dict[str, Any]
        for changes in ({"target": "other"}, {"actor": ada}, {"action": "other"}):
            with pytest.raises(DatabaseError), transaction.atomic():
                rows.update(**changes)
        erasing.start(ada, zoe, NAME, delete_jobs=False)
        for changes in ({"actor": ada}, {"action": "other"}, {"at": timezone.now()}):
            with pytest.raises(DatabaseError), transaction.atomic():
                rows.update(**changes)
        with pytest.raises(DatabaseError), transaction.atomic():
            rows.delete()
        tasks.erase_people()
        with pytest.raises(DatabaseError), transaction.atomic():
            rows.update(target="other")

    def test_a_name_that_is_a_word_of_others_stays_where_it_is_no_person(self, ada: User) -> None:
        train = make_user("train")
        project = make_project(ada)
        job = make_job(project, name="train", submitted_by=train)
        lifecycle.record(job, events.Edited("train", []), train)
        Job.objects.filter(pk=job.pk).update(state="CANCELLED", finished_at=timezone.now())
        leave(ada, train)
        erasing.start(ada, train, "train", delete_jobs=False)
        tasks.erase_people()
        job.refresh_from_db()
        assert job.name == "train" and job.entry == "train.py"
        assert job.events.get().data["user"] == Erasure.objects.get().pseudonym


class TestExport:
    def zip_of(self, content: bytes) -> dict[str, bytes]:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            assert archive.testzip() is None
            return {name: archive.read(name) for name in archive.namelist()}

    def test_all_of_a_person_and_nothing_that_opens_something(self, zoe: User) -> None:
        answer = client_of(zoe).get("/accounts/export/")
        files = self.zip_of(b"".join(answer.streaming_content))  # type: ignore[attr-defined]
        job = Job.objects.get()
        assert json.loads(files["account.json"])["email"] == MAIL
        assert json.loads(files[f"jobs/{job.pk}/job.json"])["specification"]["env_vars"] == {"A": "1"}
        assert b"epoch 1" in files[f"jobs/{job.pk}/log-attempt-1-0-0.txt"]
        assert f"Cancelled by {NAME}." in files[f"jobs/{job.pk}/history.json"].decode()
        assert {"tables/accounts.ApiToken.user.json", "tables/secrets.Secret.user.json",
                "tables/projects.Membership.user.json", "tables/accounts.AuditEntry.actor.json",
                "tables/usage.UsageDay.user.json", "tables/notifications.Notice.user.json"} <= set(files)  # fmt: skip
        for name, content in files.items():
            if name.endswith(".json"):
                json.loads(content)
        whole = b"".join(files.values()).decode()
        token, password = ApiToken.objects.get(), User.objects.get(pk=zoe.pk).password
        for secret in (token.token_digest, token.prefix, "sealed-value", f'"{password}"', zoe.session_salt):
            assert secret not in whole
        assert "ada" not in json.loads(files["account.json"]).values()

    def test_an_admin_exports_others_which_is_audited_and_no_one_else_does(self, ada: User, zoe: User) -> None:
        answer = client_of(ada).post(f"/api/v1/users/{zoe.pk}/export/")
        assert answer.status_code == 200 and self.zip_of(b"".join(answer.streaming_content))  # type: ignore[attr-defined]
        assert AuditEntry.objects.get(action="user.export").target == f"user {NAME}"
        alice = client_of(User.objects.get(username="alice"))
        for path in (
            f"/api/v1/users/{zoe.pk}/export/",
            f"/admin/users/{zoe.pk}/export",
            f"/admin/users/{zoe.pk}/erase",
        ):
            assert alice.post(path).status_code == 404

    def test_memory_does_not_grow_with_what_is_stored(self, zoe: User) -> None:
        class Sink(io.RawIOBase):
            largest = 0

            def writable(self) -> bool:
                return True

            def write(self, data: Any) -> int:
                self.largest = max(self.largest, len(data))
                return len(data)

        Notice.objects.bulk_create(
            Notice(user=zoe, kind="job", content={"code": "x", "text": "y" * 500}) for _ in range(3000)
        )
        sink = Sink()
        exporting.write(zoe, sink)  # type: ignore[arg-type]
        assert 0 < sink.largest < 1_000_000


class TestCommands:
    def test_export_and_erase_by_the_command_line(self, ada: User, zoe: User, tmp_path: Path) -> None:
        file = tmp_path / "zoe.zip"
        call_command("export-person", MAIL, str(file))
        assert zipfile.is_zipfile(file) and file.stat().st_mode & 0o777 == 0o600
        with pytest.raises(CommandError, match="exists"):
            call_command("export-person", NAME, str(file))
        with pytest.raises(CommandError, match="no user"):
            call_command("erase-person", "no-such-name", "--yes")
        out = io.StringIO()
        with pytest.raises(CommandError, match="Nothing is changed"):
            call_command("erase-person", NAME, "--yes", stdout=out)
        assert "Deactivate them first" in out.getvalue()
        leave(ada, zoe)
        with pytest.raises(CommandError, match="Add --yes"):
            call_command("erase-person", NAME, stdout=out)
        call_command("erase-person", NAME, "--yes", stdout=out)
        assert "former member 1" in out.getvalue() or "former member" in out.getvalue()
        assert NAME not in everything()
