"""The name of a job that was given none: it follows the command."""

import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from portal.jobs.models import Job
from portal.projects.inspecting import entries

MAX_NAME_CHARACTERS = 80


def default_name(launcher: str, entry: str, arguments: Sequence[str] = ()) -> str:
    """Return the command, cut to the length of a name; of a file only its name, with the arguments."""
    program = entry if launcher == Job.Launcher.COMMAND or entries.module_of(entry) else PurePosixPath(entry).name
    return f"{program} {shlex.join(arguments)}".strip()[:MAX_NAME_CHARACTERS]


def typed_name(job: Job) -> str:
    """Return the name that a person gave to a job; empty if it follows from the command, as names of earlier releases do."""
    automatic = {default_name(job.launcher, job.entry, job.arguments), default_name(job.launcher, job.entry)}
    return "" if job.name in automatic else job.name
