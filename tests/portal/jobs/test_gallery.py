"""One click on an example: its code, and a job that this lab can run."""

import pytest

from portal.environments.models import Environment
from portal.jobs.gallery import run_example
from portal.projects.examples import Example, all_examples
from portal.projects.models import Project
from portal.refused import Refused
from tests.portal.jobs_world import make_environment, make_node, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def example() -> Example:
    return next(each for each in all_examples() if (each.min_gpus, each.max_gpus) == (1, 2))


@pytest.mark.parametrize(("gpus", "most"), [(0, 2), (1, 1), (4, 2)])
def test_it_asks_for_no_more_gpus_than_the_lab_has(example: Example, gpus: int, most: int) -> None:
    make_environment(example.environment)
    make_node(gpus=gpus)
    job = run_example(make_user("alice"), example)
    assert (job.state, job.min_gpus, job.max_gpus) == ("QUEUED", 1, most)


def test_an_example_without_its_environment_leaves_nothing_behind(example: Example) -> None:
    Environment.objects.update(retired=True)
    with pytest.raises(Refused, match="Ask an admin"):
        run_example(make_user("alice"), example)
    assert not Project.objects.exists()
