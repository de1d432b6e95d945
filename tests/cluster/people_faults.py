"""Faults that people and their jobs bring: too much memory, too much log, cancels and policies at any moment."""

import json
from collections.abc import Callable
from contextlib import ExitStack

import httpx
from websockets.sync.client import connect

from tests.cluster.portal_faults import scheduler_dies
from tests.cluster.scene import Scene
from tests.system.product import PASSWORD, wait_for

TIGHT_MIB = 200


def memory_is_short(scene: Scene) -> None:
    asked = scene.client.submit(8, extra=f"--mib {2 * TIGHT_MIB}")
    asked.own_fault = True
    run = wait_for("it runs", lambda: next((run for run in scene.judge.living() if run.job == asked.job), None), 60)
    machine = scene.lab.machine(run.machine)
    found = machine.docker("ps", "-q", "--filter", f"label=sl.job={asked.job}").stdout.decode().split()
    machine.docker("update", f"--memory={TIGHT_MIB}m", f"--memory-swap={TIGHT_MIB}m", *found)


def log_floods(scene: Scene) -> None:
    scene.client.submit(scene.rng.uniform(2, 5), rate=60_000)
    scene.rest(1, 4)


def cancel_races(scene: Scene) -> None:
    """At any moment: before it is placed, while it starts, runs or ends."""
    asked = scene.client.submit(scene.rng.uniform(0.5, 3))
    scene.rest(0, 5)
    scene.client.cancel(asked)


def policy_changes(scene: Scene) -> None:
    for _ in range(5):
        switch(scene, scene.rng.choice(("fifo", "fair_share", "srjf", "round_robin", "tiresias")))
        scene.rest(0.2, 1)
    if scene.rng.random() < 0.5:
        scheduler_dies(scene)


def switch(scene: Scene, policy: str) -> None:
    def switched() -> bool:
        answer = scene.client.ask("PUT", "policy/", json={"policy": policy, "params": {}})
        return answer is not None and answer.status_code == 200

    wait_for(f"the policy is {policy}", switched, 20)


def first_policy_again(scene: Scene) -> Callable[[], None]:
    before = scene.client.get("policy/")["policy"]
    return lambda: switch(scene, before)


VIEWERS = 5


def viewers_stand_still(scene: Scene) -> None:
    """Pages that ask for a flooding log and then read nothing of what they get."""
    asked = scene.client.submit(6, rate=20_000)
    wait_for("it runs", lambda: any(run.job == asked.job for run in scene.judge.living()), 60)
    uri = f"{scene.lab.url.replace('http', 'ws')}/ws/jobs/{asked.job}/log/"
    headers = {"Cookie": cookies(scene), "Origin": scene.lab.url}
    with ExitStack() as stack:
        for _ in range(VIEWERS):
            viewer = connect(
                uri, ssl=scene.lab.trust(), additional_headers=headers, proxy=None, max_queue=1, open_timeout=60
            )
            stack.callback(viewer.socket.close)
            viewer.send(json.dumps({"type": "read", "cursors": {}}))
        scene.rest(3, 6)


def cookies(scene: Scene) -> str:
    """Signs in as a browser would."""
    with httpx.Client(base_url=scene.lab.url, trust_env=False, verify=scene.lab.trust()) as client:
        client.get("/accounts/sign-in/")
        form = {"username": "ada", "password": PASSWORD, "csrfmiddlewaretoken": client.cookies["csrftoken"]}
        client.post("/accounts/sign-in/", data=form, headers={"Referer": scene.lab.url})
        return "; ".join(f"{name}={value}" for name, value in client.cookies.items())
