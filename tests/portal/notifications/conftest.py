"""What the tests of notifications share: Alice, her project and a running job."""

from typing import Any

import pytest
from django.core.cache import cache

from portal.accounts.models import User
from portal.jobs.models import Job
from portal.projects.models import Project
from tests.portal import jobs_world as world
from tests.portal.outbox import Receiver


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    cache.clear()
    settings.SITE_URL = "https://lab.example.org"


@pytest.fixture
def alice() -> User:
    return world.make_user("alice", email="alice@example.org")


@pytest.fixture
def project(alice: User) -> Project:
    return world.make_project(alice)


@pytest.fixture
def job(project: Project) -> Job:
    """A job that runs on one GPU."""
    row = world.make_job(project)
    node = world.make_node()
    attempt = world.place(row, list(node.gpus.all()[:1]))
    world.run(attempt.containers.get())
    row.refresh_from_db()
    return row


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()
