"""Jobs that are submitted while the demo lab runs, by the same people and with the same programs as in its month."""

import random

from django.db.models import Sum

from portal.cluster.models import Environment, Gpu, usable_gpu
from portal.jobs import services
from portal.jobs.models import Job, JobState
from portal.jobs.spec import Submission
from portal.ops.demo.people import ENVIRONMENT
from portal.ops.demo.workload import JOB_PATTERNS, LabSize
from portal.projects.models import CodeVersion

MIN_LOAD, MAX_LOAD = 0.7, 1.35
"""The range of the load, as a part of the lab's GPUs, from which no more jobs are submitted. It is drawn each time, so
that sometimes jobs wait and sometimes GPUs are free."""


def submit_one(chance: random.Random, size: LabSize) -> Job | None:
    """Submit a job as one of the demo's people would; return None when enough jobs run and wait."""
    asking = (
        Job.objects.filter(state__in=(JobState.QUEUED, JobState.RUNNING)).aggregate(gpus=Sum("min_gpus"))["gpus"] or 0
    )
    if asking >= chance.uniform(MIN_LOAD, MAX_LOAD) * Gpu.objects.filter(usable_gpu()).count():
        return None
    pattern = chance.choice(JOB_PATTERNS)
    min_gpus, max_gpus = (size.gpus_for(part) for part in chance.choice(pattern.sizes))
    code = CodeVersion.objects.select_related("project").get(project__name=pattern.project)
    members = code.project.memberships.select_related("user").filter(user__username__in=pattern.people).order_by("pk")
    submission = Submission(
        code=code,
        environment=Environment.objects.get(key=ENVIRONMENT, retired=False),
        launcher=pattern.launcher,
        entry="python train.py" if pattern.launcher == "command" else "train.py",
        name=chance.choice(pattern.names),
        arguments=tuple(word for knob, values in pattern.knobs for word in (knob, chance.choice(values))),
        min_gpus=min_gpus,
        max_gpus=max(min_gpus, max_gpus) if pattern.elastic else min_gpus,
        elastic=pattern.elastic,
        resumable=pattern.resumable,
        time_limit_seconds=chance.choice((3600, 7200, 4 * 3600)),
    )
    return services.submit(chance.choice(list(members)).user, code.project, submission)
