"""Housekeeping: deletes what is no longer needed once an hour; looks for idle GPUs and silent jobs once a minute."""

import time
from datetime import timedelta

from celery import shared_task
from django.conf import settings
from django.core.management import call_command
from django.utils import timezone

from portal import wake
from portal.environments import collecting
from portal.jobs import checkpoints, environment_use, silence_check, trash
from portal.jobs.models import IdempotencyKey
from portal.jobs.retention import services as retention
from portal.monitoring import idle_check
from portal.projects.git import collecting as git_collecting
from portal.scheduler import recording
from portal.storage import collecting as storage_collecting

KEY_LIFE = timedelta(days=7)
"""A script that repeats a submission does so within minutes."""
UNUSED_CHANNEL_SECONDS = 24 * 3600
INCOMING_LIFE_SECONDS = 24 * 3600
"""A file that is still incomplete after a day was left by a killed process."""


@shared_task(ignore_result=True)
def idle_gpus() -> None:
    idle_check.sweep()


@shared_task(ignore_result=True)
def silent_jobs() -> None:
    silence_check.sweep()


@shared_task(ignore_result=True)
def tidy() -> None:
    """Delete what is no longer needed. May be repeated and may run twice at once."""
    IdempotencyKey.objects.filter(created_at__lt=timezone.now() - KEY_LIFE).delete()
    call_command("clearsessions", verbosity=0)
    remove_stale_files()
    recording.delete_old()
    retention.carry_out_all()
    retention.remove_checkpoints_without_rule()
    trash.erase_due()
    retention.remove_leftovers()
    checkpoints.delete_orphan_pieces()
    use = environment_use.current_use()
    collecting.delete_unused_layers(use.last, use.busy, use.layers)
    collecting.delete_old_logs()
    git_collecting.delete_old()
    storage_collecting.delete_old()
    wake.delete_unused(UNUSED_CHANNEL_SECONDS)


for task in (idle_gpus, silent_jobs, tidy):
    shared_task(task.run, name=f"portal.control.tasks.{task.__name__}", ignore_result=True)
"""The names in the previous release, whose scheduler may have queued tasks."""


def remove_stale_files() -> int:
    """Delete the files of uploads, outputs, layers and commits that never got their name; return how many."""
    before, removed = time.time() - INCOMING_LIFE_SECONDS, 0
    for folder in map(settings.HOME.joinpath, ("code", "outputs", "layers", "git", "datasets/incoming")):
        for path in folder.rglob(".incoming-*"):
            try:
                if path.lstat().st_mtime < before:
                    path.unlink()
                    removed += 1
            except FileNotFoundError:
                continue  # it got its name meanwhile
    return removed
