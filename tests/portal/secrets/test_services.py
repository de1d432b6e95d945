"""Who adds, replaces and deletes secrets, what they may be, and which of them a job may use."""

from pathlib import Path
from typing import Any

import pytest

from portal.accounts.models import AuditEntry, User
from portal.jobs.spec import MAX_SECRETS as MAX_OF_A_JOB
from portal.projects.models import Membership, Project
from portal.projects.services import archive_project, unshare
from portal.refused import Refused
from portal.secrets import keys, services
from portal.secrets.models import Secret
from portal.sentences.audit import phrase_of
from portal.variable_names import ENV_NAME
from runners.agent import job_secrets as node_secrets
from runners.launch.masking import MIN_CHARACTERS
from runners.spec import SECRET_NAMES
from tests.portal.jobs_world import make_project, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    settings.HOME = tmp_path
    return tmp_path


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def bob() -> User:
    return make_user("bob")


@pytest.fixture
def project(alice: User, bob: User) -> Project:
    project = make_project(alice)
    Membership.objects.create(project=project, user=bob, role=Membership.Role.MEMBER)
    return project


def add(
    user: User, owner: services.Owner, name: str = "HF_TOKEN", value: str = "hf_abcdef", kind: str = "variable"
) -> Secret:
    return services.create(user, owner, kind, name, value).row


def value_of(row: Secret) -> str | None:
    return keys.unseal(Secret.objects.get(pk=row.pk).sealed)


class TestNamesAndValues:
    @pytest.mark.parametrize("name", ["HF_TOKEN", "_x", "a" * 100])
    def test_names_of_variables(self, name: str) -> None:
        services.check_name("variable", name)

    @pytest.mark.parametrize(
        "name", ["", "1A", "A-B", "a.b", "Ä", "a" * 101, "A\n", "PATH", "LD_PRELOAD", "RANK", "SCHEDULEARN_X", "path"]
    )
    def test_names_that_no_variable_has(self, name: str) -> None:
        with pytest.raises(Refused) as refusal:
            services.check_name("variable", name)
        assert refusal.value.field == "name"

    @pytest.mark.parametrize("name", ["kaggle.json", "id_ed25519", "9.pem", "a-b.c", "PATH"])
    def test_names_of_files(self, name: str) -> None:
        services.check_name("file", name)

    @pytest.mark.parametrize("name", ["", ".", "..", ".netrc", "-x", "a/b", "../x", "a b", "a\n", "a" * 101, "é"])
    def test_names_that_no_file_has(self, name: str) -> None:
        with pytest.raises(Refused):
            services.check_name("file", name)

    def test_a_kind_that_does_not_exist(self) -> None:
        with pytest.raises(Refused, match="variable, file"):
            services.check_name("other", "X")

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            ("variable", ""),
            ("variable", "\r\n"),
            ("variable", "x" * 4097),
            ("variable", "ab\0c"),
            ("variable", "\ud800"),
            ("file", ""),
            ("file", "x" * (64 * 1024 + 1)),
            ("file", "ä" * (32 * 1024 + 1)),
            ("file", "ab\0c"),
        ],
    )
    def test_values_that_are_refused(self, kind: str, value: str) -> None:
        with pytest.raises(Refused) as refusal:
            services.check_value(kind, value)
        assert refusal.value.field == "value" and (len(value) < 3 or value[:3] not in refusal.value.message)

    def test_a_line_break_at_the_end_of_a_variable_is_left_out_and_mentioned(self) -> None:
        checked = services.check_value("variable", "hf_abcdef\r\n")
        assert checked.text == "hf_abcdef" and checked.notices == (services.NEWLINE_REMOVED,)
        assert services.check_value("variable", "two\nlines") == services.CheckedValue("two\nlines")

    def test_a_file_keeps_its_last_line_break(self) -> None:
        assert services.check_value("file", "key\n") == services.CheckedValue("key\n")

    def test_a_short_value_is_accepted_with_the_notice_that_it_is_not_masked(self) -> None:
        assert services.check_value("variable", "12345").notices == (services.TOO_SHORT_TO_MASK,)
        assert not services.check_value("variable", "123456").notices

    def test_the_limits_are_reached(self) -> None:
        assert services.check_value("variable", "x" * 4096) and services.check_value("file", "ä" * (32 * 1024))

    def test_a_value_is_not_in_what_python_shows(self) -> None:
        assert "hf_abcdef" not in repr(services.check_value("variable", "hf_abcdef"))


class TestOwnSecrets:
    def test_add_replace_and_delete(self, alice: User) -> None:
        row = add(alice, alice)
        assert value_of(row) == "hf_abcdef" and row.reference == "HF_TOKEN" and row.changed_by == alice
        changed = services.replace_value(alice, row, "hf_newer").row
        assert value_of(row) == "hf_newer" and changed.changed_at > row.changed_at
        services.delete(alice, row)
        services.delete(alice, row)  # by a second click
        assert not Secret.objects.exists()

    def test_each_action_is_audited_by_name_without_the_value(self, alice: User) -> None:
        row = add(alice, alice)
        services.replace_value(alice, row, "hf_newer")
        services.delete(alice, row)
        entries = list(AuditEntry.objects.order_by("pk"))
        assert [entry.action for entry in entries] == ["secret.add", "secret.replace", "secret.delete"]
        assert {entry.target for entry in entries} == {"secret HF_TOKEN of alice"}
        assert [entry.after for entry in entries] == [
            {"secret": "HF_TOKEN", "given_as": "variable"},
            {"secret": "HF_TOKEN"},
            {},
        ]
        phrase = phrase_of("secret.add", {}, entries[0].after)
        assert phrase.template.format(actor="alice", subject=entries[0].target) == (
            "alice added the secret HF_TOKEN of alice."
        )

    def test_no_one_else_changes_them_not_even_an_admin(self, alice: User) -> None:
        row, ada = add(alice, alice), make_user("ada", is_staff=True)
        for act in (
            lambda: add(ada, alice, "OTHER"),
            lambda: services.replace_value(ada, row, "another"),
            lambda: services.delete(ada, row),
        ):
            with pytest.raises(Refused, match="another person"):
                act()
        assert value_of(row) == "hf_abcdef"

    def test_a_name_is_given_once_for_each_owner(self, alice: User, bob: User, project: Project) -> None:
        for owner, user in ((alice, alice), (bob, bob), (project, alice)):
            add(user, owner)
        for kind in Secret.Kind.values:
            with pytest.raises(Refused, match="There is a secret HF_TOKEN already") as refusal:
                add(alice, alice, kind=kind)
            assert refusal.value.code == "conflict"

    def test_there_is_a_limit_for_each_owner(
        self, alice: User, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(services, "MAX_OF_AN_OWNER", 1)
        add(alice, alice)
        add(alice, project)
        for owner in (alice, project):
            with pytest.raises(Refused, match="There are 1 secrets already") as refusal:
                add(alice, owner, "OTHER")
            assert refusal.value.code == "limit"

    def test_one_that_was_deleted_meanwhile_is_not_replaced(self, alice: User) -> None:
        row = add(alice, alice)
        Secret.objects.all().delete()
        with pytest.raises(Refused, match="was deleted"):
            services.replace_value(alice, row, "another")

    def test_a_lost_key_is_noticed(self, alice: User, home: Path) -> None:
        row = add(alice, alice)
        assert not services.is_unreadable(row)
        (home / keys.KEY_FILE).write_text("another key")
        assert services.is_unreadable(row)
        assert not services.is_unreadable(services.replace_value(alice, row, "hf_again").row)


class TestSecretsOfAProject:
    def test_owners_and_admins_change_them_members_do_not(self, alice: User, bob: User, project: Project) -> None:
        row, ada = add(alice, project), make_user("ada", is_staff=True)
        services.replace_value(ada, row, "of an admin")
        for act in (
            lambda: add(bob, project, "OTHER"),
            lambda: services.replace_value(bob, row, "another"),
            lambda: services.delete(bob, row),
        ):
            with pytest.raises(Refused, match="Only owners") as refusal:
                act()
            assert refusal.value.code == "forbidden"
        assert value_of(row) == "of an admin" and row.reference == "project/HF_TOKEN"
        assert AuditEntry.objects.filter(target=f"secret HF_TOKEN of project {project.pk} digits").count() == 2

    def test_an_archived_project_gets_none_and_they_can_be_deleted(self, alice: User, project: Project) -> None:
        row = add(alice, project)
        archive_project(alice, project)
        row.refresh_from_db()
        with pytest.raises(Refused, match="archived"):
            add(alice, project, "OTHER")
        with pytest.raises(Refused, match="archived"):
            services.replace_value(alice, row, "another")
        services.delete(alice, row)
        assert not Secret.objects.exists()

    def test_an_owner_who_left_meanwhile_adds_none(self, alice: User, bob: User, project: Project) -> None:
        Membership.objects.filter(user=bob).update(role=Membership.Role.OWNER)
        unshare(alice, Membership.objects.get(user=alice))
        with pytest.raises(Refused, match="Only owners"):
            add(alice, project)


class TestWhatJobsUse:
    def names(self, user: User, project: Project) -> set[str]:
        return {row.reference for row in services.usable_by(user, project)}

    def test_ones_own_and_for_members_the_projects(self, alice: User, bob: User, project: Project) -> None:
        add(bob, bob, "BOBS")
        add(alice, alice, "ALICES")
        add(alice, project, "SHARED")
        assert self.names(bob, project) == {"BOBS", "project/SHARED"}
        assert self.names(bob, make_project(bob, "other")) == {"BOBS"}

    @pytest.mark.parametrize("role", [None, Membership.Role.VIEWER])
    def test_not_the_projects_for_a_viewer_or_a_removed_member(
        self, alice: User, bob: User, project: Project, role: str | None
    ) -> None:
        add(bob, bob, "BOBS")
        add(alice, project, "SHARED")
        membership = Membership.objects.filter(project=project, user=bob)
        membership.update(role=role) if role else membership.delete()
        assert self.names(bob, project) == {"BOBS"} and not services.may_see_secrets(bob, project)
        with pytest.raises(Refused, match="no secret “project/SHARED” that you may use"):
            services.find(bob, project, ["project/SHARED"])

    def test_none_for_someone_whose_account_is_deactivated(self, alice: User, bob: User, project: Project) -> None:
        add(bob, bob, "BOBS")
        add(alice, project, "SHARED")
        bob.is_active = False
        bob.save()
        assert self.names(bob, project) == set()

    def test_they_are_found_in_the_order_of_their_names(self, alice: User, project: Project) -> None:
        first, second = add(alice, alice, "A_KEY"), add(alice, project, "B_KEY")
        assert services.find(alice, project, ["project/B_KEY", "A_KEY"]) == [second, first]
        assert services.find(alice, project, []) == []

    def test_two_of_the_same_name_are_refused(self, alice: User, project: Project) -> None:
        add(alice, alice)
        add(alice, project)
        with pytest.raises(Refused, match="chosen twice"):
            services.find(alice, project, ["HF_TOKEN", "project/HF_TOKEN"])


def test_the_portal_accepts_what_nodes_and_their_masks_accept() -> None:
    """Neither side may import the other's numbers."""
    names = {"variable": ENV_NAME.pattern, "file": services.FILE_NAME.pattern}
    assert names == {kind: pattern.pattern for kind, pattern in SECRET_NAMES.items()} and set(names) == set(Secret.Kind)
    assert (services.MAX_FILE_BYTES, MAX_OF_A_JOB) == (node_secrets.MAX_BYTES, node_secrets.MAX_SECRETS)
    assert services.MIN_MASKED_CHARACTERS == MIN_CHARACTERS
