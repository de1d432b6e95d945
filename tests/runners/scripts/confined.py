"""An agent's process runtime by itself, so that it can run as any user: jobs as JSON on stdin, their ends as JSON on stdout.

``python confined.py HOME PYTHON`` keeps its files beneath HOME/agent and runs jobs with PYTHON.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from runners.agent import caches
from runners.host.node_files import NodeFiles
from runners.runtime import Folders
from runners.runtimes.confinement_check import find_confinement
from runners.runtimes.process import ProcessRuntime
from runners.spec import CollectiveGroup, Resources, RunSpec

PATIENCE_SECONDS = 60


def run(runtime: ProcessRuntime, agent: Path, number: int, job: dict[str, Any]) -> dict[str, Any]:
    home = agent / "containers" / str(number)
    places = {name: home / name for name in ("workspace", "control", "scribe", "outputs", "checkpoints")}
    for place in places.values():
        place.mkdir(parents=True)
    for name, content in job.get("files", {}).items():
        (places["workspace"] / name).write_text(content)
        (places["workspace"] / name).chmod(0o644)
    spec = RunSpec(
        name=f"sl-{number}-a1-0",
        job=number,
        attempt=number,
        number=1,
        role="host",
        hostname="h0",
        environment="python",
        code_sha256="0" * 64,
        launcher="command",
        command=tuple(job["command"]),
        slots=1,
        collective=CollectiveGroup("127.0.0.1", 1, "secret", 1, 1) if job.get("peers") else None,
        resources=Resources(disk_mib=64),
        grace_seconds=3,
        cache=job.get("cache", ""),
    )
    files = NodeFiles(agent)
    caches.prepare(files, spec)
    (places["control"] / "job.json").write_text(json.dumps(spec.to_json()))
    runtime.create(
        spec, replace(Folders(*places.values()), data=agent.parent / "datasets", cache=files.folders(spec).cache)
    )
    runtime.start(spec.name)
    log, end = places["scribe"] / "log" / "0.log", time.monotonic() + PATIENCE_SECONDS
    while runtime.list()[0].state != "exited" and time.monotonic() < end:
        if job.get("stop_at") and log.exists() and job["stop_at"] in log.read_text():
            next_agent = ProcessRuntime("installation", "node", runtime.state, lambda key: None, find_confinement)
            (next_agent if job.get("by_next_agent") else runtime).stop(spec.name, 10)
        time.sleep(0.05)
    seen = runtime.list()[0]
    exit_file = places["scribe"] / "exit.json"
    result = {
        "state": seen.state,
        "code": seen.exit_code,
        "exit": json.loads(exit_file.read_text()) if exit_file.exists() else None,
        "log": log.read_text() if log.exists() else "",
        "printed": runtime.logs(spec.name, 10_000).decode(errors="replace"),
        "written": {str(path.relative_to(home)): path.read_text() for path in sorted(home.glob("*puts/*"))},
    }
    runtime.remove(spec.name)
    return result


def main(home: Path, python: str) -> None:
    agent = home / "agent"
    runtime = ProcessRuntime("installation", "node", agent / "processes", lambda key: python, find_confinement)
    results = [run(runtime, agent, number, job) for number, job in enumerate(json.load(sys.stdin), start=1)]
    print(json.dumps({"confinement": runtime.confinement.kind.text, "problems": len(runtime.check()), "jobs": results}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
