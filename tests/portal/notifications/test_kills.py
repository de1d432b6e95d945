"""kill -9 of whoever writes and whoever empties the outbox, at arbitrary steps: each notice arrives exactly once by its id."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from tests.examples import examples
from tests.portal.homes import migrate
from tests.portal.notifications.servers import Sink, mail_sink, web_sink

ROOT = Path(__file__).resolve().parents[3]
KILLS = examples(30, 5)
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(connection.vendor != "sqlite", reason="its processes have a SQLite database of their own"),
]


class Lab:
    def __init__(self, home: Path, mails: Sink, hooks: Sink) -> None:
        self.mails, self.hooks = mails, hooks
        self.env = {
            **os.environ,
            "SCHEDULEARN_HOME": str(home),
            "DJANGO_SETTINGS_MODULE": "portal.settings",
            "EMAIL_BACKEND": "django.core.mail.backends.smtp.EmailBackend",
            "EMAIL_HOST": "127.0.0.1",
            "EMAIL_PORT": str(mails.port),
            "SITE_URL": "https://lab.example.org",
            "ALLOWED_HOSTS": "lab.example.org",
        }

    def start(self, program: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "tests.portal.notifications.programs", program, str(self.hooks.port)]
        return subprocess.Popen(command, cwd=ROOT, env=self.env, text=True, stdout=subprocess.PIPE)

    def run(self, program: str) -> str:
        with self.start(program) as process:
            assert process.stdout is not None
            text = process.stdout.read()
        assert process.returncode == 0, text
        return text

    def run_until_killed(self, program: str, steps: int) -> bool:
        """Kill a program at its so-many-th step; return whether it came so far."""
        with self.start(program) as process:
            assert process.stdout is not None
            for _ in range(steps):
                if not process.stdout.readline():
                    return False
            process.kill()
        return True


@pytest.fixture
def lab(tmp_path: Path, django_db_setup: None, django_db_blocker: Any) -> Iterator[Lab]:
    migrate(tmp_path, django_db_blocker)
    with mail_sink() as mails, web_sink() as hooks:
        made = Lab(tmp_path, mails, hooks)
        made.run("seed")
        yield made


def test_each_notice_arrives_exactly_once_by_its_id(lab: Lab) -> None:
    order = random.Random(33)
    kills = 0
    for number in range(KILLS):
        program = "end" if number % 3 == 0 else "deliver"
        kills += lab.run_until_killed(program, order.randint(1, 14))
    assert kills >= KILLS // 2, "it ended before it could be killed"
    lab.run("end")
    lab.run("deliver")
    found = json.loads(lab.run("report"))

    assert found["open"] == 0 and len(found["succeeded"]) == 12
    wanted = dict(found["uids"])
    assert Counter(wanted.values()) == dict.fromkeys(found["succeeded"], 3), "mail, channel and webhook of each job"
    got = [(str(mail["Message-ID"]).strip("<>").partition("@")[0], mail.as_bytes()) for mail in lab.mails.mails]
    got += [(request.headers["webhook-id"], request.body) for request in lab.hooks.requests]
    assert {uid for uid, _ in got} == set(wanted), "each arrives, and nothing else does"
    assert len(got) - len(wanted) <= kills * 3, "only what a kill interrupted is repeated"
    for uid in wanted:
        bodies = {_without_date(body) for each, body in got if each == uid}
        assert len(bodies) == 1, "a repetition is the same message"


def _without_date(body: bytes) -> bytes:
    return b"\n".join(line for line in body.splitlines() if not line.startswith(b"Date:"))


def test_a_worker_that_dies_after_the_receiver_has_accepted_sends_the_same_id_again(lab: Lab) -> None:
    lab.run("end")
    worker = lab.start("deliver")
    lab.hooks.before_answer = worker.kill
    worker.wait(120)
    lab.hooks.before_answer = lambda: None
    assert worker.stdout is not None
    worker.stdout.close()
    lab.run("deliver")
    found = json.loads(lab.run("report"))
    seen = Counter(request.headers["webhook-id"] for request in lab.hooks.requests)
    assert found["open"] == 0 and max(seen.values()) == 2, "the one that was interrupted came twice"
    assert {uid for uid, _ in found["uids"]} >= set(seen)
