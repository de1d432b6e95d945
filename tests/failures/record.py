"""Runs failing programs as jobs of a small lab on this machine, and records how they ended.

python -m tests.failures.record blind|known [--only 003 segfault]

Failures that cannot be run here (``"real": false``) have a written log instead.
"""

import argparse
import json
import re
import sys
import tempfile
import time
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

from tests.failures import cases
from tests.failures.cases import Case
from tests.failures.score import report
from tests.system.product import Product, running

ENVIRONMENT = "pytorch-horovod"
SLOTS = 3
ROOT = Path(__file__).resolve().parents[2]
PREPARE_SECONDS, JOB_SECONDS = 1200, 3600
DUMP = """
import json
from portal.jobs import logs
from portal.jobs.models import Job

def ended(job):
    last = job.attempts.order_by("-number").first()
    parts = list(last.containers.all()) if last else []
    return {
        "state": job.state, "outcome": last.outcome if last else "", "stop_reason": last.stop_reason if last else "",
        "containers": [
            {"role": part.role, "index": part.index, "exit_code": part.exit_code, "exit_reason": part.exit_reason,
             "detail": part.detail} for part in parts
        ],
        "streams": [
            {"name": stream.name, "label": logs.label_of(stream), "container": stream.container.index,
             "text": logs.read(stream, 0, 10**7).decode(errors="replace"), "marks": logs.read_marks(stream)}
            for stream in logs.streams_of(last)
        ] if last else [],
    }

print("DUMP", json.dumps({job.pk: ended(job) for job in Job.objects.all()}))
"""
PLACES = (
    (re.compile(re.escape(str(ROOT).encode()) + rb"(?=/)"), b"/schedulearn"),
    (re.compile(rb"/[^\s\"':]*/containers/[^/\s\"':]+/workspace"), b"/workspace"),
    (re.compile(rb"/[^\s\"':]*/envs/[^/\s\"':]+"), b"/env"),
    (re.compile(rb"/[^\s\"':]*/versions/3[.\d]+/lib"), b"/usr/lib"),
    (re.compile(rb"/[^\s\"':]*/wheels/\.horovod-[^/]+"), b"/build"),
)
"""Folders of this machine, and what stands for them in a recording."""


def archive(case: Case) -> bytes:
    """The files of a case as a zip, with their modes."""
    files = dict(case.files)
    if len({path.partition("/")[0] for path in files}) == 1:  # the portal takes off a folder around everything
        files["NOTES.md"] = (b"", False)
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        for path, (data, executable) in sorted(files.items()):
            info = zipfile.ZipInfo(path)
            info.external_attr = (0o100755 if executable else 0o100644) << 16
            zipped.writestr(info, data)
    return buffer.getvalue()


def submit(it: Product, case: Case) -> int | str:
    """Return the job, or why the portal refused it."""
    project = it.post("projects/", json={"name": case.name})["id"]
    code = it.api("POST", f"projects/{project}/code/", files={"file": (f"{case.name}.zip", archive(case))})
    if code.status_code != 201:
        return str(code.json()["error"])
    facts = case.facts
    entry, *arguments = [facts["entry"]] if facts["launcher"] == "command" else facts["entry"].split(" ")
    if entry == "-m":
        entry, arguments = f"-m {arguments[0]}", arguments[1:]
    asked = {
        "project": project,
        "code": code.json()["number"],
        "launcher": facts["launcher"],
        "entry": entry,
        "arguments": arguments,
        "environment": ENVIRONMENT,
        "min_gpus": facts["ranks"],
        "max_gpus": facts["ranks"],
        "time_limit_seconds": 300,
        "elastic": False,
    }
    answer = it.api("POST", "jobs/", json=asked)
    return int(answer.json()["id"]) if answer.status_code == 201 else str(answer.json()["error"])


def record(chosen: list[Case]) -> None:
    """Run the cases, all queued at once, and write what came of each."""
    with tempfile.TemporaryDirectory(prefix="sl-failures-") as home:
        it = Product.make(Path(home), "process", SCHEDULEARN_CPU_SLOTS=str(SLOTS))
        with running(it):
            it.start_all()
            it.wait_for_environment(ENVIRONMENT, PREPARE_SECONDS)
            jobs = {case.name: submit(it, case) for case in chosen}
            _wait(it, {job for job in jobs.values() if isinstance(job, int)})
            ended = json.loads(it.shell(DUMP).partition("DUMP ")[2])
            for case in chosen:
                job = jobs[case.name]
                found = _without_places(ended[str(job)]) if isinstance(job, int) else {"refused": job}
                case.recording.parent.mkdir(exist_ok=True)
                case.recording.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def _wait(it: Product, left: set[int]) -> None:
    until = time.monotonic() + JOB_SECONDS
    while left and time.monotonic() < until:
        left -= {job for job in left if it.job_state(job) in ("SUCCEEDED", "FAILED", "CANCELLED")}
        sys.stdout.write(f"{len(left)} jobs left\n")
        sys.stdout.flush()
        time.sleep(5)
    time.sleep(5)  # for the last lines of logs


def _without_places(recorded: dict[str, Any]) -> dict[str, Any]:
    """Replace the folders of this machine, also in the time marks, which count bytes."""
    for stream in recorded["streams"]:
        data, marks = stream["text"].encode(), stream["marks"]
        for regex, stands_for in PLACES:
            shifts, pieces, at = [], [], 0
            for found in regex.finditer(data):
                pieces += [data[at : found.start()], stands_for]
                shifts.append((found.end(), found.end() - found.start() - len(stands_for)))
                at = found.end()
            data = b"".join([*pieces, data[at:]])
            marks = [[offset - sum(by for end, by in shifts if end <= offset), ms] for offset, ms in marks]
        stream["text"], stream["marks"] = data.decode(), marks
    return recorded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", choices=["blind", "known"])
    parser.add_argument("--only", nargs="*", default=[], help="beginnings of names")
    asked = parser.parse_args()
    every = list(cases.blind() if asked.corpus == "blind" else cases.known())
    chosen = [case for case in every if not asked.only or case.name.startswith(tuple(asked.only))]
    record([case for case in chosen if case.facts["real"]])
    sys.stdout.write(report(chosen))


if __name__ == "__main__":
    main()
