"""docs/api.md is run as it is written, with curl against a live server."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from portal.jobs.models import Job
from tests.laws.people import LOG, World, make_world
from tests.laws.urlmap import routes

GUIDE = Path(__file__).resolve().parent.parent.parent / "docs" / "api.md"
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)

pytestmark = pytest.mark.django_db(transaction=True)


def blocks(language: str) -> list[str]:
    return [body for found, body in BLOCK.findall(GUIDE.read_text()) if found == language]


@pytest.fixture
def world() -> World:
    return make_world()


def run(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False)


def test_every_command_of_the_guide_works(live_server: Any, world: World, tmp_path: Path) -> None:
    token = world.tokens["bob"]
    script = "\n".join(blocks("sh")).replace("http://localhost:8000", live_server.url).replace("sl_...", token)
    done = run("bash", "-euo", "pipefail", "-c", f"cd {tmp_path}\n{script}")
    assert done.returncode == 0, done.stdout + done.stderr
    job = Job.objects.latest("pk")
    assert (job.entry, job.state, job.submitted_by.username) == ("python train.py", "QUEUED", "bob")
    assert {"submitted", "held", "released"} <= {event.kind for event in job.events.all()}


def test_following_as_the_guide_does_prints_the_whole_log(live_server: Any, world: World) -> None:
    (follow,) = blocks("python")
    job = world.jobs["SUCCEEDED"]
    done = run(sys.executable, "-c", follow, str(job.pk), TOKEN=world.tokens["victor"], PORTAL=live_server.url)
    assert (done.returncode, done.stdout) == (0, 2 * LOG.decode()), done.stderr


def test_every_address_of_the_guide_is_in_the_schema() -> None:
    known = [
        re.compile("^/" + re.sub(r"<\w+:\w+>", "[^/]+", route.address))
        for route in routes()
        if route.actions or "api/v1" in route.address
    ]
    addresses = re.findall(r"\$PORTAL(/api/v1/[\w/$]*)", GUIDE.read_text())
    assert len(addresses) > 12
    for address in addresses:
        assert any(pattern.fullmatch(address) for pattern in known), address
