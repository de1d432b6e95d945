"""Runs an example of the gallery: uploads its code to a project and submits the job that its ``gallery.toml`` describes."""

from portal.accounts.models import User
from portal.cluster.models import LIVE_NODE, Node
from portal.environments.models import Environment, NodeEnvironment
from portal.jobs import services
from portal.jobs.models import Job
from portal.jobs.spec import Submission
from portal.projects.examples import Example
from portal.projects.models import Project
from portal.projects.services import use_example
from portal.refused import Refused


def run_example(user: User, example: Example, project: Project | None = None) -> Job:
    """Run an example on as many GPUs as it is made for, or as the lab has."""
    environment = _environment(example)
    if environment is None:
        raise Refused(
            f"This example needs the environment {example.environment}, which this portal does not offer. Ask an admin."
        )
    code = use_example(user, example, project)
    lab_gpus = services.lab_gpus() or example.max_gpus
    submission = Submission(
        code=code,
        environment=environment,
        launcher=example.launcher,
        entry=example.entry,
        name=example.title,
        description=example.description,
        arguments=tuple(example.arguments),
        env_vars=example.env_vars,
        min_gpus=example.min_gpus,
        max_gpus=max(example.min_gpus, min(example.max_gpus, lab_gpus)),
        elastic=example.elastic,
        time_limit_seconds=example.time_limit_seconds,
        resumable=example.resumable,
    )
    return services.submit(user, code.project, submission)


def _environment(example: Example) -> Environment | None:
    """Return the environment that the example names.

    If it is ready on no node, return another that is ready and has the same packages: nodes of an earlier release cannot
    prepare newer environments.
    """
    offered = Environment.objects.usable_in(None)
    named = offered.filter(key=example.environment).first()
    if named is None or not Node.objects.filter(LIVE_NODE).exists():
        return named
    ready = offered.filter(
        on_nodes__state=NodeEnvironment.State.READY, on_nodes__node__in=Node.objects.filter(LIVE_NODE)
    )
    fitting = [row for row in ready.distinct().order_by("position") if set(named.packages) <= set(row.packages)]
    return named if named in fitting or not fitting else fitting[0]
