"""An elastic job on two machines, whose ring is made to change."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.lab import Lab, lab
from tests.cluster.machines import Machine
from tests.system.product import wait_for

HERE = Path(__file__).resolve().parent
SCRIPTS = {"horovod": (HERE / "ring_job.py").read_text(), "torchrun": (HERE / "torch_job.py").read_text()}
"""Each prints a line for each step, until a file called ``enough`` exists."""
ENVIRONMENT = "pytorch-horovod"
NUMBERS = itertools.count(1)
START_SECONDS = 120
"""For a new rank on a busy machine, which imports torch."""


@contextmanager
def two_machines() -> Iterator[Lab]:
    """With a policy that lets jobs grow at once."""
    with lab(2, [ENVIRONMENT]) as made:
        grow_at_once = {"policy": "elastic_fifo", "params": {"grow_after_seconds": 0}}
        assert made.api("PUT", "policy/", json=grow_at_once).status_code == 200
        yield made


def steps_in(log: str) -> list[int]:
    return [int(step) for step in re.findall(r"^step (\d+) of", log, re.MULTILINE)]


class Run:
    """One elastic job. It begins on the first machine with one rank: all else is taken, or takes no work yet."""

    def __init__(self, it: Lab, launcher: str, most: int) -> None:
        self.it = it
        self.first, self.other = it.lan.machines
        for machine in it.lan.machines:
            (machine.folder / "data" / "enough").unlink(missing_ok=True)
        self.code = it.upload(f"rings {next(NUMBERS)}", train=SCRIPTS[launcher])
        self.node(self.first, "resume")
        self.node(self.other, "cordon")
        self.filler = self.fill()
        it.wait_for_job(self.filler, "RUNNING", seconds=START_SECONDS)
        self.job = it.submit(
            self.code,
            "train.py",
            launcher=launcher,
            elastic=True,
            environment=ENVIRONMENT,
            max_gpus=most,
        )

    def fill(self) -> int:
        """Takes one GPU."""
        return self.it.submit(self.code, "sleep 900", environment=ENVIRONMENT)

    def cancel(self, job: int) -> None:
        self.it.post(f"jobs/{job}/cancel/")

    def node(self, machine: Machine, verb: str) -> None:
        number = next(node["id"] for node in self.it.get("nodes/") if node["name"] == machine.name)
        self.it.post(f"nodes/{number}/{verb}/")

    def log(self) -> str:
        """Of all ranks, one after the other."""
        streams = self.it.get(f"jobs/{self.job}/streams/")
        texts = [
            self.it.api("GET", f"jobs/{self.job}/log/", params={"stream": each["id"]}).text
            for each in streams
            if each["label"].startswith("rank")
        ]
        return "\n".join(texts)

    def steps(self) -> list[int]:
        return sorted(steps_in(self.log()))

    def sees(self, words: str, beyond: int = 0, seconds: float = START_SECONDS) -> None:
        def look() -> bool:
            found = re.findall(rf"^step (\d+) {words}", self.log(), re.MULTILINE)
            return any(int(step) > beyond for step in found)

        wait_for(f"a step {words} beyond {beyond}", look, seconds, every=0.5)

    def last(self) -> int:
        return max(self.steps(), default=0)

    def finish(self) -> None:
        for machine in self.it.lan.machines:
            (machine.folder / "data" / "enough").touch()
        self.it.succeeds(self.job, seconds=START_SECONDS)
        wait_for("the whole log is there", lambda: "done at step" in self.log(), 30)

    def events(self, kind: str) -> int:
        return sum(event["kind"] == kind for event in self.it.get(f"jobs/{self.job}/events/"))

    def did_every_step_once(self) -> bool:
        return self.steps() == list(range(1, self.last() + 1)) and self.events("placed") == 1

    def grows_to_three_and_leaves_the_first_machine(self) -> None:
        """1 -> 2 -> 3 ranks, and 2 when the first machine is drained."""
        self.sees("of 1 ranks", 3)
        second = self.fill()
        self.node(self.other, "resume")
        self.sees("of 2 ranks", self.last())
        self.cancel(second)
        self.sees("of 3 ranks", self.last())
        self.cancel(self.filler)
        self.node(self.first, "drain")
        self.sees("of 2 ranks", self.last())
        wait_for("another driver", lambda: self.events("driver"), 60)
        self.finish()
        assert self.did_every_step_once()
        self.reports_what_each_change_cost()

    def reports_what_each_change_cost(self) -> None:
        changes = self.it.get(f"jobs/{self.job}/band/")["changes"]
        assert [(change["before"], change["after"]) for change in changes] == [(1, 2), (2, 3), (3, 2)]
        assert changes[2]["cause"].endswith(f"ode {self.first.name} is being drained.")
        # The last one's may be unknown until the end. A usual step is subtracted, so that a quick change costs 0.
        costs = [change["cost_seconds"] for change in changes]
        assert all(cost is None or 0 <= cost < START_SECONDS for cost in costs) and None not in costs[:2], costs

    def survives_that_the_first_machine_loses_its_power(self) -> None:
        self.sees("of 1 ranks", 3)
        self.node(self.other, "resume")
        self.sees("of 3 ranks", self.last())
        self.cancel(self.filler)
        with self.first_machine_in_the_dark():
            self.sees("of 2 ranks", self.last(), 3 * START_SECONDS)
            self.finish()
            self.lost_no_step_that_was_kept()
            assert self.events("placed") == 1

    def lost_no_step_that_was_kept(self) -> None:
        """What rank 0 printed last is on the disk of the dark machine, but for what was still on its way there."""
        logs = (self.first.folder / "agent" / "containers").glob(f"sl-{self.job}-*/scribe/log/0.log")
        on_disk = [step for log in logs for step in steps_in(log.read_text())]
        printed = self.log()
        kept = max(int(step) for step in re.findall(r"is rank 0 of 2 at step (\d+)", printed))
        on_its_way = range(max(on_disk) + 1, kept + 1)
        assert {*self.steps(), *on_disk, *on_its_way} == set(range(1, self.last() + 1)), printed
        again = {step for step, times in Counter(self.steps()).items() if times > 1}
        assert again <= {kept + 1}, f"steps {again} were done again:\n{printed}"

    @contextmanager
    def first_machine_in_the_dark(self) -> Iterator[None]:
        """It is back in the end, for whatever comes next."""
        self.it.kill(f"agent:{self.first.name}")
        self.first.power_off()
        try:
            yield
        finally:
            self.first.power_on()
            self.it.start(f"agent:{self.first.name}")
