"""A process in a container reaches nothing but its own ring (THREAT_MODEL.md, "Who reaches whom")."""

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.cluster.lab import SLOTS, Lab
from tests.cluster.machines import Machine
from tests.cluster.reach import (
    DOCKER,
    ECHO,
    HTTP,
    HTTPS,
    METADATA,
    OUTSIDE,
    RANK,
    SSH,
    TALK,
    Inside,
    Target,
    ask,
    ask_machine,
    containers_of,
    drawn,
    inside,
    listen,
    world_outside,
)
from tests.cluster.ring_run import ENVIRONMENT
from tests.system.product import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PEOPLE = """
from portal.accounts.models import ApiToken, User
for name in ("alice", "bob", "carol", "dave"):
    user = User.objects.create_user(name, f"{name}@example.org", "correct horse battery staple")
    print("TOKEN", ApiToken.issue(user, "reachability")[1])
"""
MORE_SLOTS = 3
"""Of each machine: two rings over both, and one more job."""


@pytest.fixture
def it(ring_lab: Lab) -> Iterator[Lab]:
    offer(ring_lab, MORE_SLOTS)
    try:
        yield ring_lab
    finally:
        for job in ring_lab.get("jobs/?state=RUNNING"):
            ring_lab.post(f"jobs/{job['id']}/cancel/")
            ring_lab.wait_for_job(job["id"], "CANCELLED", seconds=60)
        offer(ring_lab, SLOTS)


def offer(it: Lab, slots: int) -> None:
    """Restart the agents with so many slots on each machine."""
    for machine in it.lan.machines:
        it.agent_env.setdefault(machine.name, {})["SCHEDULEARN_CPU_SLOTS"] = str(slots)
        it.kill(f"agent:{machine.name}")
        it.start(f"agent:{machine.name}")
    wait_for(
        f"{slots} slots on each machine",
        lambda: all(node["online"] and len(node["gpus"]) == slots for node in it.get("nodes/")),
        60,
    )
    wait_for("all nodes are ready", it.nodes_ready, 60, every=0.5)


class Jobs:
    """One of each of four people: two rings over both machines, a ring on one, and a command."""

    def __init__(self, it: Lab) -> None:
        self.it = it
        self.one, self.two = it.lan.machines
        self.admin = it.token
        self.tokens = re.findall(r"TOKEN (\S+)", it.shell(PEOPLE))
        fill = it.upload("fill", main="import time; time.sleep(900)")
        self._only(self.one)
        first = [self._fill(fill, MORE_SLOTS - 1)]
        self._only(self.two)
        first.append(self._fill(fill, MORE_SLOTS - 1))
        self._only(self.one, self.two)
        self.alices = self._ring("alice", 2)
        second = self._exchange(first, fill)
        self.bobs = self._ring("bob", 2)
        self._cancel(second)
        self._only(self.one)
        self.carols = self._ring("carol", 1)
        self._only(self.two)
        self.daves = self._as("dave", "python main.py", launcher="command")
        self._only(self.one, self.two)

    def _as(self, name: str, entry: str, **spec: object) -> int:
        """Submits as one of the people, and waits until it listens."""
        it = self.it
        it.token = self.tokens[("alice", "bob", "carol", "dave").index(name)]
        try:
            job = it.submit(it.upload(f"of {name}", main=RANK), entry, environment=ENVIRONMENT, **spec)
        finally:
            it.token = self.admin
        wait_for(f"the job of {name} listens", lambda: b"listening" in it.log(job), 120, every=0.5)
        return job

    def _ring(self, name: str, gpus: int) -> int:
        return self._as(name, "main.py", launcher="horovod", elastic=False, min_gpus=gpus, max_gpus=gpus)

    def _fill(self, code: dict[str, int], gpus: int) -> int:
        job = self.it.submit(code, "python main.py", environment=ENVIRONMENT, min_gpus=gpus, max_gpus=gpus)
        self.it.wait_for_job(job, "RUNNING", seconds=60)
        return job

    def _exchange(self, jobs: list[int], code: dict[str, int]) -> list[int]:
        """Takes one GPU less on each machine than these did."""
        self._cancel(jobs)
        found = []
        for machine in (self.one, self.two):
            self._only(machine)
            found.append(self._fill(code, MORE_SLOTS - 2))
        self._only(self.one, self.two)
        return found

    def _cancel(self, jobs: list[int]) -> None:
        for job in jobs:
            self.it.post(f"jobs/{job}/cancel/")
            self.it.wait_for_job(job, "CANCELLED", seconds=60)

    def _only(self, *machines: Machine) -> None:
        """These take new work."""
        for node in self.it.get("nodes/"):
            takes = any(machine.name == node["name"] for machine in machines)
            self.it.post(f"nodes/{node['id']}/{'resume' if takes else 'cordon'}/")

    def containers(self) -> Iterator[Inside]:
        names = {self.alices: "alice", self.bobs: "bob", self.carols: "carol", self.daves: "dave"}
        for machine in (self.one, self.two):
            for job, name in names.items():
                for found in containers_of(machine, job):
                    driver = found["Config"]["Hostname"] == "driver"
                    what = "driver" if driver else "rank"
                    port = self._ring_port(job) if driver else TALK
                    yield inside(machine, found, f"{name}'s {what} on {machine.name}", port)

    def _ring_port(self, job: int) -> int:
        code = "from portal.jobs.models import Container as C; print('PORT', C.objects.get({}).spec['ring']['port'])"
        output = self.it.shell(code.format(f"attempt__job={job}, role='driver'"))
        return int(re.search(r"PORT (\d+)", output).group(1))  # type: ignore[union-attr]


def services(it: Lab) -> list[Target]:
    """What is not a job's."""
    found = []
    for machine in it.lan.machines:
        found += [
            Target(f"{machine.name}: ssh", "tcp", machine.address, SSH),
            Target(f"{machine.name}: Docker", "tcp", machine.address, DOCKER),
            Target(f"{machine.name}: UDP", "udp", machine.address, ECHO),
        ]
    return [
        *found,
        Target("portal", "tcp", it.lan.address, it.port),
        Target("PostgreSQL", "tcp", it.lan.address, it.postgres.port),
        Target("Redis", "tcp", it.lan.address, it.redis.port),
        Target("metadata", "tcp", METADATA, HTTP),
        Target("Internet", "tcp", OUTSIDE, HTTPS),
    ]


def bridges(all_of_them: list[Inside]) -> list[Target]:
    """The machines by their addresses in jobs' networks."""
    gateways = {each.gateway: each.name for each in all_of_them if each.gateway}
    return [
        Target(f"the bridge of {name}: {what}", kind, gateway, port)
        for gateway, name in gateways.items()
        for what, kind, port in (("ssh", "tcp", SSH), ("UDP", "udp", ECHO))
    ]


def owner(name: str) -> str:
    return name.partition("'")[0]


def test_a_container_reaches_its_own_ring_and_nothing_else(it: Lab) -> None:
    jobs = Jobs(it)
    with ExitStack() as stack:
        here = f"{it.lan.address}:{it.postgres.port}", f"{it.lan.address}:{it.redis.port}"  # as if open to the lab
        listening = [*world_outside(it.lan), listen((), *here)]
        for machine in it.lan.machines:
            listening.append(listen(machine.enter(), f"0.0.0.0:{SSH}", f"0.0.0.0:{DOCKER}", f"0.0.0.0:u{ECHO}"))
        for program in listening:
            stack.callback(program.wait, 30)
            stack.callback(program.kill)
        containers = list(jobs.containers())
        assert len(containers) == 9, [each.name for each in containers]  # 3 drivers; 2, 2, 1 and 1 hosts
        targets = [Target(each.name, "tcp", each.address, each.port) for each in containers if each.address]
        targets += bridges(containers)
        assert len(bridges(containers)) >= 6, "each ring has a bridge with an address"
        others = services(it)
        table = {each.name: ask(each, [*targets, *others]) for each in containers}
        from_nodes = {machine.name: ask_machine(machine, others) for machine in it.lan.machines}
    print(drawn({**table, **from_nodes}))
    assert all(all(row.values()) for row in from_nodes.values()), "what is unreachable even from nodes proves nothing"
    wrong = [
        f"{asker} {'reaches' if reached else 'does not reach'} {asked}"
        for asker, row in table.items()
        for asked, reached in row.items()
        if reached != (asked in {target.name for target in targets} and owner(asked) == owner(asker))
    ]
    assert not wrong, "\n".join(wrong)
