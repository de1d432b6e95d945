"""Runs the whole product as real processes in a folder of its own, and talks to it as a script would.

``Product.small(...)`` is what ``make run`` starts; ``Product.lab(...)`` starts web, scheduler, worker and agent one by
one on PostgreSQL and Redis. Each program can be killed and started again by name.
"""

import io
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx

from tests.servers import free_port

ROOT = Path(__file__).resolve().parents[2]
PORTAL_SECRETS = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY")

MAKE_ADMIN = """
from portal.accounts.models import ApiToken, User
user = User.objects.create_superuser("ada", "ada@example.org", "{password}")
print("TOKEN", ApiToken.issue(user, "system test")[1])
"""
JOIN_TOKEN = """
from portal.cluster.services import issue_join_token
print("JOIN", issue_join_token(None, approves=True))
"""
PASSWORD = "correct horse battery staple"
LOG_SHOWN = 4000
"""Characters of each log of a job that did not succeed."""
PLAIN: dict[str, Any] = {"trust_env": False, "verify": False}
"""For plain HTTP on the loopback: reading all authorities for each request would take longer than the request."""


def wait_for(what: str, look: Callable[[], Any], seconds: float = 30.0, every: float = 0.1) -> Any:
    """The first truthy answer; AssertionError with ``what`` when the time is up."""
    until, answer = time.monotonic() + seconds, None
    while time.monotonic() < until:
        if answer := look():
            return answer
        time.sleep(every)
    raise AssertionError(f"{what}: not within {seconds} s (last answer: {answer!r})")


@dataclass
class Product:
    home: Path
    env: dict[str, str]
    port: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    token: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @classmethod
    def make(cls, home: Path, runtime: str, **env: str) -> Self:
        port = free_port()
        return cls(
            home,
            {
                **{name: value for name, value in os.environ.items() if name not in PORTAL_SECRETS},
                "SCHEDULEARN_HOME": str(home),
                "PORT": str(port),
                "SCHEDULEARN_URL": f"http://127.0.0.1:{port}",
                "RUNTIME": runtime,
                "SCHEDULEARN_CPU_SLOTS": "2",
                "PYTHONUNBUFFERED": "1",
                **env,
            },
            port,
        )

    # programs

    def manage(self, *args: str) -> str:
        run = subprocess.run(
            [sys.executable, "manage.py", *args],
            cwd=ROOT,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    def shell(self, code: str) -> str:
        return self.manage("shell", "-v", "0", "-c", code)

    def start(self, name: str) -> None:
        argv = {
            "up": ["manage.py", "up"],
            "web": ["-m", "portal.serving", "-e", f"tcp:{self.port}:interface=127.0.0.1"],
            "scheduler": ["manage.py", "runscheduler"],
            "worker": ["-m", "celery", "-A", "portal", "worker", "-c", "1", "-B", "-s", str(self.home / "beat")],
            "agent": ["-m", "runners.agent"],
        }[name]
        env = {key: value for key, value in self.env.items() if name != "agent" or key not in PORTAL_SECRETS}
        if name == "agent" and not (self.home / "agent" / "node.json").exists():
            env["SCHEDULEARN_JOIN_TOKEN"] = re.search(r"JOIN (\S+)", self.shell(JOIN_TOKEN)).group(1)  # type: ignore[union-attr]
        with (self.home / f"{name}.out").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *argv],
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """kill -9: no clean-up, no farewell."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def output(self, name: str) -> str:
        return (self.home / f"{name}.out").read_text(errors="replace")

    def stop(self) -> None:
        for process in reversed(list(self.processes.values())):
            if process.poll() is None:
                process.send_signal(signal.SIGINT if "up" in self.processes else signal.SIGTERM)
                try:
                    process.wait(40)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self.processes.clear()

    def start_all(self) -> None:
        self.start_portal()
        self.start("agent")

    def start_portal(self) -> None:
        """All programs but the agent."""
        self.manage("migrate", "-v", "0")
        self.token = re.search(r"TOKEN (\S+)", self.shell(MAKE_ADMIN.format(password=PASSWORD))).group(1)  # type: ignore[union-attr]
        self.start("web")
        wait_for("the web process answers", self.answers)
        self.start("scheduler")
        if "REDIS_URL" in self.env:
            self.start("worker")

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/accounts/sign-in/", timeout=5, **PLAIN).status_code == 200
        except httpx.HTTPError:
            return False

    # the REST API, as a script uses it

    def api(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}", **options.pop("headers", {})}
        return httpx.request(method, f"{self.url}/api/v1/{path}", headers=headers, timeout=30, **PLAIN, **options)

    def get(self, path: str) -> Any:
        response = self.api("GET", path)
        assert response.status_code == 200, response.text
        body = response.json()
        return body["results"] if isinstance(body, dict) and "results" in body else body

    def post(self, path: str, **options: Any) -> Any:
        response = self.api("POST", path, **options)
        assert response.status_code in (200, 201, 202), response.text
        return response.json()

    def upload(self, name: str, **files: str) -> dict[str, int]:
        """A new project with these Python files as its code: what a submit needs to name them."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as zipped:
            for stem, text in files.items():
                zipped.writestr(f"{stem}.py", text)
        project = self.post("projects/", json={"name": name})["id"]
        code = self.post(f"projects/{project}/code/", files={"file": (f"{name}.zip", buffer.getvalue())})["number"]
        return {"project": project, "code": code}

    def submit(self, code: dict[str, int], command: str, **spec: Any) -> int:
        """Submit a plain command on one GPU; fields of ``spec`` take precedence."""
        plain = {
            "launcher": "command",
            "environment": "python",
            "min_gpus": 1,
            "max_gpus": 1,
            "time_limit_seconds": 600,
        }
        return int(self.post("jobs/", json={**plain, **code, "entry": command, **spec})["id"])

    def log(self, job: int, label: str = "rank 0") -> bytes:
        """The stored bytes of one stream; nothing while the web process is away."""
        try:
            streams = self.get(f"jobs/{job}/streams/")
            number = next((each["id"] for each in streams if each["label"] == label), None)
            answer = self.api("GET", f"jobs/{job}/log/", params={"stream": number}) if number else None
        except (httpx.HTTPError, AssertionError):
            return b""
        return answer.content if answer is not None and answer.status_code in (200, 206) else b""

    def output_file(self, job: int, path: str) -> bytes:
        answer = self.api("GET", f"jobs/{job}/outputs/{path}")
        return answer.content if answer.status_code == 200 else b""

    def wait_for_environment(self, key: str, seconds: float = 900) -> None:
        def ready() -> bool:
            try:
                nodes = self.get("nodes/")
            except (httpx.HTTPError, AssertionError):
                return False
            states = [each for node in nodes for each in node["environments"]]
            return any(each["key"] == key and each["state"] == "ready" for each in states)

        wait_for(f"environment {key} is ready", ready, seconds, every=1.0)

    def job_state(self, job: int) -> str:
        try:
            return str(self.get(f"jobs/{job}/")["state"])
        except (httpx.HTTPError, AssertionError):
            return ""  # the web process is away just now

    def wait_for_job(self, job: int, *states: str, seconds: float = 120) -> str:
        return str(
            wait_for(f"job {job} is {states}", lambda: (state := self.job_state(job)) in states and state, seconds)
        )

    def succeeds(self, job: int, seconds: float = 120) -> None:
        """Waits for the job's end. AssertionError, with its cause and how its logs end, where it is another one."""
        state = self.wait_for_job(job, "SUCCEEDED", "FAILED", "CANCELLED", seconds=seconds)
        assert state == "SUCCEEDED", self.why(job)

    def why(self, job: int) -> str:
        """The state and cause of a job that has ended, and how its logs end."""
        time.sleep(2)  # for the last lines of its logs
        known = self.get(f"jobs/{job}/")
        lines = [f"job {job} is {known['state']}: {known['cause']}"]
        for stream in self.get(f"jobs/{job}/streams/"):
            log = self.api("GET", f"jobs/{job}/log/", params={"stream": stream["id"]}).text
            lines.append(f"--- {stream['label']}\n{log[-LOG_SHOWN:]}")
        return "\n".join(lines)


@contextmanager
def running(product: Product) -> Iterator[Product]:
    try:
        yield product
    finally:
        product.stop()
