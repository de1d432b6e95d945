"""Fills an empty portal with people, nodes and jobs in every state, to look at its pages by hand:

    export SCHEDULEARN_HOME=$(mktemp -d)
    python manage.py migrate && python -m tests.seed && python manage.py runserver

Everybody's password is ``look-at-me-1``: alice is an admin, bob a member, charlie a newcomer.
"""

import os
import random
from datetime import timedelta
from typing import Any

import django

PASSWORD = "look-at-me-1"  # noqa: S105  # for one's own eyes
LOSS = (
    "\x1b[36mepoch {epoch:>2}\x1b[0m  step {step:>4}  loss {loss:.4f}  \x1b[{colour}maccuracy {accuracy:.3f}\x1b[0m\n"
)
FAILURE = """Traceback (most recent call last):
  File "/workspace/train.py", line 42, in <module>
    main()
  File "/workspace/train.py", line 31, in main
    import albumentations
ModuleNotFoundError: No module named 'albumentations'
"""


def main(lines: int = 4000) -> dict[str, Any]:
    from django.utils import timezone

    from portal.accounts.models import User
    from portal.cluster.models import Reservation
    from portal.environments.models import Environment, NodeEnvironment
    from portal.jobs import events, lifecycle, services
    from portal.jobs.models import Attempt, Job
    from portal.projects.models import Membership
    from portal.secrets import services as secrets
    from portal.secrets.models import Secret
    from scheduling.toolkit.reasons import TooFewFree
    from tests.portal import jobs_world as world

    now = timezone.now()
    alice = User.objects.create_user("alice", "alice@lab.example", PASSWORD, is_staff=True, first_name="Alice")
    bob = User.objects.create_user("bob", "bob@lab.example", PASSWORD)
    User.objects.create_user("charlie", "charlie@lab.example", PASSWORD)
    vision, speech = world.make_project(alice, "Digits from pictures"), world.make_project(bob, "Speech commands")
    Membership.objects.create(project=vision, user=bob, role=Membership.Role.MEMBER)
    for project in (vision, speech):
        code = world.make_code(project, ("train.py", "model.py", "data/load.py"))
        code.guess = {
            "entry": "train.py",
            "candidates": ["train.py"],
            "launcher": "horovod",
            "elastic": True,
            "imports": {"torch": ["train.py", 3], "albumentations": ["train.py", 31]},
            "requirements": [],
            "warnings": [
                {
                    "code": "no-checkpoint",
                    "path": "train.py",
                    "line": 57,
                    "text": "Nothing is saved to /checkpoints: a job that is stopped restarts from the beginning.",
                }
            ],
        }
        code.save(update_fields=["guess"])
    for owner, kind, name, value in (
        (alice, Secret.Kind.VARIABLE, "HF_TOKEN", "hf_seeded-value"),
        (alice, Secret.Kind.FILE, "kaggle.json", '{"username": "alice", "key": "seeded-value"}'),
        (vision, Secret.Kind.VARIABLE, "WANDB_API_KEY", "seeded-value-of-the-project"),
    ):
        secrets.create(alice, owner, kind, name, value)
    torch = world.make_environment("pytorch-horovod", ("torch", "horovod", "numpy", "sklearn"))
    Environment.objects.filter(pk=torch.pk).update(title="PyTorch with Horovod")
    plain = world.make_environment("python", ("numpy",))
    Environment.objects.filter(pk=plain.pk).update(title="Plain Python", position=1)

    big = world.make_node("gpu-alpha", 4, runtime="docker", facts={"cpus": 32, "memory_mib": 262_144})
    small = world.make_node("gpu-beta", 2, runtime="docker", facts={"cpus": 16, "memory_mib": 65_536})
    world.make_node("gpu-gamma", 2, runtime="docker", approved_at=None, last_seen_at=now - timedelta(minutes=4))
    world.make_node(
        "gpu-old",
        1,
        runtime="docker",
        draining=True,
        last_seen_at=now - timedelta(hours=7),
        problems=[
            {
                "text": "Docker runs without live-restore: a restart of the engine ends every job.",
                "fix": 'Put "live-restore": true into /etc/docker/daemon.json and restart Docker.',
            }
        ],
    )
    for node in (big, small):
        for gpu in node.gpus.all():
            gpu.kind, gpu.model, gpu.memory_mib = "cuda", "NVIDIA A40", 46_068
            gpu.utilisation_percent, gpu.memory_used_mib, gpu.temperature_celsius = random.randint(20, 99), 20_000, 64
            gpu.save()
    NodeEnvironment.objects.create(node=big, environment=torch, state="ready", progress_percent=100)
    NodeEnvironment.objects.create(node=big, environment=plain, state="ready", progress_percent=100)
    NodeEnvironment.objects.create(
        node=small, environment=torch, state="preparing", progress_percent=62, detail="building the Horovod wheel"
    )

    course = Reservation.objects.create(
        name="Deep learning course", node=big, gpus=2, start=now + timedelta(hours=20), end=now + timedelta(hours=24)
    )
    course.users.set([bob])

    def job(project: Any, name: str, **fields: Any) -> Job:
        return world.make_job(project, name=name, environment=torch, **fields)

    def run(row: Job, gpus: list[Any]) -> Attempt:
        lifecycle.record(row, events.Submitted(row.submitted_by.username), actor=row.submitted_by)
        attempt = world.place(row, gpus, policy="elastic_fifo v3")
        for part in attempt.containers.all():
            lifecycle.advance(part, "RUNNING", detail="2 ranks are running")
        return attempt

    def end(attempt: Attempt, code: int) -> None:
        for part in attempt.containers.all():
            lifecycle.advance(part, "EXITED", exit_code=code, exit_reason="exited")

    done = job(vision, "resnet18 on digits", max_gpus=2, elastic=True)
    attempt = run(done, list(big.gpus.all()[:2]))
    write_logs(attempt, lines)
    write_metrics(attempt, 3000, done=1.0)
    leave_outputs(attempt)
    end(attempt, 0)
    failed = job(vision, "with augmentation", max_gpus=2)
    attempt = run(failed, list(big.gpus.all()[:1]))
    write(attempt, "0", FAILURE.encode())
    end(attempt, 1)
    Attempt.objects.filter(pk=attempt.pk).update(
        cause={
            "code": "import_error",
            "title": "A package is missing: albumentations",
            "detail": "train.py, line 31: ModuleNotFoundError: No module named 'albumentations'",
            "advice": "If it is a file of yours, upload it with the code. If not, choose “Duplicate and edit”: the form offers to install it.",
        }
    )
    running = job(vision, "sweep lr=0.01 wd=5e-4", max_gpus=4, elastic=True)
    attempt = run(running, list(big.gpus.all()[:3]))
    write_logs(attempt, 600)
    write_metrics(attempt, 1730, done=0.577)
    other = job(speech, "keyword spotting", submitted_by=bob)
    write_logs(run(other, list(small.gpus.all()[:1])), 100)
    waiting = job(vision, "large batch", min_gpus=4, max_gpus=4)
    lifecycle.record(waiting, events.Submitted("alice"), actor=alice)
    Job.objects.filter(pk=waiting.pk).update(waiting_reason=TooFewFree(0, 4, 2, kept=False).data(), queue_position=1)
    held = job(speech, "baseline", submitted_by=bob)
    services.hold(alice, held)
    cancelled = job(vision, "wrong flag")
    services.cancel(alice, cancelled)
    for number in range(40):
        old = job(vision, f"sweep run {number + 1}")
        services.cancel(alice, old)
        Job.objects.filter(pk=old.pk).update(submitted_at=now - timedelta(hours=number * 3))
    Environment.objects.filter(jobs__isnull=True, on_nodes__isnull=True).delete()
    return {"done": done.pk, "failed": failed.pk, "running": running.pk, "waiting": waiting.pk}


def write(attempt: Any, name: str, data: bytes, marks: Any = (), label: str = "") -> None:
    from portal.jobs import logs

    stream = logs.open_stream(attempt.containers.order_by("index")[0], name, label or f"rank {name}")
    stream.refresh_from_db()
    logs.append(stream, stream.size, data, list(marks))


def write_logs(attempt: Any, lines: int) -> None:
    import time

    start = int(time.time() * 1000) - lines * 200
    write(
        attempt, "setup", b"Fetching code version 1.\nThe ring has 2 ranks on 1 node.\n", [(0, start - 4000)], "set-up"
    )
    for rank in range(2):
        data, marks = bytearray(), []
        for number in range(lines // 2):
            marks.append((len(data), start + number * 400 + rank * 150))
            if number % 50 == 25:
                bar = "".join(
                    f"\r{percent:>3}%|{'█' * (percent // 10):<10}| {percent}/100" for percent in range(0, 101, 20)
                )
                data += f"validating: {bar}\n".encode()
                continue
            accuracy = 1 - 0.9 * 0.997**number
            data += LOSS.format(
                epoch=number // 100,
                step=number,
                loss=2.3 * 0.996**number,
                accuracy=accuracy,
                colour=32 if accuracy > 0.9 else 33,
            ).encode()
        write(attempt, str(rank), bytes(data), marks)


def write_metrics(attempt: Any, steps: int, done: float) -> None:
    """Write what ``schedulearn_train`` reports on three ranks, the last one slow. The scheduler enlarged batches."""
    import json
    import time

    chance, now, records = random.Random(steps), time.time(), []
    for step in range(0, steps + 1, 10):
        about = {"at": now - 0.12 * (steps - step), "step": step}
        loss = 2.3 * 0.9985**step + 0.05 + chance.gauss(0, 0.06) * 0.9995**step
        batch = 256 if step < steps / 3 else 320 if step < steps / 2 else 384
        facts = {"epoch": step // 150, "done": done * step / steps, "batch": batch, "ranks": 3}
        seconds = chance.uniform(0.065, 0.075) + batch / 5000
        records.append({"kind": "step", **about, **facts, "seconds": seconds, "loss": loss})
        if step % 150 == 0:
            value = 1 - 0.9 * 0.998**step + chance.gauss(0, 0.005)
            records.append({"kind": "metric", **about, "name": "validation/accuracy", "value": value})
    columns = {"samples": [128, 128, 128], "computing": [0.071, 0.069, 0.131], "waiting": [0.072, 0.074, 0.012]}
    columns |= {"expected": [0.0702, 0.0696, 0.124], "error": [0.021, 0.018, 0.064]}
    records.append({"kind": "ranks", "at": now, "step": steps, "first": 0, **columns})
    write(attempt, "metrics", "".join(f"{json.dumps(each)}\n" for each in records).encode(), label="metrics")


def leave_outputs(attempt: Any) -> None:
    import struct
    import zlib

    from portal.jobs import outputs

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes(c for x in range(240) for c in ((x + y) % 256, 98, 115)) for y in range(160))
    png = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", 240, 160, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
    outputs.store(attempt, "metrics.json", [b'{\n  "accuracy": 0.9722,\n  "epochs": 20\n}\n'])
    outputs.store(attempt, "plots/loss.png", [png])
    outputs.store(attempt, "model.pt", [bytes(range(256)) * 4000])


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    django.setup()
    print(main())
