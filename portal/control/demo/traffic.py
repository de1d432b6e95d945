"""Jobs that keep coming: somebody submits one now and then, as long as not too many wait."""

import random

from portal.accounts.models import User
from portal.cluster.models import Environment
from portal.control.demo.past import NAMES
from portal.jobs import services
from portal.jobs.models import Job, JobState
from portal.projects.models import CodeVersion

MOST_WAITING = 5
SHAPES: tuple[tuple[str, int, int], ...] = (
    ("torchrun", 1, 1),
    ("torchrun", 2, 2),
    ("horovod", 1, 4),
    ("horovod", 2, 4),
    ("torchrun", 4, 4),
)
"""Launcher, fewest and most GPUs; from fewer to more it is elastic."""


def submit_one(chance: random.Random, largest: int) -> Job | None:
    """None when enough wait already. ``largest``: as many GPUs as a job may ask for."""
    if Job.objects.filter(state=JobState.QUEUED).count() >= MOST_WAITING:
        return None
    code = chance.choice(list(CodeVersion.objects.select_related("project").order_by("pk")))
    members = User.objects.filter(memberships__project=code.project).order_by("pk")
    launcher, least, most = chance.choice(SHAPES)
    submission = services.Submission(
        code=code,
        environment=Environment.objects.filter(key="pytorch-horovod", retired=False)[0],
        launcher=launcher,
        entry="train.py",
        name=chance.choice(NAMES),
        env_vars={"FAKE_EXIT_CODE": "1"} if chance.random() < 0.1 else {},
        min_gpus=min(least, largest),
        max_gpus=min(most, largest),
        elastic=launcher == "horovod",
        resumable=chance.random() < 0.5,
        time_limit_seconds=chance.choice((1800, 3600, 7200)),
        priority=chance.choice((0, 0, 0, 1)),
    )
    return services.submit(chance.choice(list(members)), code.project, submission)
