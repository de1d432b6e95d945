"""A client that openapi-python-client generates from the schema does what a user does: from a token to the outputs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from drf_spectacular.generators import SchemaGenerator

from portal.jobs.models import Job
from tests.laws.people import LOG, RESULT, World, make_world

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.thorough, pytest.mark.timeout(600)]

CONFIG = "package_name_override: schedulearn_client\npost_hooks: []\n"
WALK = """
import io, sys
from schedulearn_client import AuthenticatedClient, models
from schedulearn_client.api.jobs import jobs_cancel, jobs_events_list, jobs_list, jobs_log, jobs_log_follow
from schedulearn_client.api.jobs import jobs_outputs_download, jobs_outputs_list, jobs_retrieve, jobs_submit, jobs_update
from schedulearn_client.api.me import me_retrieve
from schedulearn_client.api.projects import projects_code_diff, projects_code_download, projects_code_upload, projects_create
from schedulearn_client.api.tokens import tokens_create, tokens_revoke
from schedulearn_client.types import File

url, token, finished = sys.argv[1], sys.argv[2], int(sys.argv[3])
first = AuthenticatedClient(base_url=url, token=token)
issued = tokens_create.sync(client=first, body=models.NewTokenRequest(name="walk", scope=models.TokenScope.WRITE, days=1))
client = AuthenticatedClient(base_url=url, token=issued.token)
assert me_retrieve.sync(client=client).username == "alice"

project = projects_create.sync(client=client, body=models.ProjectRequest(name="Generated"))
assert project.role == "owner"
file = File(payload=io.BytesIO(b"print(1)\\n"), file_name="train.py", mime_type="text/x-python")
code = projects_code_upload.sync(project.id, client=client, body=models.UploadRequest(file=[file]))
assert (code.number, code.is_new, [each.path for each in code.files]) == (1, True, ["train.py"]), code
raw = File(payload=io.BytesIO(b"print(2)\\n"))
code = projects_code_upload.sync(project.id, client=client, body=raw, name="train.py")
assert (code.number, code.guess.entry, code.guess.launcher) == (2, "train.py", "command"), code
(change,) = projects_code_diff.sync(project.id, 2, client=client)
assert (change.path, change.kind, change.added) == ("train.py", "changed", 1)
assert b"print(2)" in projects_code_download.sync(project.id, 2, client=client).payload.read()

asked = models.SubmitRequest(project=project.id, launcher=models.Launcher.COMMAND, entry="python train.py", name="walk")
job = jobs_submit.sync(client=client, body=asked)
assert (job.state, job.entry) == (models.JobState.QUEUED, "python train.py"), job
changed = jobs_update.sync(job.id, client=client, body=models.PatchedEditRequest(priority=2, tags=["generated"]))
assert (changed.priority, changed.tags) == (2, ["generated"])
found = jobs_list.sync(client=client, tags="generated", mine=models.JobsListMine.TRUE, ordering=models.JobsListOrdering.ID_FALLING)
assert [row.id for row in found.results] == [job.id] and found.count == 1
assert {"submitted", "edited"} <= {event.kind for event in jobs_events_list.sync(job.id, client=client).results}
assert jobs_cancel.sync(job.id, client=client).state == models.JobState.CANCELLED
refused = jobs_submit.sync(client=client, body=models.SubmitRequest(project=project.id, entry="", min_gpus=1))
assert refused.error.code == "invalid" and "entry" in refused.error.fields.additional_properties, refused

cursor, text = "", ""
while True:
    update = jobs_log_follow.sync(finished, client=client, cursor=cursor)
    text, cursor = text + "".join(piece.text for piece in update.pieces), update.cursor
    if update.finished:
        break
merged = jobs_log.sync_detailed(finished, client=client)
assert merged.status_code == 200
outputs = jobs_outputs_list.sync(finished, client=client).results
content = jobs_outputs_download.sync(finished, outputs[0].path, client=client).payload.read()
assert jobs_retrieve.sync(10**9, client=client).error.code == "not_found"
tokens_revoke.sync_detailed(issued.id, client=client)
assert me_retrieve.sync(client=client).error.code == "unauthenticated"
print(repr((text.encode(), content)))
"""


def run(*command: str, folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_generated_client_walks_from_a_token_to_the_outputs(live_server: Any, tmp_path: Path) -> None:
    world: World = make_world()
    schema = SchemaGenerator().get_schema(request=None, public=True)
    (tmp_path / "schema.json").write_text(json.dumps(schema, default=str))
    (tmp_path / "config.yaml").write_text(CONFIG)
    generate = ("generate", "--path", "schema.json", "--config", "config.yaml", "--meta", "none", "--fail-on-warning")
    run(sys.executable, "-m", "openapi_python_client", *generate, folder=tmp_path)
    (tmp_path / "walk.py").write_text(WALK)

    finished = world.jobs["SUCCEEDED"].pk
    token = world.tokens["alice"]
    shown = run(sys.executable, "walk.py", live_server.url, token, str(finished), folder=tmp_path)

    assert shown.strip() == repr((2 * LOG, RESULT))
    assert Job.objects.get(name="walk").state == "CANCELLED"
