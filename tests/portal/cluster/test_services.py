"""What admins do with machines, and the trace it leaves."""

import pytest
from django.utils import timezone

from portal.accounts.models import AuditEntry, User, digest
from portal.cluster import services
from portal.cluster.models import Gpu, JoinToken, Node
from portal.refused import Refused
from tests.portal.jobs_world import exit, make_job, make_node, make_project, make_user, place

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture
def admin() -> User:
    return make_user("admin", is_staff=True)


def trail() -> list[tuple[str, str]]:
    return list(AuditEntry.objects.order_by("id").values_list("action", "target"))


def test_each_act_is_done_and_leaves_its_trace(admin: User) -> None:
    node = make_node("gpu-1", approved_at=None)
    assert services.approve(admin, node).approved_at is not None
    assert services.cordon(admin, node).cordoned
    assert services.drain(admin, node).draining
    resumed = services.resume(admin, node)
    assert not resumed.draining and not resumed.cordoned
    services.remove(admin, node)
    node = Node.objects.get(pk=node.pk)
    assert node.removed_at is not None
    assert trail() == [
        ("node.approved", "gpu-1"),
        ("node.cordoned", "gpu-1"),
        ("node.drained", "gpu-1"),
        ("node.resumed", "gpu-1"),
        ("node.removed", "gpu-1"),
    ]
    assert all(entry.actor == admin for entry in AuditEntry.objects.all())
    drained = AuditEntry.objects.get(action="node.drained")
    assert (drained.before, drained.after) == ({"draining": False}, {"draining": True})


def test_a_removed_node_s_name_is_free_again_and_nothing_more_is_done_with_it(admin: User) -> None:
    node = make_node("gpu-1")
    services.remove(admin, node)
    make_node("gpu-1")
    with pytest.raises(Refused, match="no longer part"):
        services.approve(admin, node)


def test_a_node_at_work_is_not_removed(admin: User) -> None:
    node = make_node(gpus=1)
    attempt = place(make_job(make_project(make_user("alice"))), list(Gpu.objects.select_related("node")))
    with pytest.raises(Refused, match="Drain it first") as refused:
        services.remove(admin, node)
    assert refused.value.code == "conflict" and trail() == []
    exit(attempt.containers.get())
    services.remove(admin, node)


def test_a_removed_node_s_token_stops_working(admin: User) -> None:
    node = make_node(token_digest=digest("old"))
    assert services.node_for("old") == node
    services.remove(admin, node)
    assert services.node_for("old") is None


def test_a_node_s_token_is_nowhere_to_be_read(admin: User) -> None:
    token = services.join(services.issue_join_token(admin), "gpu-1", "docker", {}).token
    stored = str(list(AuditEntry.objects.values())) + str(list(Node.objects.values()))
    assert token not in stored and digest(token) not in str(list(AuditEntry.objects.values()))


def test_join_tokens_are_kept_as_digests(admin: User) -> None:
    token = services.issue_join_token(admin)
    row = JoinToken.objects.get()
    assert row.token_digest == digest(token) and token not in str(vars(row))
    assert row.expires_at > timezone.now()


@pytest.mark.parametrize(
    ("reported", "name"),
    [("gpu-1.lab", "gpu-1.lab"), ("<b>x</b>", "b-x-b"), ("", "node"), ("../..", "node"), ("a" * 99, "a" * 64)],
)
def test_a_name_is_fit_for_pages_and_sentences(reported: str, name: str) -> None:
    assert services.clean_name(reported) == name


def test_of_two_machines_that_join_at_once_under_one_name_the_later_takes_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Node.objects.create(name="alpha", runtime="docker", token_digest="other")
    looks = iter([lambda name: name, services._free_name])
    monkeypatch.setattr(services, "_free_name", lambda name: next(looks)(name))
    joined = services.join(services.issue_join_token(None), name="alpha", runtime="docker", facts={})
    assert joined.node.name == "alpha-2"
