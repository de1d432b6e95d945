"""Pages with commands for the API are run as they are written, with curl against a live server."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from drf_spectacular.generators import SchemaGenerator

from portal.jobs.models import Job
from tests.laws.people import LOG, World, make_world
from tests.laws.urlmap import routes

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
GUIDE = DOCS / "api" / "index.md"
SUBMIT = DOCS / "how-to" / "submit-from-a-script.md"
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)

pytestmark = pytest.mark.django_db(transaction=True)


def blocks(language: str, page: Path = GUIDE) -> list[str]:
    return [body for found, body in BLOCK.findall(page.read_text()) if found == language]


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


def test_a_shell_script_submits_to_a_project_and_gets_the_results(
    live_server: Any, world: World, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print(2)\n")
    names, *rest = blocks("sh", SUBMIT)
    for sample, real in (
        ("https://gpu.example.org", live_server.url),
        ("sl_...", world.tokens["bob"]),
        ("PROJECT=7", f"PROJECT={world.project.pk}"),
    ):
        assert sample in names
        names = names.replace(sample, real)
    waiting = next(number for number, body in enumerate(rest) if "sleep" in body)

    def of(bodies: list[str]) -> str:
        done = run("bash", "-euo", "pipefail", "-c", "\n".join([f"cd {tmp_path}", names, *bodies]))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    printed = of(rest[:waiting])
    job = Job.objects.latest("pk")
    assert f"{world.project.pk} {world.project.name}" in printed and f"/jobs/{job.pk}/" in printed
    assert (job.project, job.entry, job.time_limit_seconds) == (world.project, "python train.py --lr 0.1", 7200)
    assert job.code.number == world.code.number + 1
    ended = world.jobs["SUCCEEDED"]
    assert "SUCCEEDED" in of([f"JOB={ended.pk}", *rest[waiting:]])
    assert LOG.decode().strip() in (tmp_path / "log.txt").read_text()


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


def test_generated_clients_can_send_what_the_schema_asks_for() -> None:
    schema = SchemaGenerator().get_schema(request=None, public=True)
    components = schema["components"]["schemas"]

    for address, methods in schema["paths"].items():
        for method in {"post", "put", "patch"} & set(methods):
            for content in methods[method].get("requestBody", {}).get("content", {}).values():
                name = content["schema"].get("$ref", "").removeprefix("#/components/schemas/")
                fields = components[name].get("properties", {}) if name else {}
                read_only = [field for field, kind in fields.items() if kind.get("readOnly")]
                assert not read_only, f"{method} {address} asks for {read_only}"
    assert components["UploadRequest"]["properties"]["file"]["items"]["format"] == "binary"
