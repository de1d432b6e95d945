"""Runs an example of the gallery: its code into a project, and a job as its ``gallery.toml`` asks for."""

from portal.accounts.models import User
from portal.cluster.models import Environment
from portal.jobs import services
from portal.jobs.models import Job
from portal.projects.examples import Example
from portal.projects.models import Project
from portal.projects.services import use_example
from portal.refused import Refused


def run_example(user: User, example: Example, project: Project | None = None) -> Job:
    """On as many GPUs as the example is for, or as the lab has."""
    environment = Environment.objects.filter(key=example.environment, retired=False).first()
    if environment is None:
        raise Refused(
            f"This example needs the environment {example.environment}, which this portal does not offer. Ask an admin."
        )
    code = use_example(user, example, project)
    most = services.lab_gpus() or example.max_gpus
    submission = services.Submission(
        code=code,
        environment=environment,
        launcher=example.launcher,
        entry=example.entry,
        name=example.title,
        description=example.description,
        arguments=tuple(example.arguments),
        env_vars=example.env_vars,
        min_gpus=example.min_gpus,
        max_gpus=max(example.min_gpus, min(example.max_gpus, most)),
        elastic=example.elastic,
        time_limit_seconds=example.time_limit_seconds,
        resumable=example.resumable,
    )
    return services.submit(user, code.project, submission)
