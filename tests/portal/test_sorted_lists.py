"""Projects, users, groups, invitations, limits and GPUs: sorted by their headers, with declared names only."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.accounts import services
from portal.accounts.admin_views import GROUPS, INVITES, USERS
from portal.accounts.limits import set_limit
from portal.accounts.models import Invite, User
from portal.cluster.models import Gpu
from portal.jobs.limit_views import LIMITS
from portal.lists import Column, Listing
from portal.monitoring.views import GPUS
from portal.projects.models import Membership, Project
from portal.projects.views import PROJECTS
from tests.portal import jobs_world as world
from tests.portal.pages import compact

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
LISTS = {
    "/projects/": PROJECTS, "/admin/users/": USERS, "/admin/groups/": GROUPS, "/admin/invites/": INVITES,
    "/admin/limits/": LIMITS, "/gpus/": GPUS,
}  # fmt: skip


@pytest.fixture
def ada() -> User:
    ada, bob, cleo = (world.make_user(name, is_staff=name == "Ada") for name in ("Ada", "bob", "Cleo"))
    now = timezone.now()
    User.objects.filter(pk=bob.pk).update(last_login=now - timedelta(days=2), date_joined=now - timedelta(days=9))
    User.objects.filter(pk=cleo.pk).update(last_login=now - timedelta(days=1), date_joined=now - timedelta(days=5))
    for name, members in (("small", ()), ("Big", (bob, cleo))):
        group = services.create_group(ada, name)
        services.set_members(ada, group, members)
    for name, versions, people in (("zeta", 2, ()), ("Eta", 0, (bob,)), ("alpha", 1, (bob, cleo))):
        project = world.make_project(ada, name)
        for _ in range(versions):
            world.make_code(project)
        for person in people:
            Membership.objects.create(project=project, user=person, role="member")
    return ada


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def shown(client: Client, address: str) -> list[str]:
    context: Any = client.get(address).context
    return [str(row) for row in context.get("page_obj") or context["page"]]


def names(client: Client, query: str) -> list[str]:
    return [project.name for project in client.get(f"/projects/?{query}").context["page"]]


def test_projects_are_sorted(ada: User) -> None:
    client = client_of(ada)
    assert names(client, "sort=name") == ["alpha", "Eta", "zeta"]
    assert names(client, "sort=-versions") == ["zeta", "alpha", "Eta"]
    assert names(client, "sort=-members") == ["alpha", "Eta", "zeta"]
    assert names(client, "sort=-code")[-1] == names(client, "sort=code")[-1] == "Eta", "without code: last"
    assert names(client, "") == ["alpha", "Eta", "zeta"], "the last to be made or to get code comes first"


def test_users_and_groups_are_sorted(ada: User) -> None:
    client = client_of(ada)
    assert shown(client, "/admin/users/") == ["Ada", "bob", "Cleo"]
    assert shown(client, "/admin/users/?sort=-name") == ["Cleo", "bob", "Ada"]
    assert shown(client, "/admin/users/?sort=-seen") == ["Ada", "Cleo", "bob"]
    assert shown(client, "/admin/users/?sort=joined")[:2] == ["bob", "Cleo"]
    assert shown(client, "/admin/users/?sort=-role")[0] == "Ada"
    assert shown(client, "/admin/groups/") == ["Big", "small"]
    assert shown(client, "/admin/groups/?sort=members") == ["small", "Big"]


def test_invitations_are_sorted_and_filtered(ada: User) -> None:
    client, now = client_of(ada), timezone.now()
    invites = [
        services.create_invite(ada, email=f"{name}@lab.example", makes_admin=False, groups=[])[0] for name in "cab"
    ]
    Invite.objects.filter(pk=invites[0].pk).update(used_at=now, used_by=ada)
    Invite.objects.filter(pk=invites[1].pk).update(expires_at=now - timedelta(days=1))

    def emails(query: str) -> str:
        return "".join(row.email[0] for row in client.get(f"/admin/invites/?{query}").context["page_obj"])

    assert (emails(""), emails("sort=email"), emails("sort=-email")) == ("bac", "abc", "cba")
    assert (emails("show=open"), emails("show=used"), emails("show=expired")) == ("b", "c", "a")
    for address in ("/admin/invites/?show=lost", "/admin/users/?show=lost"):
        assert "There is no choice “lost”" in client.get(address).content.decode()
    assert "There is no state “lost”" in client.get("/gpus/?state=lost").content.decode()


def test_limits_are_sorted(ada: User) -> None:
    group = Group.objects.get(name="Big")
    bob, cleo = User.objects.filter(username__in=["bob", "Cleo"]).order_by("pk")
    for owner, weight in ((bob, 1.5), (cleo, 3.0), (group, 2.0)):
        set_limit(ada, owner, max_gpus=4, max_queued=None, weight=weight)
    client = client_of(ada)

    def owners(query: str) -> list[str]:
        rows = client.get(f"/admin/limits/?{query}").context["limits"]
        return [str(row.limit.user or row.limit.group) for row in rows]

    assert owners("") == ["Big", "bob", "Cleo"], "groups first"
    assert owners("sort=-weight") == ["Cleo", "Big", "bob"]


def test_gpus_are_sorted_with_unknown_values_last(ada: User) -> None:
    node = world.make_node("beta", gpus=3)
    for gpu, percent in zip(node.gpus.order_by("index"), (20, None, 70), strict=True):
        Gpu.objects.filter(pk=gpu.pk).update(utilisation_percent=percent)
    client = client_of(ada)

    def indices(query: str) -> list[int]:
        return [row.gpu.index for row in client.get(f"/gpus/?{query}").context["rows"]]

    assert indices("") == [0, 1, 2] and indices("sort=-name") == [2, 1, 0]
    assert indices("sort=-utilisation") == [2, 0, 1] and indices("sort=utilisation") == [0, 2, 1]


@pytest.mark.parametrize("address", LISTS)
def test_each_name_sorts_and_others_are_named(ada: User, address: str) -> None:
    client, listing = client_of(ada), LISTS[address]
    services.create_invite(ada, email="dan@lab.example", makes_admin=False, groups=[])
    set_limit(ada, ada, max_gpus=4, max_queued=None)
    world.make_node()
    for name in listing.sort_names:
        for minus in ("", "-"):
            response = client.get(f"{address}?sort={minus}{name}")
            assert response.status_code == 200 and not response.context["table"].problems, name
            direction = "descending" if minus else "ascending"
            if listing.column(name) in response.context["table"].columns:
                assert f'aria-sort="{direction}"' in compact(response.content.decode()), name
    for hostile in ("password", "--name", "<script>", "user__password", "?", "pk"):
        response = client.get(address, {"sort": hostile})
        assert response.status_code == 200
        assert "This list cannot be sorted by" in response.content.decode()
        assert "<script>&" not in response.content.decode()


@pytest.mark.parametrize("address", ["/projects/", "/admin/users/"])
def test_columns_are_chosen_and_any_number_of_rows_costs_the_same(ada: User, address: str) -> None:
    client, listing = client_of(ada), LISTS[address]
    every = [column.key for column in listing.columns]
    client.post(f"/lists/{listing.key}/columns", {"column": every})

    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            page = compact(client.get(address).content.decode())
        assert all(f">{column.title}" in page for column in listing.columns)
        return len(queries)

    cost()
    few = cost()
    for number in range(7):
        Project.objects.create(name=f"p{number}", created_by=world.make_user(f"person {number}"))
    assert cost() == few


def test_views_of_projects_are_saved(ada: User) -> None:
    client = client_of(ada)
    query = client.get("/projects/?q=eta&sort=name").context["table"].view_query
    client.post("/lists/projects/views", {"name": "Etas", "query": query})
    assert 'aria-current="page">Etas</a>' in compact(client.get(f"/projects/?{query}").content.decode())


def test_an_unknown_choice_of_projects_is_named(ada: User) -> None:
    response = client_of(ada).get("/projects/?show=everything")
    assert "There is no choice “everything”" in response.content.decode()


def test_a_list_keeps_one_order_of_equal_rows() -> None:
    listing = Listing("x", (Column("a", "A", ("name",)), Column("b", "B", ("date",), nulls=True)), "a")
    assert [str(part) for part in listing.ordering("a")][-1] == "pk"
    assert [str(part) for part in listing.ordering("-a")][-1] == "-pk"
    falling: Any = listing.ordering("-b")[0]
    assert falling.nulls_last and falling.descending
    assert not listing.is_sort("a-") and not listing.is_sort("") and listing.is_sort("-b")


def test_groups_need_an_admin(ada: User) -> None:
    assert client_of(world.make_user("dan")).get("/admin/groups/?sort=members").status_code == 404
    assert Group.objects.count() == 2


class TestNodes:
    def names(self, client: Client, query: str) -> list[str]:
        return [machine.node.name for machine in client.get(f"/nodes/?{query}").context["machines"]]

    def test_they_are_sorted_and_filtered(self, ada: User) -> None:
        client = client_of(ada)
        alpha, beta = world.make_node("beta", gpus=4), world.make_node("Alpha", gpus=3)
        world.make_node("gamma", gpus=8, ready=False, cordoned=True)
        world.place(world.make_job(Project.objects.first() or world.make_project(ada)), list(alpha.gpus.all())[:3])
        assert self.names(client, "") == ["Alpha", "beta", "gamma"]
        assert self.names(client, "sort=-name") == ["gamma", "beta", "Alpha"]
        assert self.names(client, "sort=-free") == ["Alpha", "beta", "gamma"], "one that takes no jobs has none free"
        assert self.names(client, "sort=-busy")[0] == "beta"
        assert self.names(client, "show=closed") == ["gamma"]
        assert self.names(client, "show=busy") == ["beta"]
        assert self.names(client, "q=ALP") == ["Alpha"]
        assert "No matching node" in client.get("/nodes/?q=nothing").content.decode()
        for name in ("state", "-state", "seen", "-seen"):
            assert len(self.names(client, f"sort={name}")) == 3
        assert beta.name in client.get("/nodes/?q=alpha").content.decode()

    def test_what_means_nothing_is_named(self, ada: User) -> None:
        world.make_node("alpha")
        page = client_of(ada).get("/nodes/?sort=password&show=<b>").content.decode()
        assert "This list cannot be sorted by “password”" in page and "There is no choice “&lt;b&gt;”" in page


def test_tokens_are_sorted(ada: User) -> None:
    client = client_of(ada)
    for name in ("b", "A", "c"):
        services.create_token(ada, name, scope="read", expires_at=None)
    shown_names = [token.name for token in client.get("/accounts/tokens/?sort=name").context["tokens"]]
    assert shown_names == ["A", "b", "c"]
    assert [token.name for token in client.get("/accounts/tokens/").context["tokens"]] == ["c", "A", "b"]
    assert "cannot be sorted by “token_digest”" in client.get("/accounts/tokens/?sort=token_digest").content.decode()
