"""A whole lab for tests: the portal on PostgreSQL and Redis behind TLS, agents on machines of their own.

    with lab(2) as it:
        job = it.submit(code, "python main.py")      as tests/system/product.py does
        it.kill("scheduler"); it.start("scheduler")  web, scheduler, worker, agent:n1, agent:n2, ...

The agents speak HTTPS to the portal's address in the machines' network and trust the authority made for this run and
no other. Each machine's folder ``data`` is what its jobs see as /data (the judge listens there).
"""

import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from runners.environments.preparing import cache_home
from tests.cluster.authority import make_authority
from tests.cluster.machines import DIE_WITH_US, Lan, Machine, Program, cluster, descendants, kill_dead
from tests.cluster.stores import Postgres, Redis, stores
from tests.system.product import JOIN_TOKEN, MAKE_ADMIN, PASSWORD, ROOT, Product, wait_for

SLOTS = 2
ONLY_THESE = """
from portal.environments.models import Environment
Environment.objects.exclude(key__in={keys!r}).update(retired=True)
"""


@dataclass
class Lab(Product):
    """``processes`` are the portal's; agents are in ``agents`` by their machine's name."""

    lan: Lan = None  # type: ignore[assignment]  # always given: fields with defaults come before
    postgres: Postgres = None  # type: ignore[assignment]
    redis: Redis = None  # type: ignore[assignment]
    ca_file: Path = Path()
    cert_file: Path = Path()
    key_file: Path = Path()
    base_image: str = ""
    environments: Sequence[str] = ("python",)
    agents: dict[str, Program] = field(default_factory=dict)
    agent_env: dict[str, dict[str, str]] = field(default_factory=dict)
    """More variables for the agent of a machine, from its next start on."""
    _client: httpx.Client | None = None

    @property
    def url(self) -> str:
        return f"https://{self.lan.address}:{self.port}"

    @property
    def client(self) -> httpx.Client:
        if self._client is None:
            self._client = httpx.Client(verify=self.trust(), timeout=30, trust_env=False)
        return self._client

    def trust(self) -> ssl.SSLContext:
        """In this run's authority and no other."""
        return ssl.create_default_context(cafile=str(self.ca_file))

    # programs

    def start(self, name: str) -> None:
        """Start a process. Several schedulers may run; the part of their names after a colon distinguishes them."""
        kind, _, which = name.partition(":")
        where = f"ssl:{self.port}:privateKey={self.key_file}:certKey={self.cert_file}:interface={self.lan.address}"
        argv = {
            "web": ["-m", "portal.serving", "-e", where],
            "scheduler": ["manage.py", "runscheduler"],
            "worker": ["-m", "celery", "-A", "portal", "worker", "-c", "1", "-B", "-s", str(self.home / "beat")],
        }
        if kind == "agent":
            self.start_agent(self.machine(which))
        else:
            self._spawn(name, argv[kind])

    def _spawn(self, name: str, argv: list[str]) -> None:
        with (self.home / f"{name}.out").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                [*DIE_WITH_US, sys.executable, *argv],
                cwd=ROOT,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def machine(self, name: str) -> Machine:
        return next(machine for machine in self.lan.machines if machine.name == name)

    def start_agent(self, machine: Machine, join_token: str = "") -> None:
        (machine.folder / "data").mkdir(exist_ok=True)
        env = {
            **{name: value for name, value in os.environ.items() if name in ("HOME", "LANG")},
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "SCHEDULEARN_URL": self.url,
            "SCHEDULEARN_CA": str(self.ca_file),
            "SCHEDULEARN_CACHE": str(cache_home()),
            "SCHEDULEARN_BASE_IMAGE": self.base_image,
            "SCHEDULEARN_DATASETS": str(machine.folder / "data"),
            "SCHEDULEARN_CPU_SLOTS": str(SLOTS),
            "AGENT_HOME": str(machine.folder / "agent"),
            "RUNTIME": "docker",
            "NODE_NAME": machine.name,
            "DOCKER_HOST": machine.engine.url,
            **({"SCHEDULEARN_JOIN_TOKEN": join_token} if join_token else {}),
            **self.agent_env.get(machine.name, {}),
        }
        argv = [sys.executable, "-m", "runners.agent"]
        self.agents[machine.name] = machine.spawn(argv, machine.folder / "agent.log", env, cwd=ROOT)

    def kill(self, name: str) -> None:
        if name.startswith("agent:"):
            self.agents.pop(name.removeprefix("agent:")).kill()
            return
        family = descendants(self.processes[name].pid)
        super().kill(name)
        for child in family:  # those of Celery would live on
            kill_dead(child)

    def migrate(self) -> None:
        """Bring the tables up to date, which offers all environments of the release, and retire those not used here."""
        self.manage("migrate", "-v", "0")
        self.shell(ONLY_THESE.format(keys=list(self.environments)))

    def start_all(self) -> None:
        self.migrate()
        output = self.shell(MAKE_ADMIN.format(password=PASSWORD) + JOIN_TOKEN * len(self.lan.machines))
        self.token = re.search(r"TOKEN (\S+)", output).group(1)  # type: ignore[union-attr]
        self.start("web")
        self.start("scheduler")
        self.start("worker")
        wait_for("the portal answers", self.answers, 180)
        for machine, join_token in zip(self.lan.machines, re.findall(r"JOIN (\S+)", output), strict=True):
            self.start_agent(machine, join_token)
        wait_for("all nodes are ready", self.nodes_ready, 600, every=0.5)

    def nodes_ready(self) -> bool:
        """Each has each environment."""
        try:
            nodes = self.get("nodes/")
        except (httpx.HTTPError, AssertionError):
            return False
        ready = [each for node in nodes for each in node["environments"] if each["state"] == "ready"]
        return len(ready) == len(self.lan.machines) * len(self.environments)

    def stop(self) -> None:
        for program in self.agents.values():
            if program.running():
                program.kill()
        self.agents.clear()
        super().stop()
        if self._client is not None:
            self._client.close()

    # the REST API

    def answers(self) -> bool:
        try:
            return self.client.get(f"{self.url}/accounts/sign-in/", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def api(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}", **options.pop("headers", {})}
        return self.client.request(method, f"{self.url}/api/v1/{path}", headers=headers, **options)


@contextmanager
def lab(count: int, environments: Sequence[str] = ("python",), **env: str) -> Iterator[Lab]:
    """Everything started and ready; everything gone afterwards. ``env``: more variables for the portal."""
    with cluster(count, environments) as lan, lab_on(lan, environments, **env) as made:
        yield made


@contextmanager
def lab_on(lan: Lan, environments: Sequence[str] = ("python",), **env: str) -> Iterator[Lab]:
    """The same on machines that are there."""
    with ExitStack() as stack:
        home = lan.folder / "portal"
        home.mkdir(mode=0o755)
        postgres, redis = stack.enter_context(stores())
        ca_file, cert_file, key_file = make_authority(lan.folder, [lan.address])
        made = Lab.make(
            home,
            "docker",
            DATABASE_URL=postgres.url,
            REDIS_URL=redis.url,
            SECRET_KEY="only-for-tests-and-longer-than-thirty-two-characters",
            ALLOWED_HOSTS=lan.address,
            **env,
        )
        assert isinstance(made, Lab)
        made.lan, made.postgres, made.redis = lan, postgres, redis
        made.ca_file, made.cert_file, made.key_file = ca_file, cert_file, key_file
        made.base_image, made.environments = lan.base_image, environments
        made.env.update(SITE_URL=made.url)
        stack.callback(made.stop)
        made.start_all()
        yield made
