"""Which GPUs a job accepts: what is refused, what is offered, and that it gets no others, whatever the policy."""

import json
from dataclasses import replace
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.cluster.models import Gpu, Node
from portal.forecast.changes import possible_changes
from portal.jobs import gpu_choice, services
from portal.jobs.forms import JobForm
from portal.jobs.gpu_choice import MeasuredMemory
from portal.jobs.models import Allocation, Attempt, Container, Job
from portal.jobs.spec import submission_of
from portal.projects.models import Project
from portal.refused import Refused
from portal.scheduler import apply as applying
from portal.scheduler import snapshot
from portal.scheduler.resource_use import with_resources
from portal.scheduler.services import switch_policy
from portal.sentences import sentence_of
from scheduling import registry
from scheduling.decide import decide
from scheduling.types import ANY_GPU, GpuRequest
from tests.examples import mostly_thorough
from tests.portal import jobs_world as world
from tests.portal.control_world import queue, ready_node, run_agents, turn
from tests.portal.upgrades import upgrade_from

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
T4, A100 = ("NVIDIA T4", 15_360), ("NVIDIA A100", 40_960)


def node(name: str, *models: tuple[str, int]) -> Node:
    """Return a ready node with a GPU of each of these models."""
    made = ready_node(name, len(models))
    for gpu, (model, memory) in zip(made.gpus.order_by("index"), models, strict=True):
        Gpu.objects.filter(pk=gpu.pk).update(kind="cuda", model=model, memory_mib=memory)
    return made


def models_of(job: Job) -> list[str]:
    held = Allocation.objects.filter(attempt__job=job, released_at=None, requested_back_at=None)
    return sorted(held.values_list("gpu__model", flat=True))


# What is refused


@pytest.fixture
def lab() -> Project:
    node("alpha", A100, A100, T4, T4)
    node("beta", T4, T4)
    return world.make_project(world.make_user("alice"), "digits")


def submit(project: Project, **fields: Any) -> Job:
    template = world.make_job(project, launcher="torchrun", name="")
    asked = replace(submission_of(template), **fields)
    template.delete()
    return services.submit(project.created_by, project, asked)


@pytest.mark.parametrize(
    ("fields", "field", "sentence"),
    [
        (
            {"gpu_memory_mib": 50_000},
            "gpu_memory_mib",
            "No GPU of the lab has 48.8 GiB of memory. Ask for at most 40 GiB (40960 MiB): NVIDIA A100 (2).",
        ),
        (
            {"gpu_memory_mib": 16_000, "min_gpus": 3, "max_gpus": 3},
            "gpu_memory_mib",
            "Only 2 GPUs of the lab have 15.6 GiB of memory. Ask for at most 2, or for at most 15 GiB (15360 MiB): "
            "NVIDIA A100 (2), NVIDIA T4 (4).",
        ),
        (
            {"gpu_memory_mib": 30_720, "gpu_models": ("NVIDIA T4",)},
            "gpu_memory_mib",
            "No GPU of the chosen models has 30 GiB of memory. Ask for at most 15 GiB (15360 MiB): NVIDIA T4 (4). "
            "Or accept others: NVIDIA A100 (2).",
        ),
        (
            {"same_gpu_model": True, "gpu_models": ("NVIDIA T4", "NVIDIA A100"), "min_gpus": 6, "max_gpus": 6},
            "same_gpu_model",
            "None of the chosen models has 6 GPUs: the most are 4 of NVIDIA T4. Ask for at most 4, or allow GPUs of "
            "several models in one job.",
        ),
        (
            {"gpu_models": ("NVIDIA H100",)},
            "gpu_models",
            "The lab has no GPU of the model 'NVIDIA H100'. It has NVIDIA A100 (2), NVIDIA T4 (4).",
        ),
        (
            {"gpu_models": ("NVIDIA A100",), "min_gpus": 3, "max_gpus": 3},
            "gpu_models",
            "The lab has only 2 such GPUs, and the job needs at least 3. Ask for at most 2, or accept others: NVIDIA T4 (4).",
        ),
        (
            {"same_gpu_model": True, "min_gpus": 5, "max_gpus": 5},
            "same_gpu_model",
            "No model has 5 GPUs: the most are 4 of NVIDIA T4. Ask for at most 4, or allow GPUs of several models in one job.",
        ),
        (
            {
                "gpu_models": ("NVIDIA T4",),
                "min_gpus": 3,
                "max_gpus": 3,
                "launcher": "command",
                "entry": "python train.py",
            },
            "gpu_models",
            "The lab has only 2 such GPUs on one node, and the job needs at least 3. "
            "Ask for at most 2, or accept others: NVIDIA A100 (2).",
        ),
        ({"gpu_memory_mib": 0}, "gpu_memory_mib", "Enter a number from 1 to 16,777,216, or leave it empty."),
    ],
)
def test_what_no_node_can_give_is_refused_with_the_nearest(
    lab: Project, fields: dict[str, Any], field: str, sentence: str
) -> None:
    with pytest.raises(Refused) as refused:
        submit(lab, **fields)
    assert (refused.value.field, refused.value.message) == (field, sentence)
    assert not Job.objects.exists()


def test_parts_of_gpus_are_refused_to_jobs_of_several() -> None:
    node("alpha", ("NVIDIA A100 MIG 1g.5gb", 4_864), ("NVIDIA A100 MIG 1g.5gb", 4_864))
    project = world.make_project(world.make_user("alice"), "digits")
    with pytest.raises(Refused, match="only for jobs of one GPU"):
        submit(project, min_gpus=2, max_gpus=2)
    assert submit(project, min_gpus=1, max_gpus=1).gpu_models == []


def test_before_the_first_node_has_joined_nothing_is_refused() -> None:
    project = world.make_project(world.make_user("alice"), "digits")
    assert submit(project, gpu_models=("NVIDIA H100",), gpu_memory_mib=80_000).gpu_models == ["NVIDIA H100"]


def test_processors_and_memory_are_those_of_nodes_with_gpus_that_it_accepts(lab: Project) -> None:
    facts = {"cpus": 64, "memory_mib": 257 * 1024}
    Node.objects.filter(name="beta").update(facts=facts)
    Node.objects.filter(name="alpha").update(facts={"cpus": 8, "memory_mib": 17 * 1024})
    assert submit(lab, memory_mib_per_gpu=100_000).pk
    with pytest.raises(Refused, match="Ask for at most 16384 MiB"):
        submit(lab, memory_mib_per_gpu=100_000, gpu_models=("NVIDIA A100",))


def test_processors_and_memory_are_those_that_one_model_has_where_all_must_be_of_one() -> None:
    for name, model, count, memory in (("a", T4, 1, 129), ("b", A100, 1, 129), ("c", T4, 2, 17)):
        node(name, *[model] * count)
        Node.objects.filter(name=name).update(facts={"cpus": memory, "memory_mib": memory * 1024})
    project = world.make_project(world.make_user("alice"), "digits")
    asked: dict[str, Any] = {"min_gpus": 2, "max_gpus": 2, "memory_mib_per_gpu": 100 * 1024}
    assert submit(project, **asked).pk
    with pytest.raises(Refused, match="Ask for at most 16384 MiB") as refused:
        submit(project, **asked, same_gpu_model=True)
    assert refused.value.field == "memory_mib_per_gpu"
    assert submit(project, **asked | {"memory_mib_per_gpu": 16_384}, same_gpu_model=True).pk
    with pytest.raises(Refused, match="Ask for at most 17, or"):
        submit(project, min_gpus=2, max_gpus=2, cpus_per_gpu=60, same_gpu_model=True)


def test_gpus_of_one_model_on_a_machine_count_with_the_memory_of_the_smallest() -> None:
    node("alpha", ("NVIDIA H100", 81_920), ("NVIDIA H100", 81_559))
    project = world.make_project(world.make_user("alice"), "digits")
    assert [size for size, _ in gpu_choice.memory_choices(gpu_choice.read_lab_gpus())] == [81_559]
    with pytest.raises(Refused, match=r"Ask for at most .* \(81559 MiB\)"):
        submit(project, gpu_memory_mib=81_920)
    job = submit(project, gpu_memory_mib=81_559)
    turn()
    job.refresh_from_db()
    assert job.state == "RUNNING"


def test_gpus_that_do_not_report_their_memory_offer_no_size() -> None:
    node("alpha", ("CPU slot", 0), ("CPU slot", 0))
    with pytest.raises(Refused, match=r"do not report their memory\. Leave it empty"):
        submit(world.make_project(world.make_user("alice"), "digits"), gpu_memory_mib=1)


# What it gets


@pytest.mark.parametrize("key", mostly_thorough(registry.POLICIES, "fair_share", "goodput"))
def test_under_every_policy_it_gets_no_other_gpus(lab: Project, key: str) -> None:
    switch_policy(None, key, {})
    mine = [
        queue(2, gpu_memory_mib=16_000),
        queue(2, gpu_models=["NVIDIA T4"]),
        queue(2, same_gpu_model=True),
        queue(1, 4, gpu_models=["NVIDIA T4"], same_gpu_model=True),
    ]
    for _ in range(3):
        turn()
        run_agents()
    assert models_of(mine[0]) in ([], ["NVIDIA A100"] * 2)
    assert set(models_of(mine[1])) <= {"NVIDIA T4"} and set(models_of(mine[3])) <= {"NVIDIA T4"}
    assert len(set(models_of(mine[2]))) <= 1
    assert sum(len(models_of(job)) for job in mine) >= 4
    seen = snapshot.take()
    assert sum(each.free for each in seen.nodes) == 6 - sum(len(models_of(job)) for job in mine)


def test_a_machine_with_two_models_is_two_nodes_of_the_snapshot(lab: Project) -> None:
    alpha, beta = Node.objects.get(name="alpha"), Node.objects.get(name="beta")
    job = queue(3, launcher="torchrun")
    turn()
    seen = snapshot.take()
    assert {each.id: (each.name, each.total, each.kind, each.gpu_memory_mib, each.part_of) for each in seen.nodes} == {
        f"{alpha.pk}:NVIDIA A100": ("alpha (NVIDIA A100)", 2, "NVIDIA A100", 40_960, str(alpha.pk)),
        f"{alpha.pk}:NVIDIA T4": ("alpha (NVIDIA T4)", 2, "NVIDIA T4", 15_360, str(alpha.pk)),
        str(beta.pk): ("beta", 2, "NVIDIA T4", 15_360, ""),
    }
    (running,) = seen.jobs
    assert running.gpu_request is ANY_GPU and sum(running.now_on.values()) == 3 == len(models_of(job))
    assert sum(each.total - each.free for each in seen.nodes) == 3


def test_ranks_on_both_models_of_a_machine_are_one_container() -> None:
    node("alpha", A100, T4)
    queue(2, launcher="torchrun", elastic=False)
    turn()
    (host,) = Container.objects.filter(role="host")
    assert len(host.spec["gpus"]) == 2


def test_a_plain_command_may_use_both_models_of_a_machine() -> None:
    node("alpha", A100, T4)
    job = queue(2, launcher="command", entry="python train.py", elastic=False)
    turn()
    assert models_of(job) == ["NVIDIA A100", "NVIDIA T4"]


def test_an_elastic_job_on_two_models_releases_gpus_of_the_one_that_is_asked_for() -> None:
    node("alpha", A100, A100, T4, T4)
    switch_policy(None, "elastic_fifo", {"grow_after_seconds": 0})
    first = queue(1, 4)
    turn()
    run_agents()
    turn()
    run_agents()
    assert models_of(first) == ["NVIDIA A100"] * 2 + ["NVIDIA T4"] * 2
    base = models_of_base(first)
    other = next(model for model in ("NVIDIA A100", "NVIDIA T4") if model != base)
    second = queue(2, gpu_models=[other], owner="bob")
    for _ in range(4):
        turn()
        run_agents()
    assert models_of(second) == [other] * 2
    assert set(models_of(first)) == {base}


def models_of_base(job: Job) -> str:
    first = Container.objects.filter(attempt__job=job, role="host").order_by("index")[0]
    return str(first.allocations.get().gpu.model)


def test_a_step_that_no_longer_fits_is_dropped(lab: Project) -> None:
    """Between decision and execution, another model has come into the node."""
    beta = Node.objects.get(name="beta")
    job = queue(2, gpu_models=["NVIDIA T4"])
    step = applying.PlanStep(job.pk, "start", {}, {str(beta.pk): 2}, {})
    Gpu.objects.filter(node=beta, index=1).update(model="NVIDIA A100")
    with pytest.raises(applying.PlanStaleError):
        applying._PlanApplier([step], "fifo v1", timezone.now()).apply_step(step)
    alike = queue(2, same_gpu_model=True)
    step = applying.PlanStep(alike.pk, "start", {}, {str(beta.pk): 2}, {})
    with pytest.raises(applying.PlanStaleError):
        applying._PlanApplier([step], "fifo v1", timezone.now()).apply_step(step)


def test_the_reason_of_a_waiting_job_names_what_it_accepts(lab: Project) -> None:
    queue(2, gpu_models=["NVIDIA A100"])
    job = queue(2, gpu_models=["NVIDIA A100"], gpu_memory_mib=40_000)
    turn()
    job.refresh_from_db()
    assert job.why_waiting.endswith(
        "It accepts only NVIDIA A100 GPUs with at least 39 GiB; the open nodes have 2 of these."
    )


def test_what_has_left_the_lab_since_the_submission_is_named(lab: Project) -> None:
    job = queue(1, gpu_models=["NVIDIA A100"])
    Gpu.objects.filter(model="NVIDIA A100").update(present=False)
    turn()
    job.refresh_from_db()
    assert job.why_waiting == (
        "It needs 1 NVIDIA A100 GPU; the lab has none that work. "
        "Submit it again for other GPUs, or ask an admin whether these come back."
    )


def test_shares_are_those_of_the_whole_machine(lab: Project) -> None:
    Node.objects.filter(name="alpha").update(facts={"cpus": 16, "memory_mib": 65 * 1024})
    queue(1, gpu_models=["NVIDIA T4"], memory_mib_per_gpu=20_000)
    seen = with_resources(snapshot.take())
    assert {each.memory_mib_per_gpu for each in seen.nodes if each.part_of} == {16 * 1024}
    assert {each.millicpus_per_gpu for each in seen.nodes if each.part_of} == {4000}


def test_changes_are_proposed_that_start_it(lab: Project) -> None:
    queue(2, gpu_models=["NVIDIA A100"])
    job = queue(2, gpu_memory_mib=40_000, gpu_models=["NVIDIA A100"], same_gpu_model=True)
    turn()
    seen = snapshot.take()
    view = next(each for each in seen.jobs if each.id == str(job.pk))
    found = {change.key: change for change in possible_changes(job, view, seen)}
    assert "models-any" not in found, "no other model has so much memory"
    assert found["gpumemory-15360"].job.gpu_request == GpuRequest(15_360, ("NVIDIA A100",), True)
    wide = queue(2, gpu_models=["NVIDIA A100"])
    view = next(each for each in snapshot.take().jobs if each.id == str(wide.pk))
    change = next(each for each in possible_changes(wide, view, seen) if each.key == "models-any")
    assert sentence_of(change.message) == "also on NVIDIA T4" and change.spec == {"gpu_models": ()}
    assert decide(registry.build("fifo", {}), replace(seen, jobs=(change.job,))).target[change.job.id]


# The form and the API


def page(client: Client, project: Project) -> str:
    client.force_login(project.created_by)
    code = world.make_code(project, ("train.py",), "d" * 64)
    return client.get(f"/jobs/new?code={code.pk}").content.decode()


def test_the_form_asks_only_where_the_lab_has_different_gpus(client: Client) -> None:
    beta = node("beta", T4, T4)
    project = world.make_project(world.make_user("alice"), "digits")
    assert "Which GPUs" not in page(client, project)
    Gpu.objects.filter(node=beta, index=0).update(model="NVIDIA A100", memory_mib=40_960)
    code = world.make_code(project, ("train.py",), "e" * 64)
    text = client.get(f"/jobs/new?code={code.pk}").content.decode()
    assert "Which GPUs" in text and "NVIDIA A100 (40 GiB, 1 of 1 free now)" in text
    assert '<option value="40960">40 GiB (1 of 2 GPUs)</option>' in text


def test_what_is_chosen_is_submitted_and_copied(client: Client, lab: Project) -> None:
    client.force_login(lab.created_by)
    code = world.make_code(lab, ("train.py",), "d" * 64)
    environment = world.make_environment().key
    data = {
        "launcher": "torchrun", "entry": "train.py", "min_gpus": 1, "max_gpus": 2, "environment": environment,
        "time_amount": 1, "time_unit": 3600, "retries": 0, "priority": 0, "tier": "standard", "key": "k",
        "gpu_memory_mib": "15360", "gpu_models": ["NVIDIA T4", "NVIDIA A100"], "same_gpu_model": "on",
    }  # fmt: skip
    assert client.post(f"/jobs/new?code={code.pk}", data).status_code == 302
    job = Job.objects.get()
    assert (job.gpu_memory_mib, job.gpu_models, job.same_gpu_model) == (15_360, ["NVIDIA T4", "NVIDIA A100"], True)
    copied = JobForm(code, copy_of=job)
    assert copied.chooses_gpus and copied["gpu_models"].value() == ("NVIDIA T4", "NVIDIA A100")
    text = client.get(f"/jobs/{job.pk}/details/").content.decode()
    assert "NVIDIA T4 or NVIDIA A100 GPUs with at least 15 GiB, all of one model" in text
    wrong = client.post(f"/jobs/new?code={code.pk}", {**data, "key": "l", "gpu_models": ["NVIDIA H100"]})
    assert wrong.status_code == 400 and "NVIDIA H100" in wrong.content.decode()


def test_the_api_takes_and_returns_it(client: Client, lab: Project) -> None:
    client.force_login(lab.created_by)
    world.make_code(lab, ("train.py",), "d" * 64)
    body = {
        "project": lab.pk,
        "entry": "train.py",
        "launcher": "torchrun",
        "gpu_models": ["NVIDIA T4"],
        "gpu_memory_mib": 15_000,
        "same_gpu_model": True,
    }
    response = client.post("/api/v1/jobs/", json.dumps(body), content_type="application/json")
    assert response.status_code == 201, response.content
    shown = client.get(f"/api/v1/jobs/{response.json()['id']}/").json()
    assert {name: shown[name] for name in body if name != "project"} == {
        n: v for n, v in body.items() if n != "project"
    }
    wrong = client.post(
        "/api/v1/jobs/", json.dumps({**body, "gpu_models": "NVIDIA T4"}), content_type="application/json"
    )
    assert wrong.status_code == 400


# What the last run used


def ended(project: Project, memory: int | None, **fields: Any) -> Job:
    job = world.make_job(project, launcher="torchrun", entry="train.py", **fields)
    attempt = world.place(job, [Gpu.objects.filter(kind="cuda").order_by("pk")[0]])
    Attempt.objects.filter(pk=attempt.pk).update(
        peak_gpu_memory_mib=memory, ended_at=timezone.now(), outcome="succeeded", wanted="run"
    )
    Allocation.objects.filter(attempt=attempt).update(released_at=timezone.now())
    return job


def test_the_memory_that_the_last_run_used_is_filled_in(lab: Project) -> None:
    code = world.make_code(lab, ("train.py",), "d" * 64)
    code.guess = {"launcher": "torchrun", "entry": "train.py", "candidates": ["train.py"]}
    small, large = ended(lab, 4_000), ended(lab, 20_000)
    form = JobForm(code)
    assert form.measured == MeasuredMemory(large.pk, 20_000) and form["gpu_memory_mib"].value() == 40_960
    Attempt.objects.filter(job=large).delete()
    form = JobForm(code)
    assert form.measured == MeasuredMemory(small.pk, 4_000) and form["gpu_memory_mib"].value() is None


@pytest.mark.parametrize(
    ("used", "size"), [(10_000, None), (13_900, None), (14_000, 40_960), (37_000, 40_960), (39_000, None)]
)
def test_a_size_is_filled_in_where_some_gpus_are_too_small_and_others_are_not(used: int, size: int | None) -> None:
    assert gpu_choice.size_for(used, [15_360, 40_960]) == size


# Earlier releases


@pytest.mark.django_db(transaction=True)
def test_jobs_of_the_release_before_accept_any_gpu() -> None:
    job = world.make_job(world.make_project(world.make_user("alice")))
    upgrade_from("jobs", "0031_network")
    job.refresh_from_db()
    assert (job.gpu_memory_mib, job.gpu_models, job.same_gpu_model) == (None, [], False)
