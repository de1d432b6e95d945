"""What is kept of fetches."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from portal.projects.git import collecting, fetches, files
from portal.projects.git.models import GitFetch, VersionCommit
from tests.portal import git_world as made
from tests.portal.jobs_world import make_project, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


def test_old_fetches_go_and_commits_stay(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.HOME = tmp_path
    monkeypatch.setattr(collecting, "KEPT", 2)
    alice = make_user("alice")
    project, other = make_project(alice), make_project(alice, "other")
    node = made.make_node()
    for each in (project, other):
        made.bind(alice, each)
    first, *rest = (made.fetch_commit(alice, project, node, f"{number}a" * 20) for number in range(4))
    old = made.fetch_commit(alice, other, node)
    GitFetch.objects.filter(pk=old.pk).update(requested_at=timezone.now() - timedelta(days=400))
    waits = fetches.request(alice, other)
    GitFetch.objects.filter(pk=waits.pk).update(requested_at=timezone.now() - timedelta(days=400))
    for fetch in (first, rest[-1]):
        files.log_path(fetch).write_text("log")
    assert collecting.delete_old() == 3
    assert set(GitFetch.objects.all()) == {*rest[1:], waits}
    assert not files.log_path(first).exists() and files.log_path(rest[-1]).exists()
    assert VersionCommit.objects.count() == 5


def test_archives_that_no_open_fetch_has_go(settings: Any, tmp_path: Path) -> None:
    settings.HOME = tmp_path
    alice = make_user("alice")
    project = make_project(alice)
    made.bind(alice, project)
    fetches.request(alice, project)
    fetch = made.start(made.make_node())
    fetches.append_code(fetch, 0, [b"half of it"])
    left = [f".incoming-{fetch.pk}", f".incoming-{fetch.pk}-9", f".incoming-{fetch.pk + 1}-1"]
    for name in left:
        (files.folder() / name).write_bytes(b"x")
    collecting.delete_old()
    assert list(files.archives()) == [files.archive_path(fetch)]
    GitFetch.objects.update(state=GitFetch.State.DONE)
    collecting.delete_old()
    assert not files.archives()
