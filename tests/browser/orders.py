"""The process beside a test's portal that makes people, jobs and log lines in its database."""

import json
import os
import sys
from datetime import timedelta
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.browser.settings")
django.setup()

from django.contrib.auth.models import Group  # noqa: E402
from django.db import transaction  # noqa: E402
from django.db.models import Max, Q  # noqa: E402
from django.utils import timezone  # noqa: E402

from portal.accounts.audit import audit  # noqa: E402
from portal.accounts.models import User  # noqa: E402
from portal.cluster import quarantine  # noqa: E402
from portal.cluster.models import Node, Reservation  # noqa: E402
from portal.cluster.quarantine import Fault  # noqa: E402
from portal.environments import builds  # noqa: E402
from portal.environments.models import Environment  # noqa: E402
from portal.jobs import lifecycle, logs, metrics  # noqa: E402
from portal.jobs.models import Allocation, Attempt, Container, Job  # noqa: E402
from portal.jobs.resize_timeline.models import RankGroup  # noqa: E402
from portal.jobs.time_extensions.models import TimeExtension  # noqa: E402
from portal.monitoring import sampling  # noqa: E402
from portal.monitoring.sampling import Reading  # noqa: E402
from portal.projects.git import fetches  # noqa: E402
from portal.projects.models import GitSource, Membership, Project  # noqa: E402
from portal.schedules.models import Schedule  # noqa: E402
from portal.sentences import agents  # noqa: E402
from tests import month as made_up  # noqa: E402
from tests import seed  # noqa: E402
from tests.browser.portal import PASSWORD  # noqa: E402
from tests.portal import environments_world as recipes  # noqa: E402
from tests.portal import git_world as commits  # noqa: E402
from tests.portal import jobs_world as world  # noqa: E402

FACTS = {
    "system": "Debian GNU/Linux 12 (bookworm)", "kernel": "6.1.0-28-amd64", "cpus": 64, "memory_mib": 515_000,
    "disk_free_mib": 1_720_000, "engine": "Docker Engine 27.3.1", "storage": "overlay2", "runc": "1.1.15",
    "containerd": "1.7.22", "packages": {"docker-ce": "5:27.3.1-1", "nvidia-container-toolkit": "1.17.4-1"},
    "live_restore": False, "default_runtime": "runc", "driver": "565.57.01", "cuda": "12.7", "nvidia_runtime": True,
    "gpus_by_variable": False, "clock_offset_seconds": 0.04, "address": "10.20.0.17", "interface": "eth0",
    "python": "3.11.2", "agent": "1.0",
}  # fmt: skip
BUILD_LOG = "".join(f" + {name}=={version}\n" for name, version in (
    ("accelerate", "1.1.1"), ("datasets", "3.1.0"), ("huggingface-hub", "0.26.3"), ("pyarrow", "18.1.0"),
    ("safetensors", "0.4.5"), ("tokenizers", "0.20.3"), ("transformers", "4.46.3"), ("xxhash", "3.5.0"),
))  # fmt: skip
FETCH_LOG = (
    "[step] asking\nThe branch main is at 3c3c3c3c3c.\n[step] fetching\nremote: Enumerating objects: 214, done.\n"
    "Receiving objects:  70% (150/214), 12.40 MiB | 6.10 MiB/s\n"
)
PROBLEMS = [
    {
        "text": "Jobs do not survive a restart of the engine.",
        "fix": 'Add "live-restore": true to /etc/docker/daemon.json and reload the engine.',
        "blocking": False,
    }
]


def seeded() -> dict[str, Any]:
    """People, nodes and jobs in every state, with everybody's password set."""
    made = seed.main(lines=400)
    for user in User.objects.all():
        user.set_password(PASSWORD)
        user.save(update_fields=["password"])
    Node.objects.filter(draining=False).update(last_seen_at=timezone.now())
    return made


def environments() -> dict[str, Any]:
    """The seeded lab with environments of its users: ready, being built, failed, and unused."""
    made = seeded()
    alice, bob = (User.objects.get(username=name) for name in ("alice", "bob"))
    vision = Project.objects.get(name="Digits from pictures")
    alpha, beta = (Node.objects.get(name=name) for name in ("gpu-alpha", "gpu-beta"))
    base = Environment.objects.get(key="pytorch-horovod")
    failure = agents.builds.BuildLost("gpu-alpha", 3).data()
    ready = recipes.make_environment(
        bob, vision, ["albumentations>=1.4", "pandas>=2", "rich", "wandb==0.18.7"], "Augmentation", base=base
    )
    recipes.build(alpha, ready)
    recipes.place(beta, ready, "preparing", progress_percent=62, detail=agents.builds.FetchingLayer(81, 131).data())
    Job.objects.filter(pk__in=[made["done"], made["failed"]]).update(environment=ready)
    failed = recipes.make_environment(alice, vision, ["torchtext==0.18", "torch==2.1"], base=base)
    builds.fail(recipes.start(alpha, failed), failure)
    recipes.place(alpha, failed, "failed", detail=failure)
    built = recipes.make_environment(
        alice, None, ["transformers", "accelerate", "datasets"], "Language models", base=base
    )
    running = recipes.start(beta, built)
    builds.record_progress(running, 40, agents.builds.BuildStarting().data(), 0, BUILD_LOG.encode())
    recipes.place(beta, built, "preparing", progress_percent=40, detail=agents.builds.BuildStarting().data())
    old = recipes.make_environment(alice, None, ["gym==0.26"], "Reinforcement learning", base=base)
    before = timezone.now() - timedelta(days=120)
    Environment.objects.filter(pk=old.pk).update(created_at=before, requested_at=before)
    keys = {"ready": ready.key, "broken": failed.key, "built": built.key, "build": running.pk}
    return made | keys | {"lock": ready.builds.get().lock.digest, "failed_build": failed.builds.get().pk}  # type: ignore[union-attr]


def repository() -> dict[str, int]:
    """A project that is bound to a repository, with commits that became versions, a fetch that failed, and one that runs."""
    alice = User.objects.get(username="alice")
    project = world.make_project(alice, "Code from Git")
    commits.allow()
    commits.allow("git.lab.example:2222", internal=True, extras=True, kind="gitea", note="The lab's own")
    source = commits.bind(alice, project, commits.SSH)
    GitSource.objects.filter(pk=source.pk).update(offered_host_key=commits.KEY)
    node = commits.make_node("gpu-git")
    commits.fetch_commit(alice, project, node, author="Grace Hopper", subject="Train with a larger batch")
    second = commits.fetch_commit(alice, project, node, commits.SECOND, subject="Decay the rate", rewritten=True)
    job = world.make_job(project, name="from a commit", code=second.version)
    fetches.request(alice, project)
    fetches.fail(commits.start(node), agents.git_failures.KeyRefused("github.com").data())
    running = fetches.request(alice, project)
    fetches.record_progress(commits.start(node), 45, agents.git.ReceivingCommit(70).data(), 0, FETCH_LOG.encode())
    return {"git": project.pk, "fetch": running.pk, "git_job": job.pk}


def resized_job() -> dict[str, int]:
    """An elastic job that ran on 2 GPUs, then on 6, and is on 3 now; and its node."""
    alice = User.objects.get(username="alice")
    first, second = (world.make_node(name, gpus=4) for name in ("gpu-foxtrot", "gpu-golf"))
    job = world.make_job(world.make_project(alice, "Resizes"), name="language model", elastic=True, max_gpus=6)
    attempt = world.place(job, list(first.gpus.all()[:2]), driver=True)
    more = [*first.gpus.all()[2:], *second.gpus.all()[:2]]
    hosts = [world.add_host(attempt, index, gpu.node, [gpu]) for index, gpu in enumerate(more, 2)]
    for part in attempt.containers.all():
        lifecycle.advance(part, "RUNNING")
    for part, reason in zip(hosts[1:], ("preempted", "drained", "drained"), strict=True):
        lifecycle.stop_container(part, reason)
        lifecycle.advance(part, "EXITED", exit_reason="stopped")
    driver, began = attempt.containers.get(role="driver"), timezone.now() - timedelta(minutes=50)
    sizes = (["h0"] * 2, None, 0), ([*["h0"] * 2, "h2", "h3", "h4", "h5"], 5.31, 14), (["h0", "h0", "h2"], 0.62, 38)
    for number, (names, cost, minute) in enumerate(sizes, 1):
        at = began + timedelta(minutes=minute)
        RankGroup.objects.create(driver=driver, number=number, at=at, hosts=names, cost_seconds=cost)
    for row in (Job.objects.filter(pk=job.pk), Attempt.objects.filter(pk=attempt.pk)):
        row.update(started_at=began)
    second.gpus.update(kind="cuda", model="NVIDIA A100-SXM4-40GB", memory_mib=40_960, links="NVLink to 0, 1, 2, 3")
    Node.objects.filter(pk=second.pk).update(runtime="docker", facts=FACTS, problems=PROBLEMS)
    quarantine.quarantine(second.gpus.all()[3], Fault("XID 79: the GPU has fallen off the bus"))
    return {"resized": job.pk, "node": second.pk}


def long_names() -> dict[str, int]:
    """Things with the longest names that there may be, without a space to break them at."""
    alice = User.objects.get(username="alice")
    person = User.objects.create_user("h" * 60, email=f"{'m' * 60}@example.org")
    project = world.make_project(alice, "W" * 80)
    Project.objects.filter(pk=project.pk).update(description="d" * 200)
    Membership.objects.create(project=project, user=person, role=Membership.Role.MEMBER)
    code = world.make_code(project, (f"{'f' * 90}.py",))
    job = world.make_job(project, name="M" * 80, entry=f"{'f' * 90}.py", code=code)
    group = Group.objects.create(name="g" * 80)
    person.groups.add(group)
    node, now = Node.objects.filter(approved_at__isnull=False)[0], timezone.now()
    reservation = Reservation.objects.create(
        name="R" * 80, node=node, gpus=1, start=now + timedelta(days=4), end=now + timedelta(days=5), created_at=now
    )
    reservation.users.add(person)
    reservation.groups.add(group)
    with transaction.atomic():
        audit(alice, "group.create", f"group {'t' * 190}", after={"name": "g" * 80})
    return {"long": project.pk, "code": code.pk, "job": job.pk, "group": group.pk, "person": person.pk}


def month() -> dict[str, Any]:
    """A month of history that ends now, in a lab of its own or after ``seeded``."""
    made = made_up.make()
    alice = User.objects.get(username="alice")
    alice.set_password(PASSWORD)
    User.objects.update(password=alice.password)
    Node.objects.filter(name__in=[node.name for node in made.nodes]).update(last_seen_at=timezone.now())
    return {"running": [job.pk for job in made.running], "queued": [job.pk for job in made.queued]}


def past_month() -> int:
    """A month of jobs that are all over, decided by the default; how many."""
    from portal.scheduler.services import switch_policy

    made = made_up.make(live=False)
    User.objects.update(password=User.objects.get(username="bob").password)
    switch_policy(None, "elastic_fifo", {})
    return len(made.jobs)


def month_simulated() -> dict[str, Any]:
    """``month``, and a simulation of it under other policies."""
    from portal.whatif import services

    made = month()
    asked = services.queue_simulation(User.objects.get(username="alice"), 14, [("elastic_fifo", {}), ("srjf", {})])
    services.run_queued()
    return made | {"simulation": asked.pk}


def reservations() -> dict[str, int]:
    """A week of reservations for people and groups, some of them side by side, with a long and a Hebrew title."""
    alice, course = User.objects.get(username="alice"), Group.objects.create(name="deep-learning-course")
    dana, node = User.objects.filter(username="dana").first() or world.make_user("dana"), Node.objects.order_by("pk")[0]
    monday = timezone.localtime().replace(hour=0, minute=0, second=0, microsecond=0)
    monday -= timedelta(days=monday.weekday())
    planned: list[tuple[str, float, float, int, Any]] = [
        ("Deep learning course", 9, 12, 1, course),
        ("Deep learning course", 33, 36, 1, course),
        ("Evaluation for the workshop 🚀", 34, 38.5, 1, alice),
        ("שיעור מבוא", 34.5, 36, 1, dana),
        ("Paper deadline: " + "ablation " * 6, 26, 26 + 80, 1, dana),
        ("Benchmark over night", 70, 82, 1, alice),
        ("Demonstration", 128, 132, 1, dana),
    ]
    for name, first, last, gpus, whom in planned:
        start, end = (monday + timedelta(hours=hours) for hours in (first, last))
        row = Reservation.objects.create(name=name, node=node, gpus=gpus, start=start, end=end)
        (row.groups if whom is course else row.users).add(whom)
    return {"reservation": Reservation.objects.order_by("pk")[0].pk}


def demo_lab() -> dict[str, int]:
    """What ``manage.py demo`` fills a lab with, and Alice as an admin of it."""
    from portal.ops.demo import month
    from portal.ops.demo.workload import LabSize

    now = timezone.now()
    written = month.fill(now, LabSize(4, 4), "http://127.0.0.1:1")
    User.objects.create_user("alice", "alice@demo.invalid", PASSWORD, is_staff=True)
    User.objects.update(password=User.objects.get(username="alice").password)
    Node.objects.update(last_seen_at=now, ready=True)
    resized = max(written.attempt_records, key=lambda record: len(record.simulated.resizes))
    loss = Max("attempts__points__value", filter=Q(attempts__points__name=metrics.LOSS))
    running = Job.objects.filter(submitted_by__username="ada", state="RUNNING").annotate(loss=loss)
    well = running.exclude(loss=None).order_by("loss")[0]
    return {
        "node": Node.objects.order_by("pk")[0].pk,
        "resized": resized.job.pk,
        "curves": well.pk,
        "bound": GitSource.objects.get().project_id,
        "schedule": Schedule.objects.get().pk,
        "chained": Job.objects.get(after__isnull=False, state="QUEUED").pk,
        "asked": TimeExtension.objects.get(status=TimeExtension.Status.ASKED).job_id,
    }


def simulate() -> int:
    """Carries out the simulations that were asked for; how many."""
    from portal.whatif import services

    return services.run_queued()


def running_job() -> dict[str, int]:
    alice = User.objects.get(username="alice")
    node = world.make_node(gpus=2)
    job = world.make_job(world.make_project(alice, "Logs"), name="talkative")
    attempt = world.place(job, list(node.gpus.all()))
    part = attempt.containers.get()
    lifecycle.advance(part, "RUNNING")
    return {"job": job.pk, "container": part.pk}


def curves_lab() -> dict[str, int]:
    """Two runs of a sweep, on a GPU each, for forty minutes; the first was resized, and both wait for ``write``."""
    project = world.make_project(User.objects.get(username="alice"), "Curves")
    node, began = world.make_node("gpu-hotel", gpus=2), timezone.now() - timedelta(minutes=40)
    made = {"node": node.pk}
    for number, (rate, gpu) in enumerate(zip(("0.1", "0.3"), node.gpus.all(), strict=True), 1):
        arguments = ["--lr", rate, "--seed", "7"]
        job = world.make_job(project, name="sweep", arguments=arguments, elastic=True, max_gpus=2)
        attempt = world.place(job, [gpu], driver=True)
        for part in attempt.containers.all():
            lifecycle.advance(part, "RUNNING")
        for rows in (Job.objects.filter(pk=job.pk), Attempt.objects.filter(pk=attempt.pk)):
            rows.update(started_at=began)
        Allocation.objects.filter(attempt=attempt).update(allocated_at=began)
        made |= {f"job{number}": job.pk, f"container{number}": attempt.containers.get(role="driver").pk}
    driver = Container.objects.get(pk=made["container1"])
    for number, (hosts, minute) in enumerate(((["h0"] * 2, 0), (["h0"], 20)), 1):
        RankGroup.objects.create(driver=driver, number=number, at=began + timedelta(minutes=minute), hosts=hosts)
    for slot in range(160):
        readings = [Reading(gpu.pk, 40 + (slot * 7 + gpu.index * 13) % 50, 20_480, 61) for gpu in node.gpus.all()]
        sampling.store_sample(node, began + slot * sampling.SLOT, readings)
    return made


def write(container: int, name: str, text: str, first_ms: int = 0, step_ms: int = 0) -> int:
    """Append text. With ``step_ms``, each line gets a mark that many milliseconds after the previous one."""
    data = text.encode()
    stream = logs.open_stream(
        Container.objects.get(pk=container), name, "set-up" if name == "setup" else f"rank {name}"
    )
    stream.refresh_from_db()
    marks, offset = [], stream.size
    for number, line in enumerate(data.splitlines(keepends=True) if step_ms else [data]):
        marks.append((offset, first_ms + number * step_ms))
        offset += len(line)
    for start in range(0, len(data), 1024 * 1024):
        piece = data[start : start + 1024 * 1024]
        logs.append(
            stream,
            stream.size + start,
            piece,
            [mark for mark in marks if start <= mark[0] - stream.size < start + len(piece)],
        )
    return len(data)


def finish(container: int, code: int = 0) -> str:
    part = Container.objects.get(pk=container)
    part.streams.update(closed=True)
    lifecycle.advance(part, "EXITED", exit_code=code, exit_reason="exited")
    return str(Job.objects.get(attempts__containers=part).state)


def large_lab(nodes: int, gpus: int) -> dict[str, str]:
    """Many nodes with running jobs of many people; a member of the lab, and the secret of a screen on the wall."""
    from portal.home import wall
    from tests.portal.home.large_lab import fill

    people = fill(nodes, gpus, finished=50, waiting=20)
    User.objects.filter(username__in=people).update(password=User.objects.get(username="alice").password)
    return {"secret": wall.create_link(people["ada"], "Corridor, 2nd floor", names_people=True)[1]}


def revoke_walls() -> int:
    from portal.home import wall
    from portal.home.models import WallLink

    for link in WallLink.objects.all():
        wall.revoke_link(User.objects.get(username="alice"), link)
    return WallLink.objects.count()


def hold(job: int) -> str:
    """Alice puts a job on hold elsewhere."""
    from portal.jobs import services

    return str(services.hold(User.objects.get(username="alice"), Job.objects.get(pk=job)).state)


def shut_out(job: int, user: str) -> int:
    return Membership.objects.filter(project__jobs=job, user__username=user).delete()[0]


def lab_at_work(node: str = "gpu-delta") -> dict[str, Any]:
    """A node of its own with an elastic job on all four GPUs, and one that waits for two; ``turn`` is the scheduler."""
    from portal.scheduler.services import switch_policy
    from tests.portal import control_world as lab

    switch_policy(None, "elastic_fifo", {})
    Node.objects.update(cordoned=True)
    lab.ready_node(node, 4, ("sweeps",))
    sweeps = world.make_environment("sweeps")
    runs = lab.queue(1, 4, owner="alice", name="sweep of widths", environment=sweeps)
    turn()
    # Long ago: a job that was just placed is not stopped (DAMPING_SECONDS), however fast the test is.
    begin = timezone.now() - timedelta(minutes=10)
    Attempt.objects.filter(job=runs).update(created_at=begin, started_at=begin)
    Allocation.objects.filter(attempt__job=runs).update(allocated_at=begin)
    waits = lab.queue(2, owner="bob", name="speech baseline", elastic=False, environment=sweeps)
    return {"runs": runs.pk, "waits": waits.pk, "gpus": len(holds(runs.pk))}


def turn() -> dict[str, int]:
    """Run one scheduling cycle, after which all agents carry out its orders at once."""
    from tests.portal import control_world as lab

    done = lab.turn()
    lab.run_agents()
    return {"started": len(done.applied.started), "resized": len(done.applied.resized), "errors": bool(done.error)}


def line_of_jobs() -> dict[str, Any]:
    """A node of its own with one GPU free, and jobs that wait for more than that; forecasts are made and some scored."""
    from portal.forecast import services
    from portal.forecast.models import Score
    from portal.scheduler.services import switch_policy
    from tests.portal import control_world as lab

    Node.objects.update(cordoned=True)
    lab.ready_node("gpu-echo", 4, ("vision",))
    vision = world.make_environment("vision")
    switch_policy(None, "fifo", {})
    about: dict[str, Any] = {"environment": vision, "launcher": "command", "entry": "python train.py"}
    runs = lab.queue(3, owner="bob", name="segmentation", **about)
    turn()
    waits = lab.queue(2, owner="alice", name="detector", **about)
    behind = lab.queue(1, owner="alice", name="ablation", **about)
    turn()
    now = timezone.now()
    for number, job in enumerate(Job.objects.order_by("pk")):
        placed_at = now - timedelta(hours=1 + number)
        first, last = placed_at - timedelta(minutes=20), placed_at + timedelta(minutes=-5 if number % 9 == 8 else 30)
        Score.objects.bulk_create(
            Score(
                job=job, made="first", made_at=first, low=first, high=last, placed_at=placed_at - timedelta(days=day),
                held=number % 9 != 8, lengths_known=False,
            )
            for day in range(3)
        )  # fmt: skip
    services.refresh()
    return {"runs": runs.pk, "waits": waits.pk, "behind": behind.pk}


def holder_of_all_gpus() -> dict[str, Any]:
    """A node of its own whose GPUs a job of Bob holds, and a job of Alice that waits for them; no others wait."""
    from portal.jobs import services
    from portal.scheduler.services import switch_policy
    from tests.portal import control_world as lab

    Node.objects.update(cordoned=True)
    name = f"gpu-more-{Node.objects.count()}"
    lab.ready_node(name, 2, ("vision",))
    vision = world.make_environment("vision")
    switch_policy(None, "fifo", {})
    about: dict[str, Any] = {"environment": vision, "launcher": "command", "entry": "python train.py"}
    for job in Job.objects.filter(state="QUEUED").select_related("project"):
        services.cancel(User.objects.get(username="alice"), job)
    runs = lab.queue(2, owner="bob", name="long-run", time_limit_seconds=2 * 3600, **about)
    turn()
    lab.run_agents()
    waits = lab.queue(2, owner="alice", name="patient", **about)
    return {"runs": runs.pk, "waits": waits.pk}


def waiting() -> dict[str, Any]:
    """Everything ``seeded``, and a line of waiting jobs."""
    return seeded() | line_of_jobs()


def holds(job: int) -> list[int]:
    """The GPUs a job holds and keeps, by their allocations."""
    kept = Allocation.objects.filter(attempt__job=job, released_at=None, requested_back_at=None)
    return list(kept.order_by("pk").values_list("pk", flat=True))


ORDERS = {
    each.__name__: each
    for each in (
        lab_at_work,
        hold,
        large_lab,
        line_of_jobs,
        holder_of_all_gpus,
        long_names,
        revoke_walls,
        resized_job,
        repository,
        waiting,
        turn,
        holds,
        seeded,
        environments,
        month,
        past_month,
        month_simulated,
        demo_lab,
        reservations,
        simulate,
        running_job,
        curves_lab,
        write,
        finish,
        shut_out,
    )
}


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = {"answer": ORDERS[order.pop("order")](**order)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
