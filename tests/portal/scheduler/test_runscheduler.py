"""The scheduler as a process: it starts, runs cycles, and ends on a signal; and what ``migrate`` offers."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from portal.environments.models import Environment
from portal.scheduler.apps import offer_environments
from portal.scheduler.models import Leader
from runners.environments.images import catalogue
from tests.portal.control_world import gpus_of, queue, ready_node
from tests.portal.homes import migrate

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.usefixtures("django_db_setup")
def test_a_signal_ends_it_within_seconds(tmp_path: Path, django_db_blocker: Any) -> None:
    migrate(tmp_path, django_db_blocker)
    env = {**os.environ, "SCHEDULEARN_HOME": str(tmp_path), "DATABASE_URL": "", "REDIS_URL": ""}
    manage = [sys.executable, "-W", "ignore", "manage.py"]
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([*manage, "runscheduler"], cwd=ROOT, env=env, stderr=output)
    try:
        until = time.monotonic() + 60
        while b"leading with epoch 1" not in log.read_bytes() and time.monotonic() < until:
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.mark.django_db(transaction=True)
@pytest.mark.both_databases
def test_once_turns_once() -> None:
    ready_node("a", 1)
    job = queue()
    handlers = [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)]
    try:
        call_command("runscheduler", "--once")
    finally:
        for signum, handler in zip((signal.SIGTERM, signal.SIGINT), handlers, strict=True):
            signal.signal(signum, handler)
    assert gpus_of(job) == 1
    leader = Leader.objects.get()
    assert (leader.epoch, leader.holder) == (1, ""), "it has ended"


@pytest.mark.django_db
def test_environments_follow_their_recipes() -> None:
    Environment.objects.create(key="dropped", title="Dropped")
    Environment.objects.filter(key=catalogue()[0].key).update(title="old", retired=True)
    offer_environments()
    offered = [entry.key for entry in catalogue() if not entry.hidden]
    assert [row.key for row in Environment.objects.filter(retired=False)] == offered
    assert Environment.objects.get(key=catalogue()[0].key).title == catalogue()[0].title
    assert Environment.objects.get(key="dropped").retired
