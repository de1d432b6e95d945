"""Just enough of an agent to hold a conversation with the portal."""

import asyncio
import json
from typing import Any

import pytest
from django.test import Client

from portal.agents import views
from portal.cluster import services as cluster
from portal.cluster.models import Gpu, Node
from portal.jobs.models import Container, Job
from tests.portal.jobs_world import make_job, make_project, make_user, place


class Agent:
    """Just enough of an agent to hold a conversation."""

    def __init__(self, name: str = "node", approve: bool = True) -> None:
        self.http = Client(enforce_csrf_checks=True)
        self.token = ""
        joined = self.post(
            "join",
            {
                "join_token": cluster.issue_join_token(None, approves=approve),
                "name": name,
                "runtime": "fake",
                "facts": {"cpus": 2},
            },
        )
        assert joined.status_code == 201
        self.node = Node.objects.get(pk=joined.json()["node"])
        self.token = joined.json()["token"]
        self.report: dict[str, Any] = {
            "boot": "b1",
            "full_pass": True,
            "runtime": "fake",
            "facts": {},
            "gpus": [
                {"uuid": f"{name}-{i}", "index": i, "kind": "cpu", "model": "CPU slot", "healthy": True}
                for i in range(2)
            ],
            "containers": [],
        }

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def post(self, path: str, body: Any, **options: Any) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.http.post(
            f"/agent/v1/{path}", data, content_type="application/json", headers={**self.headers, **options}
        )

    def sync(self, *containers: dict[str, Any]) -> dict[str, Any]:
        answer = self.post("sync", {**self.report, "containers": list(containers)})
        assert answer.status_code == 200, answer.content
        return answer.json()


class Lookups:
    """Counts how often the portal has looked up the desired state for a waiting agent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        seen = views._desired_digest

        def counted(held: str) -> str:
            found = seen(held)
            self.count += 1
            return found

        monkeypatch.setattr(views, "_desired_digest", counted)

    async def reach(self, count: int) -> None:
        async with asyncio.timeout(30):
            while self.count < count:
                await asyncio.sleep(0.01)


def about(part: Container, state: str, **fields: Any) -> dict[str, Any]:
    return {"name": part.name, "epoch": part.attempt.number, "state": state, **fields}


def job_on(agent: Agent, **fields: Any) -> Job:
    job = make_job(make_project(make_user(f"user-{agent.node.pk}")), **fields)
    place(job, list(Gpu.objects.filter(node=agent.node)), driver=True)
    return job
