"""Faults of GPUs, on machines whose driver is pretended (``pretended/pynvml.py``): engine and containers are real."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

from tests.cluster.judge import Run
from tests.cluster.lab import SLOTS
from tests.cluster.machines import Machine
from tests.cluster.scene import Scene
from tests.system.product import wait_for

PRETENDED = Path(__file__).parent / "pretended"
HOOK = "nvidia-container-runtime-hook"
"""Where it is in its path, an engine takes orders for GPUs, and has it put them into containers."""
IN_CONTACT = "In contact with the portal"
"""In an agent's log, once after its start."""
MACHINES = 2
"""So many of the lab's have GPUs; the others keep their CPU slots."""


def gpus_of(machine: Machine) -> Path:
    return machine.folder / "gpus"


def uuid_of(machine: Machine, slot: int) -> str:
    return f"GPU-{uuid5(NAMESPACE_DNS, f'{machine.name} {slot}')}"


def write_gpus(machine: Machine, **of_first: Any) -> None:
    """Write the state of a machine's GPUs; ``of_first`` is what is special about the one with ``index``."""
    index = of_first.pop("index", -1)
    rows = [{"uuid": uuid_of(machine, slot), "lost": False, "ecc": 0} for slot in range(SLOTS)]
    if index >= 0:
        rows[index].update(of_first)
    new = gpus_of(machine) / "new"
    new.write_text(json.dumps(rows))
    new.rename(gpus_of(machine) / "gpus.json")


def pretended_gpus(scene: Scene) -> Callable[[], None]:
    """Two machines have GPUs from now on, until the end."""
    machines = scene.lab.lan.machines[:MACHINES]
    for machine in machines:
        folder = gpus_of(machine)
        folder.mkdir(exist_ok=True)
        hook = folder / HOOK
        hook.write_text("#!/bin/sh\ncat > /dev/null\n")
        hook.chmod(0o755)
        (folder / "gpus.json").write_text("[]")
        for slot in range(SLOTS):
            (machine.folder / "data" / "locks" / uuid_of(machine, slot)).touch(0o644)
        machine.engine.kill()
        machine.engine.hooks = folder
        machine.engine.start()
        env = {"PYTHONPATH": str(PRETENDED), "PRETENDED_GPUS": str(folder), "SCHEDULEARN_CPU_SLOTS": ""}
        scene.lab.agent_env[machine.name] = env
        restart(scene, machine)
        write_gpus(machine)  # once it runs: an agent that finds GPUs at its start requires environments for them
    wait_for("the GPUs are there", lambda: len(rows_of(scene, "cuda")) == MACHINES * SLOTS, 60, every=0.5)

    def back() -> None:
        try:
            wait_for("the GPUs are no longer needed", lambda: not scene.client.open_jobs(), 300, every=0.5)
        finally:  # else the faults after this one meet a lab without them
            for machine in machines:
                scene.lab.agent_env.pop(machine.name)
                restart(scene, machine)
        wait_for("no GPU is there", lambda: not rows_of(scene, "cuda"), 60, every=0.5)

    return back


def restart(scene: Scene, machine: Machine) -> None:
    log = machine.folder / "agent.log"
    before = log.read_text(errors="replace").count(IN_CONTACT)
    scene.lab.kill(f"agent:{machine.name}")
    scene.lab.start(f"agent:{machine.name}")
    wait_for("the agent runs", lambda: log.read_text(errors="replace").count(IN_CONTACT) > before, 60)


def rows_of(scene: Scene, kind: str) -> list[dict[str, Any]]:
    """The GPUs that the portal shows, with their node's number."""
    nodes = scene.client.get("nodes/") or []
    return [{**gpu, "node": node["id"]} for node in nodes for gpu in node["gpus"] if gpu["kind"] == kind]


def gpu_fails(scene: Scene) -> None:
    """The driver reports an error of a GPU, counts one in its memory, or loses it. The job runs elsewhere, and an admin
    returns the GPU to service."""
    for _ in range(SLOTS * MACHINES + 2):
        scene.client.submit(scene.rng.uniform(15, 25))
    run: Run = wait_for("a job has a GPU", lambda: next((run for run in living(scene)), None), 60)
    machine, uuid = scene.lab.machine(run.machine), run.gpus[0]
    index = [uuid_of(machine, slot) for slot in range(SLOTS)].index(uuid)
    scene.rest(0.5, 3)
    way = scene.rng.choice(("xid", "ecc", "lost"))
    if way == "xid":
        new = gpus_of(machine) / "new"
        new.write_text(f"{index} {scene.rng.choice((48, 74, 79, 95, 119))}")
        new.rename(gpus_of(machine) / f"xid-{scene.rng.getrandbits(40)}")
    else:
        error: dict[str, Any] = {"ecc": scene.rng.randrange(1, 100_000)} if way == "ecc" else {"lost": True}
        write_gpus(machine, index=index, **error)

    def row() -> dict[str, Any] | None:
        return next((gpu for gpu in rows_of(scene, "cuda") if gpu["uuid"] == uuid), None)

    def quarantined() -> bool:
        found = row()
        return found is not None and bool(found["quarantined_at"] and found["quarantine_reason"])

    def elsewhere() -> bool:
        mine = [each for each in scene.judge.seen() if each.job == run.job]
        return any(each.number > run.number and each.gpus[0] != uuid or each.code is not None for each in mine)

    scene.within(20, f"the portal shows {uuid} in quarantine ({way})", quarantined)
    scene.within(60, f"the job of {uuid} runs elsewhere ({way})", elsewhere)
    write_gpus(machine)
    wait_for(f"{uuid} is well", lambda: (found := row()) is not None and found["healthy"], 30)
    number = row()
    assert number is not None
    answer = scene.client.ask("POST", f"nodes/{number['node']}/gpus/{index}/release/")
    assert answer is not None and answer.status_code == 200, answer and answer.text


def living(scene: Scene) -> list[Run]:
    """Runs on GPUs that will last for a while."""
    return [run for run in scene.judge.living() if run.gpus[0].startswith("GPU-") and not run.wrote]
