"""Housekeeping deletes what is old and unneeded, and nothing else."""

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from portal.jobs.models import IdempotencyKey
from portal.scheduler.tasks import KEY_LIFE, remove_stale_files, tidy
from tests.laws.people import make_world

pytestmark = pytest.mark.django_db


def aged(path: Path, days: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    then = time.time() - days * 24 * 3600
    os.utime(path, (then, then))
    return path


def test_only_files_that_came_in_long_ago_and_never_got_a_name_go(settings: Any, tmp_path: Path) -> None:
    settings.HOME = tmp_path
    stale = aged(tmp_path / "outputs" / "7" / ".incoming-a", 2)
    fresh = aged(tmp_path / "code" / ".incoming-b", 0.1)
    named = aged(tmp_path / "code" / ("0" * 64 + ".tar"), 400)
    assert remove_stale_files() == 1
    assert (stale.exists(), fresh.exists(), named.exists()) == (False, True, True)
    assert remove_stale_files() == 0


def test_old_keys_of_submits_are_forgotten_and_new_ones_kept(settings: Any, tmp_path: Path) -> None:
    settings.HOME = tmp_path
    world = make_world()
    for key, age in (("old", KEY_LIFE + timedelta(hours=1)), ("new", timedelta(hours=1))):
        IdempotencyKey.objects.create(
            user=world.alice, key=key, body_sha256="0" * 64, job=world.running, created_at=timezone.now() - age
        )
    tidy()
    assert list(IdempotencyKey.objects.values_list("key", flat=True)) == ["new"]
