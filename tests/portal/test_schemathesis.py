"""Schemathesis, a searcher of others for answers that differ from the schema: a bounded run over all operations."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from drf_spectacular.generators import SchemaGenerator

from tests.laws.people import make_world

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.thorough, pytest.mark.timeout(900)]

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def test_no_answer_differs_from_the_schema(live_server: Any, tmp_path: Path) -> None:
    world = make_world()
    schema = SchemaGenerator().get_schema(request=None, public=True)
    (tmp_path / "schema.json").write_text(json.dumps(schema, default=str))
    command = [sys.executable, "-m", "schemathesis.cli", "run", "schema.json", "--url", live_server.url]
    command += ["--header", f"Authorization: Bearer {world.tokens['alice']}", "--checks", CHECKS]
    command += ["--phases", "fuzzing", "--max-examples", "3", "--seed", "1", "--no-color", "--continue-on-failure"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout[-9000:] + done.stderr[-2000:]
    generated = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    assert generated and generated[1] == generated[2] and int(generated[1]) > 250, done.stdout[-2000:]
