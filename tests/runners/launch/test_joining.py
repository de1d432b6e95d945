"""Ranks that never join each other are reported, with real supervisors and a real driver.

Their torch and Horovod are stand-ins: all that counts is whether they are initialised.
"""

from pathlib import Path

import pytest

from runners.launch.host_worker import Verdict
from runners.launch.joining import JoinCheck
from runners.messages.launch import LeftJob, RanksApart
from tests.runners.launch.test_static_group import containers_of
from tests.runners.launching import WAIT_FOR_RELEASE, Attempt, Container, attempt, until

HOROVOD = """
class HorovodBasics:
    def init(self):
        pass
"""
GROUPS = """
def init_process_group(backend):
    pass
"""
OPTIMIZERS = """
hooks = []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
def step():
    for hook in hooks:
        hook()
"""
PLAIN = "print('trained')"
WITH_HOROVOD = "from horovod.common.basics import HorovodBasics; HorovodBasics().init()"
WITH_A_GROUP = "from torch.distributed.distributed_c10d import init_process_group; init_process_group('gloo')"
STEPS = f"""
from torch.optim.optimizer import step
for number in range(25):
    step()
{WAIT_FOR_RELEASE}"""
FAILS = "raise SystemExit(3)"
SENTENCE = RanksApart().text
APART = {"code": 0, "reason": "exited", "detail": SENTENCE, "message": {"code": "launch.ranks_apart"}}


def started(made: Attempt, program: str, *slots: int) -> list[Container]:
    containers = containers_of(made, program, *slots, start=False)
    for container in containers:
        for name, text in (
            ("horovod/common/basics.py", HOROVOD),
            ("torch/distributed/distributed_c10d.py", GROUPS),
            ("torch/optim/optimizer.py", OPTIMIZERS),
        ):
            place = container.workspace / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        container.start()
    return containers[1:]


def test_a_program_that_ignores_its_ranks_is_reported_when_it_ends_normally(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        hosts = started(made, PLAIN, 2, 1)
        assert [host.wait() for host in hosts] == [APART] * 2
    assert [host.log("setup").count(SENTENCE) for host in hosts] == [1, 1]


@pytest.mark.parametrize(
    "program", [WITH_HOROVOD, WITH_A_GROUP, f"import os\nif os.environ['HOROVOD_RANK'] == '1': {WITH_A_GROUP}"]
)
def test_ranks_are_not_reported_if_one_of_them_has_joined(tmp_path: Path, program: str) -> None:
    with attempt(tmp_path) as made:
        (host,) = started(made, program, 2)
        assert host.wait() == {"code": 0, "reason": "exited", "detail": ""}
    assert SENTENCE not in host.log("setup")


def test_ranks_that_train_without_the_others_are_reported_while_they_train(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        (host,) = started(made, STEPS, 2)
        until(lambda: SENTENCE in host.log("setup"), summary=host.summary)
        made.release()
        assert host.wait() == APART
    assert host.log("setup").count(SENTENCE) == 1


@pytest.mark.parametrize(("program", "slots", "code"), [(PLAIN, 1, 0), (FAILS, 2, 3)])
def test_a_single_rank_and_failed_ranks_are_not_reported(tmp_path: Path, program: str, slots: int, code: int) -> None:
    with attempt(tmp_path) as made:
        (host,) = started(made, program, slots)
        assert host.wait()["code"] == code
    assert SENTENCE not in host.log("setup")


def test_the_warning_does_not_replace_the_message_of_a_host(tmp_path: Path) -> None:
    reports: list[str] = []
    joining = JoinCheck(tmp_path, reports.append)
    (tmp_path / "joining.started").touch()
    assert joining.add_warning(Verdict(0, "stopped", LeftJob())).message == LeftJob()
    assert joining.add_warning(Verdict(1, "exited")).message is None
    assert joining.add_warning(Verdict(0, "exited")).message == RanksApart()
    (tmp_path / "joining.joined").touch()
    assert joining.add_warning(Verdict(0, "exited")).message is None
