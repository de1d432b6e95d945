"""A portal of real processes with pretended nodes, a load on it, and the record of what was seen."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.outside.late import late_by
from tests.outside.load import Load, Person, Scheduler
from tests.outside.nodes import GPUS
from tests.outside.poller import Poller, attempt_of, event_of, job_of
from tests.outside.record import FINISHED, Record
from tests.outside.rest import Journal, Rest
from tests.system.product import ROOT, Product, running, wait_for

NODES = 5
NAMES = ("alice", "bob", "carol")
PREMIUM = frozenset({"alice"})
GROUPS = {"vision": frozenset({"bob", "carol"})}
SETTLE_SECONDS = 240.0
"""Within this after the load all jobs have ended: what waits then has at most a minute to run, a few times."""
MAKE_PEOPLE = """
import json
from django.contrib.auth.models import Group
from portal.accounts.models import ApiToken, User
groups, tokens = {groups!r}, {{}}
for name in {names!r}:
    user = User.objects.create_user(name, f"{{name}}@example.org", None)
    tokens[name] = ApiToken.issue(user, "outside")[1]
for name, members in groups.items():
    Group.objects.create(name=name).user_set.set(User.objects.filter(username__in=members))
print("PEOPLE", json.dumps(tokens))
"""


@dataclass
class Lab:
    product: Product
    admin: Rest
    people: list[Person]
    journal: Journal

    def client(self) -> Rest:
        """One more for an admin, for another thread."""
        return Rest(self.product.url, self.product.token, self.journal)


@contextmanager
def lab(
    nodes: int = NODES, product: type[Product] = Product, home: Path | None = None, nodes_late_by: float = 0.0
) -> Iterator[Lab]:
    """Its processes end with the context, and so does its folder unless a ``home`` is given.

    ``nodes_late_by``: seconds by which nodes get each answer late.
    """
    with tempfile.TemporaryDirectory(prefix="sl-outside-") if home is None else nullcontext(str(home)) as folder:
        made = product.make(Path(folder), "fake")
        with running(made), late_by(nodes_late_by, made.port) if nodes_late_by else nullcontext(made.url) as url:
            made.start_portal()
            journal = Journal()
            admin = Rest(made.url, made.token, journal)
            _start_nodes(made, admin, nodes, url)
            yield Lab(made, admin, _make_people(made, admin, journal), journal)


def _start_nodes(product: Product, admin: Rest, count: int, url: str) -> None:
    tokens = [f"n{number}={admin.call('POST', 'nodes/join-token/')['token']}" for number in range(1, count + 1)]
    with (product.home / "nodes.out").open("ab") as out:
        product.processes["nodes"] = subprocess.Popen(
            [sys.executable, "-m", "tests.outside.nodes", url, str(product.home / "nodes"), *tokens],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    wait_for("all nodes have joined", lambda: len(admin.get("nodes/")) == count, 60, every=0.5)
    for row in admin.get("nodes/"):
        admin.call("POST", f"nodes/{row['id']}/approve/")

    def are_ready() -> bool:
        rows = admin.get("nodes/")
        return all(row["online"] and len(row["gpus"]) == GPUS and _has_environment(row) for row in rows)

    wait_for("all nodes are ready", are_ready, 60, every=0.5)


def _has_environment(node: Mapping[str, Any]) -> bool:
    return any(each["key"] == "pytorch-horovod" and each["state"] == "ready" for each in node["environments"])


def _make_people(product: Product, admin: Rest, journal: Journal) -> list[Person]:
    groups = {name: sorted(members) for name, members in GROUPS.items()}
    printed = product.shell(MAKE_PEOPLE.format(groups=groups, names=NAMES))
    tokens = json.loads(printed.rpartition("PEOPLE ")[2])
    people = []
    for name in NAMES:
        rest = Rest(product.url, tokens[name], journal)
        project = rest.call("POST", "projects/", json={"name": f"work of {name}"})["id"]
        raw = {"content": b"print('train')\n", "headers": {"Content-Type": "application/octet-stream"}}
        code = rest.call("POST", f"projects/{project}/code/?name=train.py", **raw)["number"]
        if name in PREMIUM:
            admin.call("PUT", f"limits/users/{name}/", json={"premium": True})
        people.append(Person(name, rest, {"project": project, "code": code}, name in PREMIUM))
    return people


def run(seed: int, seconds: float, nodes: int = NODES, home: Path | None = None) -> Record:
    """Return the record of a load for so long, and of how everything then came to its end."""
    with lab(nodes, home=home) as made:
        poller = Poller(made.client())
        scheduler = Scheduler(lambda: made.product.kill("scheduler"), lambda: made.product.start("scheduler"))
        load = Load(
            seed, made.admin, made.people, GROUPS, scheduler, lambda: poller.polls[-1] if poller.polls else None
        )
        poller.start()
        try:
            load.run(seconds)
            load.settle()
            _wait_for_the_end(made.admin, poller)
        finally:
            poller.end()
        return _record(seed, made, load, poller)


def _wait_for_the_end(admin: Rest, poller: Poller) -> None:
    until = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < until and poller.is_alive():
        if poller.polls and not poller.polls[-1].jobs:
            time.sleep(2.0)  # for the last GPUs to be given back, and a poll of that
            return
        time.sleep(0.5)


def _record(seed: int, made: Lab, load: Load, poller: Poller) -> Record:
    """With what is only asked for at the end."""
    if poller.error is not None:
        raise poller.error
    admin = made.admin
    poller.rest = admin  # its thread has ended
    poller.read_timeline()
    jobs = {id: job_of(admin.get(f"jobs/{id}/")) for id in sorted(load.asked)}
    usage, usage_at = admin.get("usage/", by="user", page_size=200), time.time()
    return Record(
        seed=seed,
        polls=poller.polls,
        acts=load.acts,
        jobs=jobs,
        asked=load.asked,
        events={id: [event_of(row) for row in admin.pages(f"jobs/{id}/events/")] for id in jobs},
        attempts={id: [attempt_of(row) for row in admin.pages(f"jobs/{id}/attempts/")] for id in jobs},
        spans=sorted(poller.spans.values(), key=lambda span: span.since),
        steps=poller.steps,
        usage={row["name"]: float(row["allocated_gpu_seconds"]) for row in usage["results"]},
        usage_at=usage_at,
        usage_total=float(usage["total"]["allocated_gpu_seconds"]),
        groups={f"group {name}": members for name, members in GROUPS.items()},
        node_gpus=GPUS,
        failures=tuple(made.journal.failures),
        requests=made.journal.requests,
    )


def unfinished(record: Record) -> list[int]:
    return [id for id, job in record.jobs.items() if job.state not in FINISHED]
