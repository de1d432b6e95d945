"""A group that does not change, with real supervisors and a real driver. Its ranks need no Horovod."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from runners.launch.fence import T_FENCE_SECONDS
from runners.launch.forwarder import send_request
from runners.launch.ranks import processors
from runners.messages.launch import RankEnded
from runners.spec import RunSpec
from tests.runners.launching import WAIT_FOR_RELEASE, Attempt, Container, attempt, local_group, until

WHO = """
import json, os
print(json.dumps({k: v for k, v in os.environ.items() if k.startswith(("HOROVOD_", "NCCL_"))}))
"""
STAYS = f"import os; print(os.getpid()){WAIT_FOR_RELEASE}"
RANK_ONE_FAILS = f"""
import os, sys, time
print("up")
if os.environ["HOROVOD_RANK"] == "1":
    {WAIT_FOR_RELEASE.strip().replace(chr(10), chr(10) + "    ")}
    sys.exit(7)
time.sleep(60)
"""
FIRST_OF_ALL = """
import os
print("all hosts are here:", os.path.exists(os.path.join(os.environ["SCHEDULEARN_OUTPUTS"], "released")))
"""


SLEEPS = "import time; print('up'); time.sleep(60)"


def containers_of(made: Attempt, program: str, *slots: int, start: bool = True, **more: Any) -> list[Container]:
    """Driver first, then hosts h1, h2, ... with so many slots."""
    group = local_group(sum(slots), sum(slots))
    command = ("python", "-c", program)
    containers = [made.container(command, "horovod", "driver", "driver", 0, group, **more)]
    for number, count in enumerate(slots, start=1):
        containers.append(made.container(command, "horovod", "host", f"h{number}", count, group, **more))
    containers[0].tell(hosts=[(host.spec.hostname, host.spec.slots) for host in containers[1:]])
    if start:
        for container in containers:
            container.start()
    return containers


def test_every_rank_learns_who_it_is(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        driver, h1, h2 = containers_of(made, WHO, 2, 1)
        assert driver.wait() == {"code": 0, "reason": "exited", "detail": ""}
        for host in (h1, h2):
            assert host.wait()["code"] == 0
    envs = [json.loads(log) for log in (h1.log("0"), h1.log("1"), h2.log("0"))]
    assert [env["HOROVOD_RANK"] for env in envs] == ["0", "1", "2"]
    assert {env["HOROVOD_SIZE"] for env in envs} == {"3"}
    assert [env["HOROVOD_LOCAL_RANK"] for env in envs] == ["0", "1", "0"]
    assert {env["HOROVOD_GLOO_RENDEZVOUS_ADDR"] for env in envs} == {"127.0.0.1"}
    assert {env["HOROVOD_GLOO_IFACE"] for env in envs} == {env["NCCL_SOCKET_IFNAME"] for env in envs} == {"lo"}
    assert not any("HOROVOD_ELASTIC" in env for env in envs)
    assert h1.labels() == {"setup": "set-up", "0": "rank 0", "1": "rank 1"}
    assert h2.labels()["0"] == "rank 2"


def test_ranks_in_cpu_slots_keep_to_processors_of_their_own(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        _, h1, h2 = containers_of(made, STAYS, 2, 1)
        # A rank is bound before its output is read, so the processors of one that has printed are final.
        places = ((h1, "0"), (h1, "1"), (h2, "0"))
        pids = [int(until(partial(host.log, slot))) for host, slot in places]
        found = [os.sched_getaffinity(pid) for pid in pids]
        made.release()
        for host in (h1, h2):
            assert host.wait()["code"] == 0
    here = os.sched_getaffinity(0)
    bound = [processors(h1.spec, slot, here) for slot in (0, 1)]
    assert found == [*(one or here for one in bound), here]
    assert all(bound) == (len(here) % 2 == 0)


@given(st.sets(st.integers(0, 63), min_size=1), st.integers(0, 9), st.sampled_from(["cpu", "cuda"]))
def test_ranks_share_processors_equally_or_not_at_all(offered: set[int], slots: int, kind: Any) -> None:
    spec = RunSpec("sl-1-a1-1", 1, 1, 1, "host", "h1", "python", "0" * 64, "horovod", ("x",), slots, gpu_kind=kind)
    shares = [processors(spec, slot, offered) for slot in range(slots)]
    if kind == "cpu" and slots > 1 and len(offered) % slots == 0:
        assert {len(one) for one in shares} == {len(offered) // slots}
        assert set().union(*shares) == offered
    else:
        assert not any(shares)
    assert not processors(spec, slots, offered) and not processors(spec, -1, offered)


def test_one_failing_rank_ends_the_attempt_with_its_code(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        driver, h1, h2 = containers_of(made, RANK_ONE_FAILS, 1, 1)
        until(lambda: h1.log() and h2.log())
        made.release()
        exit = driver.wait()
        assert (exit["code"], exit["reason"]) == (7, "exited")
        assert exit["message"] == RankEnded(1, "h2", 7).data()
        assert h1.wait()["code"] == 7
        assert h2.wait()["code"] == 7
    assert "Ending the other ranks, because rank 1 failed" in driver.log("setup")
    assert h1.log() == "up\n"  # started once, never again


def test_ranks_wait_until_all_hosts_have_come(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        driver, h1, h2 = containers_of(made, FIRST_OF_ALL, 1, 1, start=False)
        h1.start()
        driver.start()
        until(lambda: "Waiting for h2\n" in driver.log("setup"))
        assert "Starting" not in h1.log("setup")
        made.release()
        h2.start()
        assert driver.wait()["code"] == 0
        assert h1.log() == h2.log() == "all hosts are here: True\n"


def test_a_supervisor_may_come_before_its_name_does(tmp_path: Path) -> None:
    """The new host's node has heard of it sooner than the driver's."""
    with attempt(tmp_path) as made:
        driver, h1, h2 = containers_of(made, WHO, 1, 1, start=False)
        driver.tell(hosts=[("h1", 1)])
        driver.start()
        h2.start()
        group = driver.spec.collective
        assert group is not None
        until(partial(connections_to, group.port))
        driver.tell(hosts=[("h1", 1), ("h2", 1)])
        h1.start()
        assert driver.wait()["code"] == 0
        assert h2.wait()["code"] == 0
    assert "leaves" not in driver.log("setup")


def test_a_stop_of_the_driver_ends_every_host(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        driver, h1, h2 = containers_of(made, SLEEPS, 1, 1)
        until(lambda: "up" in h1.log() and "up" in h2.log())
        driver.tell(stop={"reason": "cancelled", "grace_seconds": 5}, hosts=[("h1", 1), ("h2", 1)])
        assert driver.wait(30)["reason"] == "stopped"
        assert h1.wait(30)["code"] != 0
        assert h2.wait(30)["code"] != 0


def connections_to(port: int) -> int:
    """How many connections of this machine's processes to a port of its own are open."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(peer.endswith(f":{port:04X}") and state == "01" for _, _, peer, state, *_ in rows)


SAVES_FOR_LONG = f"""
import signal, sys, time
def save(number, frame):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the word of the driver and that of the agent both bring one
    print("saving")
    exec({WAIT_FOR_RELEASE!r})
    print("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("up")
time.sleep(60)
"""


def test_a_stop_gives_the_ranks_of_a_group_all_of_their_grace(tmp_path: Path) -> None:
    """How long that is at most, and at least, is in launch/test_group_host_worker.py."""
    with attempt(tmp_path) as made:
        driver, host = containers_of(made, SAVES_FOR_LONG, 1, grace_seconds=60)
        until(lambda: "up" in host.log())
        for container in (driver, host):
            container.tell(stop={"reason": "preempted", "grace_seconds": 60}, hosts=[("h1", 1)])
        assert driver.wait(30)["reason"] == "stopped"
        until(lambda: "saving" in host.log())
        made.release()
        assert host.wait(30)["reason"] == "stopped"
    assert host.log() == "up\nsaving\nsaved\n"


def job_that_loses_a_host(made: Attempt, fence_seconds: float = T_FENCE_SECONDS) -> list[Container]:
    """A driver that does not wait for long until a host that is gone has heard of the end; h2 has this fence."""
    driver, h1, h2 = containers_of(made, SLEEPS, 1, 1, start=False)
    driver.start(SCHEDULEARN_FAREWELL_SECONDS="1.5")
    h1.start()
    h2.start(SCHEDULEARN_FENCE_SECONDS=str(fence_seconds))
    until(lambda: "up" in h1.log() and "up" in h2.log())
    return [driver, h1, h2]


def test_a_group_that_broke_because_a_host_was_stopped_did_not_fail(tmp_path: Path) -> None:
    """The nodes hear of a stop one after the other."""
    with attempt(tmp_path) as made:
        driver, _, h2 = job_that_loses_a_host(made)
        h2.tell(stop={"reason": "preempted", "grace_seconds": 5})
        assert driver.wait(30)["reason"] == "stopped"


def test_a_group_that_broke_because_a_host_was_fenced_is_lost(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        driver, _, h2 = job_that_loses_a_host(made, fence_seconds=2)
        h2.stop_renewing()
        assert driver.wait(30)["reason"] == "fenced"
        assert h2.wait()["reason"] == "fenced"


def test_a_killed_host_is_noticed_and_ends_the_attempt_as_lost(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        driver, h1, h2 = job_that_loses_a_host(made)
        group = h2.spec.collective
        assert group is not None and h2.process is not None
        h2.process.kill()
        # Its supervisor cannot report this any more. When another one polls in its place, the driver notices at once.
        message = json.dumps({"host": "h2", "slots": 1, "boot": "another", "seen": 0}).encode()
        send_request("127.0.0.1", group.port, group.secret, "POST", "/ring/poll", message, 20)
        exit = driver.wait(30)
        assert (exit["code"], exit["reason"]) == (137, "fenced")  # the user's code is not to blame
        assert h1.wait(30)["code"] == 137


def test_a_program_that_does_not_exist_fails_the_group(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        group = local_group(1, 1)
        driver = made.container((), "horovod", "driver", "driver", 0, group)
        host = made.container(("no-such-program",), "horovod", "host", "h1", 1, group)
        driver.tell(hosts=[("h1", 1)])
        driver.start()
        host.start()
        assert driver.wait()["code"] == 127
        assert "could not be started" in host.log("setup")


def test_a_driver_reports_that_its_port_is_taken(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        first, _ = containers_of(made, WHO, 1, start=False)
        second = made.container((), "horovod", "driver", "driver", 0, first.spec.collective)
        first.start()
        until(lambda: "Waiting for" in first.log("setup"))
        exit = second.start().wait()
        assert exit["reason"] == "launch_error"
        assert "cannot listen on port" in exit["detail"] and exit["message"]["code"] == "launch.driver_cannot_listen"
