"""``manage.py demo``: a lab of its own that says so, with a past that could have been, and nothing left after it."""

import os
import random
import subprocess
import sys
from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from portal.accounts.models import User
from portal.cluster.models import Environment, Gpu, Node
from portal.control.demo import past, people, traffic
from portal.control.management.commands import demo
from portal.control.up.preflight import lock_home
from portal.gauges.models import Hour, Sample
from portal.jobs.models import Allocation, Job, JobState
from portal.usage.models import UsageDay
from runners.demo import DemoRuntime
from runners.runtime import Folders
from tests.runners.agent_bench import spec_of

NOW = timezone.now()


@pytest.fixture
def home(tmp_path: Path, settings: Any) -> Path:
    settings.HOME = tmp_path
    return tmp_path


@pytest.fixture
def lab(db: None, home: Path, monkeypatch: pytest.MonkeyPatch) -> people.Made:
    monkeypatch.setattr(people, "PROJECTS", {"Speech commands": ("chen", "dana", "ada")})  # each takes its time
    Environment.objects.get_or_create(key="pytorch-horovod", defaults={"title": "PyTorch"})
    made = people.fill(NOW, 2, 4, "http://127.0.0.1:1")
    past.write(NOW, NOW - people.PAST, made.nodes, made.codes)
    return made


def test_it_has_everything_that_pages_show(lab: people.Made, home: Path) -> None:
    assert Node.objects.filter(runtime="fake", approved_at__isnull=False).count() == 2
    assert {job.state for job in Job.objects.all()} == {JobState.SUCCEEDED, JobState.FAILED}
    assert Hour.objects.filter(utilisation_max__gt=50).exists() and UsageDay.objects.exists()
    assert Hour.objects.count() >= 8 * 24 * 6
    assert Sample.objects.filter(at__gt=NOW - timedelta(minutes=61)).count() == Sample.objects.count() == 2 * 60
    assert (home / "demo.json").stat().st_mode & 0o077 == 0
    assert all((people.node_home(node.name) / "node.json").exists() for node in lab.nodes)


def test_its_past_could_have_been(lab: people.Made) -> None:
    last: dict[int, datetime] = defaultdict(lambda: NOW - people.PAST)
    for row in Allocation.objects.order_by("allocated_at", "pk").select_related("attempt__job"):
        assert row.released_at is not None and row.allocated_at >= last[row.gpu_id]
        assert row.attempt.job.submitted_at <= row.allocated_at < row.released_at <= NOW
        last[row.gpu_id] = row.released_at


def test_people_sign_in_with_the_password_that_is_told(lab: people.Made) -> None:
    answer = Client().post("/accounts/sign-in/", {"username": "chen", "password": lab.password})
    assert (answer.status_code, answer["Location"]) == (302, "/")
    assert [user.username for user in User.objects.filter(is_staff=True)] == ["ada"]


def test_every_page_says_that_it_is_a_demo(lab: people.Made, settings: Any) -> None:
    client = Client()
    client.force_login(User.objects.get(username="ada"))
    pages = ("/", "/gpus/", "/gpus/timeline/?window=week", "/nodes/", "/usage/", "/admin/")
    settings.DEMO = True
    for path in pages:
        assert "<strong>Demo lab.</strong>" in client.get(path).content.decode(), path
    assert "<strong>Demo lab.</strong>" in Client().get("/accounts/sign-in/").content.decode()
    settings.DEMO = False
    assert "Demo lab." not in client.get("/").content.decode()


def test_jobs_keep_coming_until_enough_wait(lab: people.Made) -> None:
    chance = random.Random(1)
    made = [traffic.submit_one(chance, 4) for _ in range(traffic.MOST_WAITING + 2)]
    assert [job is None for job in made] == [False] * traffic.MOST_WAITING + [True, True]
    assert all(job.max_gpus <= 4 for job in made if job)


def test_pretended_gpus_work_where_something_runs(tmp_path: Path) -> None:
    clock = [0.0]
    runtime = DemoRuntime("n", 3, clock=lambda: clock[0])
    folders = Folders(*(tmp_path / name for name in ("workspace", "control", "scribe", "outputs", "checkpoints")))
    runtime.create(spec_of("0" * 64, job=8, gpus=(runtime.uuids[1],)), folders)
    runtime.start("sl-1-a1-0")
    busy = [gpu.utilisation_percent or 0 for gpu in runtime.devices()]
    assert busy[0] == busy[2] == 0 and busy[1] > 20
    clock[0] = 10.0
    (seen,) = runtime.list()
    assert seen.state == "running"  # it says nothing of how long, so it takes some minutes
    assert b"step    1" in (tmp_path / "scribe" / "log" / "0.log").read_bytes()


def test_a_real_lab_only_makes_way_for_another_process(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing of the real lab's database, in a folder of its own."""
    started: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setenv("DATABASE_URL", "postgres://real")
    monkeypatch.setenv("SECRET_KEY_FILE", "/etc/real")
    monkeypatch.setattr(demo.os, "execve", lambda program, command, env: started.append((command, env)))
    call_command("demo", "--nodes=3", "--fill-only")
    ((command, env),) = started
    assert command[2:] == ["demo", "--nodes=3", "--gpus=4", "--fill-only"]
    assert env["SCHEDULEARN_HOME"] == str(home / "demo") and env["SCHEDULEARN_DEMO"] == "true"
    assert not {"DATABASE_URL", "SECRET_KEY_FILE"} & set(env)


def test_removing_it_leaves_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "demo" / "nodes").mkdir(parents=True)
    (home / "db.sqlite3").write_text("real")
    with lock_home(home / "demo"), pytest.raises(CommandError, match="Stop it first"):
        call_command("demo", "--remove")
    call_command("demo", "--remove")
    assert [path.name for path in home.iterdir()] == ["db.sqlite3"]
    call_command("demo", "--remove")
    assert "There is no demo lab." in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--nodes=0", "--gpus=17"])
def test_odd_sizes_are_refused(home: Path, option: str) -> None:
    with pytest.raises(CommandError, match="1 to 20 nodes"):
        call_command("demo", option)


def test_filling_twice_adds_nothing(lab: people.Made, settings: Any) -> None:
    settings.DEMO = True
    before = (User.objects.count(), Job.objects.count(), Gpu.objects.count())
    call_command("demo", "--fill-only")
    assert (User.objects.count(), Job.objects.count(), Gpu.objects.count()) == before


def test_a_demo_lab_is_not_for_postgresql(tmp_path: Path) -> None:
    env = {
        "PATH": os.environ["PATH"],
        "SCHEDULEARN_HOME": str(tmp_path),
        "SCHEDULEARN_DEMO": "true",
        "DATABASE_URL": "postgres://x",
        "REDIS_URL": "redis://x",
    }
    ended = subprocess.run([sys.executable, "-c", "import portal.settings"], env=env, capture_output=True, text=True)
    assert "A demo lab runs on SQLite" in ended.stderr
