"""The rules for making, changing and removing environments."""

from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from portal.accounts.models import AuditEntry, User
from portal.environments import services
from portal.environments.models import Build, Environment, PackageSettings
from portal.projects.models import Membership, Project
from portal.refused import Refused
from tests.portal import environments_world as made
from tests.portal import jobs_world as world

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> None:
    settings.HOME = tmp_path


@pytest.fixture
def alice() -> User:
    return world.make_user("alice")


@pytest.fixture
def project(alice: User) -> Project:
    return world.make_project(alice)


def member(project: Project, name: str, role: str = "member") -> User:
    user = world.make_user(name)
    Membership.objects.create(project=project, user=user, role=role)
    return user


def test_who_may_make_one(alice: User, project: Project) -> None:
    ada = world.make_user("ada", is_staff=True)
    for user in (alice, member(project, "bob"), ada):
        assert made.make_environment(user, project, [user.username]).created_by == user
    for user in (member(project, "victor", "viewer"), world.make_user("charlie")):
        with pytest.raises(Refused, match="Only members") as refusal:
            made.make_environment(user, project)
        assert refusal.value.code == "forbidden"
    with pytest.raises(Refused, match="Only admins make environments for the whole lab"):
        made.make_environment(alice)
    assert made.make_environment(ada).project is None
    Project.objects.filter(pk=project.pk).update(archived_at=timezone.now())
    with pytest.raises(Refused, match="archived"):
        made.make_environment(alice, Project.objects.get(pk=project.pk), ["new"])


def test_the_same_packages_in_the_same_place_make_one(alice: User, project: Project) -> None:
    first = made.make_environment(alice, project, ["rich"])
    Environment.objects.filter(pk=first.pk).update(requested_at=None)
    assert made.make_environment(member(project, "bob"), project, ["rich"], "Another title") == first
    first.refresh_from_db()
    assert first.requested_at is not None
    other = made.make_environment(alice, world.make_project(alice, "other"), ["rich"])
    assert other.recipe == first.recipe
    assert other != first
    services.remove(alice, first, 0)
    assert made.make_environment(alice, project, ["rich"]) != first


def test_what_makes_another_recipe(alice: User, project: Project) -> None:
    full: dict[str, Any] = {"base": None}
    rows = [
        made.make_environment(alice, project, ["rich"]),
        made.make_environment(alice, project, ["rich", "tqdm"]),
        made.make_environment(alice, project, ["rich"], constraints=["numpy<2"]),
        made.make_environment(alice, project, ["rich"], indexes=["https://example.org/whl/"]),
        made.make_environment(alice, project, ["rich"], base=made.make_base("python", "Python")),
        made.make_environment(alice, project, ["rich"], **full),
        made.make_environment(alice, project, ["rich"], python="3.12", **full),
        made.make_environment(alice, project, ["torch"], **full),
        made.make_environment(alice, project, ["torch"], horovod=True, **full),
    ]
    assert len({row.recipe for row in rows}) == len(rows)


def test_limits_of_lines_and_of_a_project(alice: User, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="at least one package"):
        made.make_environment(alice, project, [])
    with pytest.raises(Refused, match="at most 500 packages"):
        made.make_environment(alice, project, [f"p{number}" for number in range(501)])
    monkeypatch.setattr(services, "MAX_OF_A_PROJECT", 1)
    first = made.make_environment(alice, project, ["rich"])
    with pytest.raises(Refused, match="Remove one that is no longer used"):
        made.make_environment(alice, project, ["tqdm"])
    services.remove(alice, first, 0)
    made.make_environment(alice, project, ["tqdm"])


@pytest.mark.parametrize("title", ["x" * 121, "a\u202eb", "a\0b", "\u200b"])
def test_titles_that_are_none_are_refused(alice: User, project: Project, title: str) -> None:
    with pytest.raises(Refused):
        made.make_environment(alice, project, title=title)


def test_the_title_is_made_from_base_and_packages(alice: User, project: Project) -> None:
    lines = ["rich[jupyter]>=13", "pandas==2.1 ; python_version < '3.12'", "tqdm", "einops"]
    assert made.make_environment(alice, project, lines).title == "PyTorch with rich, pandas and 2 more"


@pytest.mark.parametrize("title", ["PyTorch", "  pytorch ", "PYTORCH", "ＰｙTorch", "tools  of the LAB"])
def test_a_title_that_all_jobs_are_offered_is_not_given_again(alice: User, project: Project, title: str) -> None:
    ada = world.make_user("ada", is_staff=True)
    shared = made.make_environment(ada, lines=["tqdm"], title="Tools of the lab")
    for user, place in ((alice, project), (ada, None)):
        with pytest.raises(Refused, match="Give this one another title") as refusal:
            made.make_environment(user, place, ["rich"], title)
        assert refusal.value.field == "title"
    assert made.make_environment(alice, project, ["rich"], "PyTorch of Alice").title == "PyTorch of Alice"
    assert made.make_environment(ada, lines=["tqdm"], title="Tools of the lab") == shared
    services.remove(ada, shared, 0)
    assert made.make_environment(alice, project, ["einops"], "Tools of the lab").project == project


def test_a_title_that_was_not_chosen_may_be_there_already(alice: User, project: Project) -> None:
    shared = made.make_environment(world.make_user("ada", is_staff=True), lines=["rich"])
    assert made.make_environment(alice, project, ["rich"]).title == shared.title == "PyTorch with rich"


def test_only_environments_of_the_release_are_bases(alice: User, project: Project) -> None:
    own = made.make_environment(alice, project)
    retired = made.make_base("old", "Old")
    Environment.objects.filter(pk=retired.pk).update(retired=True)
    retired.refresh_from_db()
    for base in (own, retired):
        with pytest.raises(Refused, match="of the release as the base"):
            made.make_environment(alice, project, ["tqdm"], base=base)
    with pytest.raises(Refused, match="has its own Python"):
        made.make_environment(alice, project, ["tqdm"], python="3.12")
    with pytest.raises(Refused, match="Choose one of these versions"):
        made.make_environment(alice, project, ["tqdm"], base=None, python="2.7")


def test_horovod_in_a_list_needs_a_base_that_has_it_or_is_compiled(alice: User, project: Project) -> None:
    Environment.objects.filter(recipe="").update(retired=True)
    base = made.make_base()
    with pytest.raises(Refused, match="Horovod has no wheel. Choose a full environment with Horovod") as refusal:
        made.make_environment(alice, project, ["horovod>=0.28", "rich"], base=base)
    assert refusal.value.field == "base"
    with_it = made.make_base("pytorch-horovod", "PyTorch and Horovod")
    Environment.objects.filter(pk=with_it.pk).update(packages=["torch", "numpy", "horovod"])
    with_it.refresh_from_db()
    with pytest.raises(Refused, match="Choose “PyTorch and Horovod” as the base, or a full environment with Horovod"):
        made.make_environment(alice, project, ["Horovod[pytorch]"], base=base)
    with pytest.raises(Refused, match="Choose “With Horovod”, which compiles it") as refusal:
        made.make_environment(alice, project, ["torch", "horovod"], base=None)
    assert refusal.value.field == "horovod"
    assert made.make_environment(alice, project, ["horovod", "rich"], base=with_it).lines == ["horovod", "rich"]
    with pytest.raises(Refused, match="has its own PyTorch") as refusal:
        made.make_environment(alice, project, ["rich"], base=base, horovod=True)
    assert refusal.value.field == "horovod"
    full = made.make_environment(alice, project, ["torch", "horovod"], base=None, horovod=True)
    assert (full.lines, full.horovod) == (["torch"], True)


def test_building_from_source_needs_an_admin(alice: User, project: Project) -> None:
    ada = world.make_user("ada", is_staff=True)
    with pytest.raises(Refused, match="An admin has to allow"):
        made.make_environment(alice, project, source_builds=True)
    assert made.make_environment(ada, project, source_builds=True).source_builds
    services.set_package_settings(ada, [], source_builds=True)
    assert made.make_environment(alice, project, ["tqdm"], source_builds=True).source_builds


def test_who_manages_one(alice: User, project: Project) -> None:
    bob, dora = member(project, "bob"), member(project, "dora")
    victor, ada = member(project, "victor", "viewer"), world.make_user("ada", is_staff=True)
    row = made.make_environment(bob, project)
    able = {user for user in (alice, bob, dora, victor, ada) if services.may_manage_environment(user, row)}
    assert able == {alice, bob, ada}
    Membership.objects.filter(user=bob).update(role="viewer")
    assert not services.may_manage_environment(bob, row)
    lab = made.make_environment(ada)
    assert not services.may_manage_environment(alice, lab)
    with pytest.raises(Refused, match="Only an admin may do that"):
        services.build_again(alice, lab)
    with pytest.raises(Refused, match="comes with the release"):
        services.remove(ada, made.make_base(), 0)


def test_it_is_not_built_again_while_it_is_built_or_after_it_was_removed(alice: User, project: Project) -> None:
    row, node = made.make_environment(alice, project), world.make_node()
    made.start(node, row)
    with pytest.raises(Refused, match="being built now"):
        services.build_again(alice, row)
    services.remove(alice, row, 0)
    assert row.builds.get().state == Build.State.CANCELLED
    with pytest.raises(Refused, match="was removed"):
        services.build_again(alice, row)


def test_a_build_that_others_share_is_theirs_too(alice: User, project: Project) -> None:
    charlie = world.make_user("charlie")
    mine = made.make_environment(alice, project)
    theirs = made.make_environment(charlie, world.make_project(charlie, "Secret plan"))
    build = made.start(world.make_node(), theirs)
    with pytest.raises(Refused) as refusal:
        services.cancel_build(alice, build)
    assert "Secret" not in refusal.value.message
    services.remove(charlie, theirs, 0)
    build.refresh_from_db()
    assert build.state == Build.State.RUNNING
    services.remove(alice, mine, 0)
    build.refresh_from_db()
    assert build.state == Build.State.CANCELLED


def test_jobs_that_have_not_ended_keep_it(alice: User, project: Project) -> None:
    row = made.make_environment(alice, project)
    with pytest.raises(Refused, match="^2 jobs that have not ended use it"):
        services.remove(alice, row, 2)
    services.remove(alice, row, 0)
    services.remove(alice, row, 0)  # twice is once
    assert AuditEntry.objects.filter(action="environment.remove").count() == 1


def test_only_admins_change_the_settings_and_each_change_is_recorded(alice: User) -> None:
    ada = world.make_user("ada", is_staff=True)
    with pytest.raises(Refused, match="Only admins"):
        services.set_package_settings(alice, [], source_builds=True)
    for _ in range(2):
        services.set_package_settings(ada, ["https://example.org/"], source_builds=False)
    entry = AuditEntry.objects.get(action="environment.settings")
    assert (entry.before["allowed_sources"], entry.after["allowed_sources"]) == ([], ["https://example.org/"])
    assert PackageSettings.objects.count() == 1
