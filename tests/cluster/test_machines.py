"""The harness itself: what a fault test relies on when it claims that a machine was lost."""

import signal
import subprocess
import sys

import pytest

from tests.cluster.machines import CGROUPS, Lan, alive, must, until
from tests.space import children

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]


def start_witness(lan: Lan, name: str) -> int:
    """A container on the first machine; its first process as this host numbers it."""
    one = lan.machines[0]
    one.docker("run", "-d", "--network", "none", "--name", name, lan.base_image, "sleep", "600")
    groups = list((CGROUPS / "pids" / one.cgroup.strip("/")).glob("*/cgroup.procs")) or list(
        (CGROUPS / one.cgroup.strip("/")).glob("*/cgroup.procs")
    )
    pids = [int(line) for group in groups for line in group.read_text().split()]
    assert pids
    return max(pids)


def test_machines_reach_each_other_and_the_host_until_one_is_unplugged(lan: Lan) -> None:
    one, two = lan.machines
    ask = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"
    answer = (
        "import socket; s = socket.create_server(('', 4000)); print('listening', flush=True)\nwhile True: s.accept()"
    )
    log = two.folder / "listener.log"
    listener = two.spawn([sys.executable, "-c", answer], log)
    until("it listens", lambda: b"listening" in log.read_bytes())
    one.run(sys.executable, "-c", ask, two.address, "4000")
    must(sys.executable, "-c", ask, two.address, "4000")
    two.unplug()
    with pytest.raises(AssertionError, match=r"timed out|No route"):
        one.run(sys.executable, "-c", ask, two.address, "4000")
    two.plug()
    until("it is back", lambda: reaches(one.enter(), ask, two.address))
    listener.kill()


def reaches(enter: list[str], ask: str, address: str) -> bool:
    argv = [*enter, sys.executable, "-c", ask, address, "4000"]
    return subprocess.run(argv, capture_output=True, check=False, timeout=30).returncode == 0


def test_a_container_lives_through_the_death_of_its_engine(lan: Lan) -> None:
    pid = start_witness(lan, "survivor")
    lan.machines[0].engine.kill()
    assert alive(pid)
    lan.machines[0].engine.start()
    assert b"survivor" in lan.machines[0].docker("ps", "--format", "{{.Names}}").stdout
    lan.machines[0].docker("rm", "-f", "survivor")


def test_an_engine_that_was_stopped_goes_on_and_can_be_killed(lan: Lan) -> None:
    one = lan.machines[0]
    one.engine.signal(signal.SIGSTOP)
    one.engine.signal(signal.SIGCONT)
    assert one.docker("version").returncode == 0
    one.engine.signal(signal.SIGSTOP)
    one.engine.kill()
    one.engine.start()


def test_power_off_takes_everything_at_once_and_leaves_the_disk(lan: Lan) -> None:
    one = lan.machines[0]
    pid = start_witness(lan, "victim")
    one.run("sh", "-c", f"echo kept > {one.folder}/disk; echo gone > /run/memory")
    one.power_off()
    assert not alive(pid)
    one.power_on()
    assert (one.folder / "disk").read_text() == "kept\n"
    assert not (one.root / "run" / "memory").exists()
    assert b"Exited" in one.docker("ps", "-a", "--format", "{{.Names}} {{.Status}}").stdout
    one.docker("rm", "-f", "victim")


HOLDER = """
import sys
from tests.cluster.machines import cluster
with cluster(1) as lan:
    print(lan.mark, lan.machines[0].space.pid, flush=True)
    sys.stdin.read()
"""


def test_nothing_runs_on_when_the_test_itself_is_killed() -> None:
    argv = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        mark, pid = holder.stdout.readline().split()
        inside = [int(pid), *children(int(pid))]
        assert mark in must("ip", "link")
        holder.kill()
    until("its processes are gone", lambda: not any(alive(each) for each in inside))
    until("its cable is gone", lambda: mark not in must("ip", "link"))
