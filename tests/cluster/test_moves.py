"""Jobs that have to leave a machine go on where they were: by their checkpoint, or without stopping at all."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import resuming_job
from tests.cluster.lab import SLOTS, Lab, lab
from tests.cluster.machines import Machine
from tests.system.product import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.timeout(900)]

TRAIN = Path(resuming_job.__file__).read_text()
NUMBERS = itertools.count(1)
NODES_THAT_SHARE = """
from portal.cluster.models import Node
tokens = [node.facts["shared"] for node in Node.objects.all() if "shared" in node.facts]
print(tokens.count(tokens[0]) if tokens else 0)
"""


@pytest.fixture(scope="module")
def it() -> Iterator[Lab]:
    with lab(2) as made:
        yield made


def node(it: Lab, machine: Machine, verb: str) -> None:
    number = next(each["id"] for each in it.get("nodes/") if each["name"] == machine.name)
    it.post(f"nodes/{number}/{verb}/")


class Training:
    """One that can go on from its checkpoint, on both GPUs of the first machine."""

    def __init__(self, it: Lab, **spec: Any) -> None:
        self.it = it
        self.first, self.other = it.lan.machines
        for machine in it.lan.machines:
            (machine.folder / "data" / "enough").unlink(missing_ok=True)
        node(it, self.first, "resume")
        node(it, self.other, "cordon")
        self.code = it.upload(f"moves {next(NUMBERS)}", train=TRAIN)
        self.job = self.submit("python train.py", resumable=True, **spec)
        self.sees_step(15)

    def submit(self, command: str, **spec: Any) -> int:
        return self.it.submit(self.code, command, min_gpus=SLOTS, max_gpus=SLOTS, **spec)

    def log(self) -> str:
        """Of all attempts."""
        streams = self.it.get(f"jobs/{self.job}/streams/")
        return "".join(
            self.it.api("GET", f"jobs/{self.job}/log/", params={"stream": each["id"]}).text
            for each in streams
            if each["label"] == "rank 0"
        )

    def steps(self) -> list[tuple[int, str]]:
        return [(int(step), loss) for step, loss in re.findall(r"^step (\d+) loss (\S+)$", self.log(), re.MULTILINE)]

    def sees_step(self, number: int) -> None:
        wait_for(f"step {number}", lambda: any(step >= number for step, _ in self.steps()), 90, every=0.3)

    def attempts(self) -> list[dict[str, Any]]:
        return list(self.it.get(f"jobs/{self.job}/attempts/"))

    def finish(self) -> None:
        for machine in self.it.lan.machines:
            (machine.folder / "data" / "enough").touch()
        self.it.succeeds(self.job, seconds=60)
        wait_for("the whole log is there", lambda: "done at step" in self.log(), 30)

    def went_on_as_if_nothing_had_happened(self) -> None:
        """Each step is there once, with the loss of an undisturbed run."""
        seen = self.steps()
        undisturbed = resuming_job.losses(resuming_job.fresh())
        assert seen == [(number, repr(next(undisturbed))) for number in range(1, len(seen) + 1)]


def test_a_drained_job_goes_on_at_its_step_on_the_other_machine(it: Lab) -> None:
    run = Training(it)
    node(it, run.other, "resume")
    node(it, run.first, "drain")
    wait_for("a second attempt", lambda: len(run.attempts()) == 2, 60)
    run.sees_step(run.steps()[-1][0] + 10)
    run.finish()
    run.went_on_as_if_nothing_had_happened()
    assert "stopped after step" in run.log() and ": drained" in run.log()
    large = [machine.folder / f"agent/jobs/{run.job}/checkpoints/large.bin" for machine in it.lan.machines]
    assert large[0].read_bytes() == large[1].read_bytes() and large[0].stat().st_size == 20 << 20


def test_a_preempted_job_goes_on_at_its_step_where_there_is_room(it: Lab) -> None:
    run = Training(it, tier="basic")
    other = run.submit("sleep 600")
    it.wait_for_job(other, "RUNNING", seconds=60)
    assert it.wait_for_job(run.job, "QUEUED", seconds=30) == "QUEUED"
    last = run.steps()[-1][0]
    node(it, run.other, "resume")
    run.sees_step(last + 10)
    run.finish()
    run.went_on_as_if_nothing_had_happened()
    assert ": preempted" in run.log()
    assert it.get(f"jobs/{other}/")["state"] == "RUNNING"
    it.post(f"jobs/{other}/cancel/")


def agents_with(it: Lab, **env: str) -> None:
    for machine in it.lan.machines:
        it.kill(f"agent:{machine.name}")
        it.agent_env[machine.name] = env
        it.start(f"agent:{machine.name}")
    wanted = "2" if env else "0"
    wait_for("both tell of it", lambda: it.shell(NODES_THAT_SHARE).split()[-1] == wanted, 60, every=1)


def test_with_a_folder_that_the_machines_share_nothing_goes_through_the_portal(it: Lab) -> None:
    shared = it.lan.folder / "shared"
    shared.mkdir()
    agents_with(it, SCHEDULEARN_SHARED=str(shared))
    run = Training(it)
    node(it, run.other, "resume")
    node(it, run.first, "drain")
    wait_for("a second attempt", lambda: len(run.attempts()) == 2, 60)
    run.sees_step(run.steps()[-1][0] + 10)
    run.finish()
    run.went_on_as_if_nothing_had_happened()
    assert (shared / f"jobs/{run.job}/checkpoints/large.bin").stat().st_size == 20 << 20
    assert it.api("GET", f"jobs/{run.job}/checkpoints/").status_code == 404
    agents_with(it)


def test_a_job_whose_machine_loses_its_power_goes_on_from_what_was_sent(it: Lab) -> None:
    """The last test of this module: the machine stays dark. The checkpoint was written by the first stop."""
    run = Training(it)
    it.post(f"jobs/{run.job}/hold/")
    assert it.wait_for_job(run.job, "HELD", seconds=60) == "HELD"
    kept = run.steps()[-1][0]
    wait_for("its checkpoint is in the portal", lambda: it.api("GET", f"jobs/{run.job}/checkpoints/").is_success, 60)
    it.post(f"jobs/{run.job}/release/")
    run.sees_step(kept + 10)
    node(it, run.other, "resume")
    it.kill(f"agent:{run.first.name}")
    run.first.power_off()
    wait_for("a third attempt", lambda: len(run.attempts()) == 3, 120)
    wait_for("it begins", lambda: run.log().count(f"begins after step {kept} with") == 2, 60)
    run.finish()
    curve = [repr(loss) for _, loss in zip(run.steps(), resuming_job.losses(resuming_job.fresh()), strict=False)]
    assert all(loss == curve[step - 1] for step, loss in run.steps()), "steps that were done again are the same"
    seen = {step for step, _ in run.steps()}
    assert seen == set(range(1, max(seen) + 1))
