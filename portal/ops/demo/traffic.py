"""Jobs that are submitted while the demo lab runs, by the same people and with the same programs as in its month."""

import random

from django.db.models import Sum

from portal.cluster.models import Gpu, usable_gpu
from portal.environments.models import Environment
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
    """Submit a job as one of the demo's people would.

    Returns None when enough jobs run and wait, and when the project is no longer as the demo made it: visitors may rename
    it, remove its members, or add others of its name.
    """
    asking = (
        Job.objects.filter(state__in=(JobState.QUEUED, JobState.RUNNING)).aggregate(gpus=Sum("min_gpus"))["gpus"] or 0
    )
    if asking >= chance.uniform(MIN_LOAD, MAX_LOAD) * Gpu.objects.filter(usable_gpu()).count():
        return None
    pattern = chance.choice(JOB_PATTERNS)
    min_gpus, max_gpus = (size.gpus_for(part) for part in chance.choice(pattern.sizes))
    versions = CodeVersion.objects.filter(project__name=pattern.project, project__archived_at=None)
    code = versions.select_related("project").order_by("project", "-number").first()
    environment = Environment.objects.filter(key=ENVIRONMENT, retired=False).first()
    if code is None or environment is None:
        return None
    members = code.project.memberships.select_related("user").filter(user__username__in=pattern.people).order_by("pk")
    if not members:
        return None
    gpu_request = size.gpu_request(pattern, min_gpus)
    submission = Submission(
        code=code,
        environment=environment,
        launcher=pattern.launcher,
        entry="python train.py" if pattern.launcher == "command" else "train.py",
        name=chance.choice(pattern.names),
        arguments=tuple(word for knob, values in pattern.knobs for word in (knob, chance.choice(values))),
        min_gpus=min_gpus,
        max_gpus=max(min_gpus, max_gpus) if pattern.elastic else min_gpus,
        elastic=pattern.elastic,
        resumable=pattern.resumable,
        gpu_memory_mib=gpu_request.memory_mib or None,
        gpu_models=gpu_request.kinds,
        same_gpu_model=gpu_request.same_kind,
        time_limit_seconds=chance.choice((3600, 7200, 4 * 3600)),
    )
    return services.submit(chance.choice(list(members)).user, code.project, submission)
