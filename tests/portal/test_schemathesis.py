"""Schemathesis searches the API for answers that differ from the schema, as a user and as an admin.

``SCHEMATHESIS_EXAMPLES`` is how many calls it generates per operation; ``make test-all`` makes few, and a release many
(``docs/development/releases.md``).
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from drf_spectacular.generators import SchemaGenerator

from portal.rest import StrangerThrottle
from tests.laws.people import World, make_world

EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "8"))
SECONDS = 600 + 60 * EXAMPLES
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
HOOKS = Path(__file__).with_name("schemathesis_hooks.py")

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.thorough, pytest.mark.timeout(SECONDS + 60)]


def existing(world: World) -> dict[str, list[object]]:
    """Values of path parameters that name something in the lab."""
    return {
        "attempt_number": [1],
        "code_number": [1],
        "environment_key": [world.environment.key],
        "gpu_id": [world.gpu.pk],
        "gpu_index": [0, 1],
        "group_id": [world.group.pk],
        "group_name": [world.group.name],
        "job_id": [job.pk for job in world.jobs.values()],
        "node_id": [world.node.pk],
        "path": ["train.py", "results/metrics.txt", "last/step.pt"],
        "project_id": [world.project.pk],
        "user_id": [user.pk for user in world.users.values()],
        "username": list(world.users),
    }


@pytest.mark.parametrize(("name", "least"), [("alice", 45), ("ada", 70)])
def test_no_answer_differs_from_the_schema(
    live_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, least: int
) -> None:
    monkeypatch.setattr(StrangerThrottle, "THROTTLE_RATES", {"user": None, "anon": None})
    world = make_world()
    schema = SchemaGenerator().get_schema(request=None, public=True)
    (tmp_path / "schema.json").write_text(json.dumps(schema, default=str))
    (tmp_path / "existing.json").write_text(json.dumps(existing(world)))
    own = {"user_id": world.users[name].pk, "token_id": world.users[name].api_tokens.get().pk}
    (tmp_path / "kept.json").write_text(json.dumps(own))
    command = [sys.executable, "-m", "schemathesis.cli", "run", "schema.json", "--url", live_server.url]
    command += ["--header", f"Authorization: Bearer {world.tokens[name]}", "--checks", CHECKS]
    command += ["--phases", "fuzzing", "--max-examples", str(EXAMPLES), "--seed", "1", "--no-color"]
    command += ["--continue-on-failure"]
    environ = {**os.environ, "SCHEMATHESIS_HOOKS": str(HOOKS)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-9000:] + done.stderr[-2000:]
    generated = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    assert generated and generated[1] == generated[2], done.stdout[-2000:]
    answers = Counter(tuple(json.loads(line)) for line in (tmp_path / "answers.jsonl").read_text().splitlines())
    succeeded = {operation for operation, status in answers if 200 <= status < 400}
    print(f"{name}: {answers.total()} calls; {len(succeeded)} operations succeeded at least once")
    assert len(succeeded) >= least, sorted({operation for operation, _ in answers} - succeeded)
