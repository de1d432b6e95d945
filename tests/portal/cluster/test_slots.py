"""A CPU slot is never called a GPU, and one is not several."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from portal.accounts.models import Limit
from portal.cluster.models import Gpu
from portal.cluster.slots import counted, in_cpu_slots, lab_noun, noun
from portal.jobs.models import Allocation
from portal.jobs.resize_timeline.svg import draw
from portal.jobs.resize_timeline.timeline import AttemptSpan, GroupSpan, HostSpan, build_timeline
from portal.jobs.whereabouts import held_by_node, held_now
from portal.scheduler.availability import Nodes, why_blocked
from portal.sentences import sentence_of
from tests.portal import jobs_world as world
from tests.portal.control_world import queue, ready_node, turn
from tests.portal.jobs_world import make_node
from tests.portal.pages import compact, one_line


@pytest.mark.parametrize(
    ("kinds", "word"), [(["cpu", "cpu"], "CPU slot"), (["cuda"], "GPU"), (["cpu", "cuda"], "GPU"), ([], "GPU")]
)
def test_only_what_is_all_cpu_slots_is_called_so(kinds: list[str], word: str) -> None:
    assert noun(kinds) == word


def test_counting() -> None:
    assert [counted(count, "CPU slot") for count in (0, 1, 2)] == ["0 CPU slots", "1 CPU slot", "2 CPU slots"]


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("It needs 2 GPUs at once and only 1 is free.", "It needs 2 CPU slots at once and only 1 is free."),
        ("1 GPU is being given back.", "1 CPU slot is being given back."),
        ("It has had 3.0 GPU-hours on node GPU-box.", "It has had 3.0 GPU-hours on node GPU-box."),
        ("Nothing to replace.", "Nothing to replace."),
    ],
)
def test_reasons_of_a_lab_without_gpus_name_cpu_slots(sentence: str, expected: str) -> None:
    assert in_cpu_slots(sentence) == expected


@pytest.mark.django_db
def test_the_lab_is_named_by_what_its_machines_offer() -> None:
    assert lab_noun() == "GPU"
    make_node("a")
    assert lab_noun() == "CPU slot"
    Gpu.objects.create(node=make_node("b", 0), uuid="GPU-b", index=0, kind="cuda", model="NVIDIA A40")
    assert lab_noun() == "GPU"


@pytest.mark.parametrize(("count", "needed"), [(1, "1 GPU"), (3, "3 GPUs")])
def test_a_lab_that_is_too_small_is_reported_in_the_right_number(count: int, needed: str) -> None:
    nodes = Nodes([object()], {}, {}, {}, frozenset(), {}, {}, frozenset())  # type: ignore[list-item]
    reason = why_blocked(count, 1, "PyTorch", nodes, frozenset())
    assert reason is not None
    assert sentence_of(reason.data()).startswith(f"It needs {needed} at once, but the lab has 0")


@pytest.mark.django_db
def test_the_pages_of_a_lab_without_gpus_name_cpu_slots() -> None:
    node, other = ready_node("a", 3), ready_node("b", 2)
    job = queue(4)
    attempt = world.place(job, [*node.gpus.all(), other.gpus.all()[0]])
    for part in attempt.containers.all():
        world.run(part)
    client = Client()
    client.force_login(job.submitted_by)
    page = " ".join(client.get(f"/jobs/{job.pk}/details/").content.decode().split())
    assert "on 4 CPU slots" in page
    assert ">(3 CPU slots)<" in page and ">(1 CPU slot)<" in page
    nodes = compact(client.get("/nodes/").content.decode())
    assert "4<small>of 5 CPU slots</small>" in nodes and "<dt>nodes</dt><dd>2</dd>" in nodes


@pytest.mark.django_db
@pytest.mark.parametrize(("kind", "word"), [("cpu", "CPU slot"), ("cuda", "GPU")])
def test_pages_about_devices_name_them_by_their_kind(kind: str, word: str) -> None:
    node = ready_node("a", 2)
    Gpu.objects.update(kind=kind)
    job = queue(1, 2)
    job.elastic = True
    job.save()
    world.run(world.place(job, list(node.gpus.all())).containers.get())
    admin = Client()
    admin.force_login(world.make_user("ada", is_staff=True))

    def page(path: str) -> str:
        return " ".join(admin.get(path).content.decode().split())

    listed = page("/gpus/")
    assert f">{word} 0<" in listed and f"2<small> of 2 {word}s</small>" in listed
    history = page(f"/gpus/nodes/{node.pk}/")
    assert f"The readings of its 2 {word}s" in history and f"a {word} 1: " in history
    assert f"Quarantine {word} 0?" in page(f"/admin/nodes/{node.pk}/")
    assert f"Number of {word}s" in page(f"/jobs/{job.pk}/gpus")


@pytest.mark.django_db
@pytest.mark.parametrize(("kind", "word", "other"), [("cpu", "CPU slot", "GPU"), ("cuda", "GPU", "CPU slot")])
def test_reservations_and_limits_name_what_the_nodes_offer(kind: str, word: str, other: str) -> None:
    node = ready_node("a", 2)
    Gpu.objects.update(kind=kind, model="CPU slot" if kind == "cpu" else "NVIDIA A40")
    admin, ada = Client(), world.make_user("ada", is_staff=True)
    admin.force_login(ada)
    assert f"a (2 {word}s)</option>" in admin.get("/reservations/new").content.decode()
    asked = {"name": "course", "node": node.pk, "gpus": 3, "users": "ada"}
    begin = timezone.now()
    times = {"start": f"{begin:%Y-%m-%dT%H:%M}", "end": f"{begin + timedelta(days=1):%Y-%m-%dT%H:%M}"}
    refused = admin.post("/reservations/new", asked | times)
    assert f"Node a has only 2 {word}s." in refused.content.decode()
    node.reservations.create(name="course", gpus=1, start=timezone.now(), end=timezone.now() + timedelta(hours=1))
    for path in ("/reservations/", f"/admin/nodes/{node.pk}/"):
        main = admin.get(path).content.decode().partition("<main")[2].partition("</main>")[0]
        assert f"{word}s" in main and f"{other}s" not in main
    assert f"1 {word} on a" in admin.get("/reservations/").content.decode()
    assert f"Currently, ada uses 0 {word}s" in one_line(admin.get(f"/admin/limits/users/{ada.pk}/").content.decode())


def test_changes_of_a_job_on_cpu_slots_name_cpu_slots() -> None:
    start = datetime(2026, 11, 1, tzinfo=UTC)
    part = HostSpan("h0", "a", 1, start, None, "", "")
    more = HostSpan("h1", "b", 1, start + timedelta(minutes=1), None, "", "")
    rings = (GroupSpan(start, ("h0",)), GroupSpan(start + timedelta(minutes=1), ("h0", "h1")))
    found = build_timeline([AttemptSpan(1, "", "", None, (part, more), rings)], "CPU slot")
    assert found.changes[0].cause == "1 idle CPU slot of b joined."
    drawn = draw(found, start + timedelta(minutes=5))
    assert "2 CPU slots: a (1 CPU slot), b (1 CPU slot)" in drawn and "GPU" not in drawn


@pytest.mark.django_db
def test_gpus_that_come_back_to_a_job_are_counted_once() -> None:
    node = ready_node("a", 3)
    Gpu.objects.update(kind="cuda")
    attempt = world.place(queue(1, 3), list(node.gpus.all())[:2])
    Allocation.objects.filter(attempt=attempt).update(released_at=timezone.now())
    part = attempt.containers.get()
    for gpu in list(node.gpus.all())[1:]:
        Allocation.objects.create(gpu=gpu, attempt=attempt, container=part)
    assert held_by_node(attempt) == [("a", "3 GPUs")]
    assert held_now(attempt) == "2 GPUs"


TEXT = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL)
LABEL = re.compile(r'(?:aria-label|title|data-label|placeholder)="([^"]*)"')


@pytest.mark.django_db
def test_no_page_about_jobs_and_machines_calls_a_cpu_slot_a_gpu() -> None:
    ready_node("a", 3)
    runs, waits = queue(2), queue(3)
    turn()
    admin = runs.submitted_by
    admin.is_staff = True
    admin.save()
    Limit.objects.create(user=admin, max_gpus=2)
    client = Client()
    client.force_login(admin)
    paths = ["/", "/jobs/", "/jobs/new", f"/jobs/{runs.pk}/", f"/jobs/{waits.pk}/", f"/jobs/{waits.pk}/help"]
    paths += [f"/jobs/{runs.pk}/{tab}/" for tab in ("log", "files", "gpus", "details")] + ["/jobs/queue"]
    paths += ["/gpus/", "/gpus/timeline/", "/nodes/", "/reservations/", "/admin/", "/admin/limits/", "/admin/nodes/"]
    paths += [
        f"/jobs/new?code={runs.code_id}",
        f"/admin/limits/users/{admin.pk}/",
        "/admin/policy/preview/?policy=srjf",
        "/accounts/profile/",
        "/usage/",
        "/usage/?by=user",
        "/usage/ledger/",
    ]
    for path in paths:
        answer = client.get(path)
        assert answer.status_code == 200, path
        html = answer.content.decode()
        shown = {one_line(text).strip() for text in (*TEXT.sub("\n", html).split("\n\n"), *LABEL.findall(html))}
        assert "None" not in shown, path
        wrong = {text for text in shown if re.search(r"\bGPUs?\b(?!-)", text)}
        assert not wrong, (path, wrong)
