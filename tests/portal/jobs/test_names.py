"""A job without a name of its own is named after its command, also when a copy gets another one."""

import pytest
from django.test import Client
from django.urls import reverse

from portal.jobs.models import Job
from portal.jobs.names import default_name
from tests.portal.jobs_world import make_job, make_node, make_project, make_user


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (("command", "python train.py --lr 0.1"), "python train.py --lr 0.1"),
        (("torchrun", "src/train.py", ["--lr", "0.1"]), "train.py --lr 0.1"),
        (("horovod", "train.py", ["--note", "two words"]), "train.py --note 'two words'"),
        (("torchrun", "-m net.train", ["--lr", "0.1"]), "-m net.train --lr 0.1"),
        (("command", "x" * 200), "x" * 80),
    ],
)
def test_names_follow_the_command(asked: tuple[str, ...], name: str) -> None:
    assert default_name(*asked) == name


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("train.py --lr 0.1", ""),
        ("train.py", ""),  # as the release before named it
        ("my best run", "my best run"),
    ],
)
def test_a_copy_keeps_only_a_name_that_was_typed(client: Client, name: str, offered: str) -> None:
    make_node(gpus=1)
    alice = make_user("alice")
    job = make_job(make_project(alice), launcher="torchrun", entry="train.py", arguments=["--lr", "0.1"], name=name)
    client.force_login(alice)
    page = client.get(f"{reverse('jobs:new')}?copy={job.pk}")
    assert page.context["form"]["name"].value() == offered
    form = page.context["form"]
    values = {
        field: form[field].value()
        for field in form.fields
        if form[field].value() is not None and form[field].value() is not False
    }
    answer = client.post(f"{reverse('jobs:new')}?copy={job.pk}", values | {"arguments": "--lr 0.3"})
    assert answer.status_code == 302, answer.context["form"].errors
    assert Job.objects.latest("pk").name == (offered or "train.py --lr 0.3")
