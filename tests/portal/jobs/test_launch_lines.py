"""Lines of other launchers: translated where a launcher runs a file, run as they are in plain commands, with advice."""

import io
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from portal.accounts.models import User
from portal.environments.models import Environment
from portal.jobs import services
from portal.jobs.launch_lines import advice, translation_for
from portal.jobs.models import Job
from portal.jobs.spec import MAX_RETRIES, Submission
from portal.projects import services as projects
from portal.projects.inspecting.launch_lines import UntranslatableError, translation
from portal.projects.inspecting.launch_lines.lines import SET_HERE
from portal.projects.models import CodeVersion
from portal.refused import Refused
from portal.variable_names import reason_reserved
from tests import corpus
from tests.portal.jobs_world import make_environment, make_node

pytestmark = pytest.mark.django_db
SCRIPT = "import torch.distributed as dist\ndist.init_process_group()\n"
CONFIG = """
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
mixed_precision: 'no'
downcast_bf16: no
num_machines: 1
num_processes: 4
gpu_ids:
use_cpu: false
dynamo_config:
  dynamo_backend: INDUCTOR
"""


@pytest.fixture
def alice() -> User:
    make_node(gpus=8)
    return User.objects.create_user("alice")


def code(user: User, **files: str) -> CodeVersion:
    project = projects.create_project(user, "Vision")
    files = {"train.py": SCRIPT, "pkg/__init__.py": "", "pkg/fit.py": SCRIPT} | files
    return projects.store_code(
        user,
        project,
        [("code.zip", io.BytesIO(corpus.zip_tree({path: text.encode() for path, text in files.items()})))],
    )


def submit(version: CodeVersion, launcher: str, entry: str, **values: Any) -> Job:
    asked = Submission(code=version, environment=make_environment(), launcher=launcher, entry=entry, **values)
    return services.submit(version.created_by, version.project, asked)


def history(job: Job) -> str:
    return "\n".join(event.sentence for event in job.events.order_by("seq"))


class TestEntries:
    def test_a_line_of_torchrun_is_replaced_by_what_it_means(self, alice: User) -> None:
        job = submit(
            code(alice),
            "torchrun",
            "SEED=1 torchrun --nproc_per_node 4 --rdzv_backend c10d train.py --lr 0.1",
            arguments=("--epochs", "3"),
            env_vars={"SEED": "2", "A": "b"},
        )
        assert (job.entry, tuple(job.arguments)) == ("train.py", ("--lr", "0.1", "--epochs", "3"))
        assert job.env_vars == {"SEED": "2", "A": "b"}
        assert job.name == "train.py --lr 0.1 --epochs 3"
        text = history(job)
        assert "The entry was a line of torchrun: its ranks run train.py" in text
        assert "--rdzv_backend c10d was left out" in text
        assert "The line starts 4 processes, and the job asks for 1 CPU slot" in text

    def test_values_of_variables_are_not_in_the_history_which_viewers_read(self, alice: User) -> None:
        job = submit(code(alice), "torchrun", "API_KEY=s3cret torchrun train.py")
        assert job.env_vars == {"API_KEY": "s3cret"}
        assert "API_KEY" in history(job) and "s3cret" not in history(job)

    def test_a_module_and_as_many_gpus_as_the_line_has_processes(self, alice: User) -> None:
        line = "python -m torch.distributed.run --nproc_per_node=2 -m pkg.fit"
        job = submit(code(alice), "torchrun", line, min_gpus=2, max_gpus=2)
        assert job.entry == "-m pkg.fit"
        assert "The line starts" not in history(job)

    @pytest.mark.parametrize(
        ("launcher", "line", "field", "words"),
        [
            ("horovod", "torchrun train.py", "launcher", "Choose the launcher torchrun."),
            ("torchrun", "horovodrun -np 2 python train.py", "launcher", "Choose the launcher Horovod."),
            ("torchrun", "torchrun --surprise train.py", "entry", "does not know what --surprise means"),
            ("torchrun", "torchrun other.py", "entry", "There is no 'other.py' in this code version"),
            ("torchrun", "torchrun --nproc_per_node 2 train.py --lr $LR", "entry", "variable of the shell"),
            ("torchrun", "accelerate launch --config_file no.yaml train.py", "entry", "has no file 'no.yaml'"),
            ("torchrun", "a line of something else", "entry", "must be a Python file"),
            ("torchrun", "FOO=1 torchrun --nproc_per_node 2 train.py | grep x", "entry", "several commands"),
            ("torchrun", "LD_PRELOAD=x.so torchrun train.py", "env_vars", "cannot set LD_PRELOAD"),
        ],
    )
    def test_what_has_no_counterpart_is_refused(
        self, alice: User, launcher: str, line: str, field: str, words: str
    ) -> None:
        with pytest.raises(Refused) as refused:
            submit(code(alice), launcher, line)
        assert refused.value.field == field and words in refused.value.message

    def test_the_same_key_makes_one_job(self, alice: User) -> None:
        version = code(alice)
        asked = Submission(code=version, environment=make_environment(), launcher="torchrun", entry="torchrun train.py")
        first = services.submit(alice, version.project, asked, idempotency_key="k")
        assert services.submit(alice, version.project, asked, idempotency_key="k") == first


def test_what_is_left_out_as_set_here_cannot_be_set_by_a_job() -> None:
    names = (
        "CUDA_VISIBLE_DEVICES",
        "MASTER_ADDR",
        "LOCAL_RANK",
        "NCCL_SOCKET_IFNAME",
        "PET_NNODES",
        "TORCHELASTIC_RUN_ID",
    )
    for name in names:
        assert SET_HERE.fullmatch(name) and reason_reserved(name), name
    assert not SET_HERE.fullmatch("NCCL_DEBUG")


class TestConfigurationFiles:
    def test_its_values_are_those_of_the_job(self, alice: User) -> None:
        found = translation_for(
            code(alice, **{"conf/a.yaml": CONFIG}), "accelerate launch --config_file ./conf/a.yaml train.py"
        )
        assert found is not None
        assert found.max_ranks == 4
        assert found.env_vars == {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"}

    def test_json_is_read_too(self, alice: User) -> None:
        text = '{"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}, "num_processes": 2}'
        found = translation_for(code(alice, **{"a.json": text}), "accelerate launch --config_file a.json train.py")
        assert found is not None
        assert found.env_vars["FSDP_VERSION"] == "2"

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("a: &x [1]\nb: *x\n", "more than names with values, at line 1"),
            ("a: !!python/object/apply:os.system ['id']\n", "more than names with values"),
            ("- a\n", "more than names with values"),
            ("a:\n  b:\n    c: 1\n", "more than names with values"),
            ("? {a: 1}\n: 2\n", "more than names with values"),
            ("a: '\n", "cannot be read as YAML"),
            ("\x00", "cannot be read as YAML"),
            ("{" * 30_000, "more than names with values"),
            ("a: 1\n" * 1500, "too many values"),
            ("#" + "x" * 70_000, "larger than 64 KiB"),
        ],
    )
    def test_a_hostile_one_is_refused(self, alice: User, text: str, words: str) -> None:
        version = code(alice, **{"c.yaml": text})
        with pytest.raises(UntranslatableError, match=words):
            translation_for(version, "accelerate launch --config_file c.yaml train.py")


class TestPlainCommands:
    @pytest.mark.parametrize(
        ("line", "gpus", "words"),
        [
            ("torchrun --nproc_per_node 2 train.py", 2, "starts its processes on one node"),
            ("torchrun --nproc_per_node 4 train.py", 2, "starts 4 processes, and the job asks for 2 CPU slots at most"),
            ("torchrun --nproc_per_node 2 train.py", 4, "the others are idle"),
            (
                "torchrun --nnodes 2 --nproc_per_node 2 train.py",
                4,
                "waits for 2 nodes, and a plain command runs on one",
            ),
            ("deepspeed --num_nodes 2 train.py", 1, "waits for 2 nodes"),
            ("accelerate launch --num_machines 3 --num_processes 6 train.py", 1, "waits for 3 nodes"),
            ("accelerate launch --mixed_precision bf16 train.py --lr 1", 2, "ACCELERATE_MIXED_PRECISION=bf16"),
            ("mpirun -np 2 python train.py", 1, "No environment has mpirun"),
            ("srun python train.py", 1, "No environment has srun"),
            ("srun --chdir=/x python train.py", 1, "--chdir"),
            ("cd x && torchrun train.py", 2, ""),
            ("torchrun --surprise train.py", 2, "cannot be translated for several nodes"),
            ("torchrun --nproc_per_node 1 train.py", 1, "runs as you type it, on one node. To run on one or several"),
            ("accelerate launch train.py --lr 1", 1, "the file train.py and the arguments --lr 1."),
            ("horovodrun -np 1 python train.py", 1, "enter the launcher Horovod, the file train.py and 1 CPU slot."),
        ],
    )
    def test_advice_names_the_values_to_enter(self, alice: User, line: str, gpus: int, words: str) -> None:
        found = advice(code(alice), "command", line, gpus)
        assert words in (found.text if found else "")

    @pytest.mark.parametrize(
        ("line", "gpus"),
        [
            ("torchrun --surprise train.py", 1),
            ("python train.py", 4),
            ("", 1),
        ],
    )
    def test_lines_that_do_what_they_say_get_none(self, alice: User, line: str, gpus: int) -> None:
        assert advice(code(alice), "command", line, gpus) is None

    def test_a_line_that_runs_as_it_is_is_not_in_the_history(self, alice: User) -> None:
        job = submit(code(alice), "command", "torchrun --nproc_per_node 1 train.py")
        assert "in a plain command" not in history(job)

    def test_the_line_is_not_changed_and_the_history_has_the_advice(self, alice: User) -> None:
        line = "torchrun --nproc_per_node 4 train.py --lr 0.1"
        job = submit(code(alice), "command", line, max_gpus=2, min_gpus=2)
        assert (job.entry, job.arguments) == (line, [])
        assert "enter the launcher torchrun, the file train.py, the arguments --lr 0.1 and 4 CPU slots." in history(job)


class TestForm:
    def test_the_button_puts_the_values_into_the_form_and_submits_nothing(self, alice: User, client: Client) -> None:
        client.force_login(alice)
        version = code(alice)
        make_environment()
        address = f"{reverse('jobs:new')}?code={version.pk}"
        line = "accelerate launch --num_processes 4 --mixed_precision bf16 train.py --lr 0.1"
        sent = {
            "launcher": "command", "command": line, "min_gpus": "2", "max_gpus": "2", "time_amount": "1",
            "time_unit": "3600", "environment": "pytorch", "key": "k", "retries": "0", "priority": "0", "tier": "standard",
            "env_vars": "A=b", "arguments": "--epochs 3",
        }  # fmt: skip
        asked: dict[str, Any] = {
            "code": version.pk,
            "launcher": "command",
            "command": line,
            "max_gpus": "2",
            "environment": "pytorch",
        }
        assert "Use these values" in client.get(reverse("jobs:new-warnings"), asked).content.decode()
        response = client.post(address, sent | {"translate": "yes"})
        assert response.status_code == 200 and not Job.objects.exists()
        form = response.context["form"]
        assert not form.errors
        assert {
            name: form[name].value() for name in ("launcher", "entry", "arguments", "env_vars", "min_gpus", "max_gpus")
        } == {
            "launcher": "torchrun",
            "entry": "train.py",
            "arguments": "--lr 0.1 --epochs 3",
            "env_vars": "A=b\nACCELERATE_MIXED_PRECISION=bf16",
            "min_gpus": "4",
            "max_gpus": "4",
        }
        assert f"The form now has what <code>{line}</code> means" in response.content.decode()
        response = client.post(address, sent | {"translate": "yes", "command": "torchrun --surprise train.py"})
        assert response.status_code in (200, 302)

    def test_the_environment_has_the_launcher_and_the_lab_the_gpus_that_the_values_need(
        self, alice: User, client: Client
    ) -> None:
        Environment.objects.update(retired=True)
        client.force_login(alice)
        version = code(alice)
        plain, with_horovod = make_environment("plain", ("torch",)), make_environment("both", ("torch", "horovod"))
        make_environment("other", ("tensorflow", "horovod"))
        sent = {"launcher": "command", "environment": plain.key, "translate": "yes"}
        address = f"{reverse('jobs:new')}?code={version.pk}"
        response = client.post(address, sent | {"command": "horovodrun -np 12 python train.py"})
        form = response.context["form"]
        shown = {name: form[name].value() for name in ("launcher", "environment", "min_gpus", "max_gpus")}
        assert shown == {"launcher": "horovod", "environment": with_horovod.key, "min_gpus": "8", "max_gpus": "8"}
        page = response.content.decode()
        assert "The line asks for 12, and the lab has 8 CPU slots" in page
        assert f"The environment is “{with_horovod.title}” now: “{plain.title}” does not have Horovod." in page
        response = client.post(address, sent | {"command": "torchrun --nproc_per_node 3 train.py"})
        form = response.context["form"]
        assert (form["environment"].value(), form["max_gpus"].value()) == (plain.key, "3")
        assert response.context["notes"] == []


def test_a_line_sets_at_most_as_many_retries_as_a_job_may_have() -> None:
    assert translation.MAX_RETRIES == MAX_RETRIES
