"""What is stored of projects and people, and the limits on it."""

import json
import random
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import Group
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.accounts.limits import MAX_SPACE_GIB, set_limit
from portal.accounts.models import AuditEntry, LabSettings, User
from portal.deletion import projects
from portal.jobs import services, space_use
from portal.jobs.models import Job
from portal.jobs.spec import Submission
from portal.projects.models import Membership, Project
from portal.refused import Refused
from portal.storage.models import Dataset, DatasetVersion
from tests.portal.jobs.retention.test_services import ended
from tests.portal.jobs_world import make_code, make_environment, make_project, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
GIB = 1 << 30


@pytest.fixture(autouse=True)
def home(settings: LazySettings, tmp_path: Path) -> Path:
    settings.HOME = tmp_path
    return tmp_path


@pytest.fixture
def alice() -> User:
    return make_user("alice", is_staff=True)


@pytest.fixture
def project(alice: User) -> Project:
    return make_project(alice)


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def submit(project: Project) -> Job:
    code = project.code_versions.first() or make_code(project)
    asked = Submission(code=code, environment=make_environment(), launcher="command", entry="sleep 1", name="job")
    return services.submit(project.created_by, project, asked)


def grow(job: Job, size: int) -> None:
    """Make the portal count so many bytes of outputs of a job."""
    job.outputs.update(size=size)


class TestSums:
    def test_of_projects_with_shared_code_once(self, alice: User, project: Project) -> None:
        draw = random.Random(34)
        sizes = [draw.randrange(10, 1000) for _ in range(4)]
        for size in sizes:
            ended(project, content=draw.randbytes(size))
        empty = make_project(alice, "empty")
        found = {row.number: row for row in space_use.space_of_projects(Project.objects.all())}
        used = found[project.pk]
        assert used.parts["outputs"] == used.parts["checkpoints"] == sum(sizes)
        assert used.parts["logs"] == 4 * len(b"epoch 1\n")
        assert used.parts["code"] == sum(size for _, size in set(project.code_versions.values_list("sha256", "size")))
        assert found[empty.pk].total == 0 and used.total == sum(used.parts.values())

    def test_of_people_by_who_submitted(self, alice: User, project: Project) -> None:
        bob = make_user("bob")
        mine, other = ended(project, content=b"x" * 300), ended(project, content=b"y" * 200)
        Job.objects.filter(pk=other.pk).update(submitted_by=bob)
        found = {row.name: row for row in space_use.space_of_people(User.objects.all())}
        assert found["alice"].parts["outputs"] == 300 and found["bob"].parts["outputs"] == 200
        assert found["bob"].parts["code"] == 0 < found["alice"].parts["code"]
        together = space_use.bytes_of_people([alice.pk, bob.pk])
        assert together == found["alice"].total + found["bob"].total
        assert [job.pk for job, _ in space_use.largest_jobs(project=project)] == [mine.pk, other.pk]

    def test_datasets_count_for_their_owner_and_their_project(self, alice: User, project: Project) -> None:
        bob = make_user("bob")
        dataset = Dataset.objects.create(name="digits", owner=bob, project=project)
        for number, size in enumerate((1000, 1500), 1):
            DatasetVersion.objects.create(
                dataset=dataset, number=number, state="ready", sha256=f"{number:064}", size=size, created_by=alice
            )
        [used] = space_use.space_of_projects(Project.objects.filter(pk=project.pk))
        [owner] = space_use.space_of_people(User.objects.filter(pk=bob.pk))
        assert used.parts["datasets"] == owner.parts["datasets"] == 2500
        assert space_use.bytes_of_people([bob.pk]) == 2500

    def test_queries_do_not_grow_with_what_is_listed(self, alice: User, project: Project) -> None:
        def queries() -> int:
            with CaptureQueriesContext(connection) as found:
                space_use.space_of_projects(Project.objects.all())
                space_use.space_of_people(User.objects.all())
                space_use.largest_jobs(project=project)
            return len(found)

        ended(project)
        before = queries()
        for number in range(3):
            ended(make_project(make_user(f"user{number}"), f"p{number}"))
            ended(project)
        assert queries() == before

    def test_pieces_of_a_bar_are_in_proportion(self) -> None:
        use = space_use.SpaceUse(1, "x", {"code": 10, "datasets": 0, "outputs": 30, "checkpoints": 0, "logs": 60})
        assert [(piece.start, piece.length) for piece in use.pieces(200)] == [
            (0, 5),
            (5, 0),
            (5, 15),
            (20, 0),
            (20, 30),
        ]
        assert [piece.length for piece in space_use.SpaceUse(1, "x", dict.fromkeys(use.parts, 0)).pieces(0)] == [0] * 5


class TestLimits:
    def test_a_project_that_has_reached_its_limit_gets_no_new_jobs(self, alice: User, project: Project) -> None:
        job = ended(project)
        space_use.set_project_limit(alice, project, 2)
        project.refresh_from_db()
        grow(job, 2 * GIB - 1000)
        submit(project)
        grow(job, 2 * GIB)
        with pytest.raises(Refused, match=r"“.+” has 2\.0 GiB stored in the portal, and may have 2 GiB\. Delete jobs"):
            submit(project)
        submit(make_project(alice, "another"))
        space_use.set_project_limit(alice, project, None)
        project.refresh_from_db()
        submit(project)
        assert [entry.after for entry in AuditEntry.objects.filter(action="project.space").order_by("pk")] == [
            {"max_space_gib": 2},
            {"max_space_gib": None},
        ]

    def test_a_person_has_the_default_of_the_lab_or_a_limit_of_their_own(self, alice: User, project: Project) -> None:
        grow(ended(project), 3 * GIB)
        LabSettings(pk=LabSettings.ONLY, max_space_gib=3).save()
        with pytest.raises(Refused, match=r"alice has 3\.0 GiB stored in the portal, and may have 3 GiB"):
            submit(project)
        set_limit(alice, alice, max_gpus=None, max_queued=None, max_space_gib=4)
        submit(project)
        set_limit(alice, alice, max_gpus=None, max_queued=None, max_space_gib=1)
        with pytest.raises(Refused, match="may have 1 GiB"):
            submit(project)

    def test_a_group_counts_its_members_together(self, alice: User, project: Project) -> None:
        bob, group = make_user("bob"), Group.objects.create(name="course")
        group.user_set.add(alice, bob)
        Membership.objects.create(project=project, user=bob, role=Membership.Role.MEMBER)
        other = ended(project)
        Job.objects.filter(pk=other.pk).update(submitted_by=bob)
        grow(other, 5 * GIB)
        set_limit(alice, group, max_gpus=None, max_queued=None, max_space_gib=5)
        with pytest.raises(Refused, match="group course has 5.0 GiB"):
            submit(project)

    def test_only_admins_limit_a_project(self, project: Project) -> None:
        with pytest.raises(Refused, match="Only admins"):
            space_use.set_project_limit(make_user("bob"), project, 5)

    @pytest.mark.parametrize("gib", [0, -1, MAX_SPACE_GIB + 1])
    def test_a_limit_that_is_none_is_refused(self, alice: User, project: Project, gib: int) -> None:
        with pytest.raises(Refused, match="from 1 to"):
            space_use.set_project_limit(alice, project, gib)


class TestPages:
    def test_the_lab_by_project_and_by_person(self, alice: User, project: Project) -> None:
        grow(ended(project), 5 * GIB)
        space_use.set_project_limit(alice, project, 6)
        client = client_of(alice)
        page = client.get("/admin/space/?sort=name").content.decode()
        assert "5.0 GiB" in page and "of 6.0 GiB" in page and "nearly full" in page
        page = client.get("/admin/space/people/?sort=-outputs").content.decode()
        assert "alice" in page and "5.0 GiB" in page
        assert "cannot be sorted" in client.get("/admin/space/people/?sort=size").content.decode()

    def test_a_project_in_the_trash_takes_space_until_it_is_erased(self, alice: User, project: Project) -> None:
        grow(ended(project), 5 * GIB)
        projects.delete(alice, project, project.name)
        page = client_of(alice).get("/admin/space/").content.decode()
        assert "/trash/projects/" in page and "5.0 GiB" in page and f"/projects/{project.pk}/space" not in page
        Project.with_deleted.update(erased_at=timezone.now())
        assert "/trash/projects/" not in client_of(alice).get("/admin/space/").content.decode()

    def test_a_project_shows_its_largest_jobs_and_its_limit(self, alice: User, project: Project) -> None:
        job, bob = ended(project), make_user("bob")
        grow(job, 7 * GIB)
        Membership.objects.create(project=project, user=bob, role=Membership.Role.VIEWER)
        admin, viewer = client_of(alice), client_of(bob)
        assert admin.post(f"/projects/{project.pk}/space/limit", {"max_space_gib": 7}).status_code == 302
        page = viewer.get(f"/projects/{project.pk}/space").content.decode()
        assert "The limit is reached" in page and f"#{job.pk}</a>" in page and "Save the limit" not in page
        assert "Save the limit" in admin.get(f"/projects/{project.pk}/space").content.decode()
        wrong = admin.post(f"/projects/{project.pk}/space/limit", {"max_space_gib": "-3"}, follow=True)
        assert "Enter a number of GiB" in wrong.content.decode()
        project.refresh_from_db()
        assert project.max_space_gib == 7

    def test_a_person_sees_their_own(self, alice: User, project: Project) -> None:
        job, bob = ended(project), make_user("bob")
        grow(job, GIB)
        page = client_of(alice).get("/accounts/space/").content.decode()
        assert f"#{job.pk}</a>" in page and "1.0 GiB" in page
        assert "No job has left anything." in client_of(bob).get("/accounts/space/").content.decode()


class TestApi:
    def test_it_lists_what_one_may_see_by_pages(self, alice: User, project: Project) -> None:
        grow(ended(project), GIB)
        make_project(alice, "empty")
        bob = make_user("bob")
        found = client_of(alice).get("/api/v1/space/projects/?page_size=1").json()
        assert found["count"] == 2 and found["results"][0]["outputs"] == GIB and found["next"]
        assert client_of(bob).get("/api/v1/space/projects/").json()["count"] == 0
        people = client_of(alice).get("/api/v1/space/people/").json()["results"]
        assert [row["name"] for row in people] == ["alice", "bob"]
        assert [row["name"] for row in client_of(bob).get("/api/v1/space/people/").json()["results"]] == ["bob"]

    def test_an_admin_sets_the_limit_of_a_project(self, alice: User, project: Project) -> None:
        client, address = client_of(alice), f"/api/v1/space/projects/{project.pk}/"
        body = json.dumps({"max_space_gib": 12})
        assert client.put(address, body, content_type="application/json").json()["max_space_gib"] == 12
        assert client.put(address, '{"max_space_gib": 0}', content_type="application/json").status_code == 400
        assert client.put(address, "{}", content_type="application/json").status_code == 400
        assert client.get(address).json()["max_space_gib"] == 12
