"""The cost of changes to a group, measured by its ranks and recorded by the driver."""

import json
import subprocess
import sys
from pathlib import Path

from runners.launch.forwarder import start_forwarder
from runners.launch.group_log import MAX_GROUPS, GroupLog
from runners.launch.rendezvous import Routes, serve

SHIM = Path(__file__).resolve().parents[3] / "runners" / "launch" / "shim"


def test_a_change_costs_what_it_cost_the_slowest_rank() -> None:
    group_counts: list[int] = []
    log = GroupLog(lambda: group_counts.append(len(log.to_json())), lambda: 1000.0)
    log.record_resume(5000)  # there is no group yet
    log.record_group(["h1", "h1"])
    log.record_group(["h1", "h1", "h2"])
    log.record_resume(1500)
    log.record_resume(900)
    first, second = log.to_json()
    assert first == {"number": 1, "at": 1000.0, "hosts": ("h1", "h1"), "cost_seconds": None}
    assert second == {"number": 2, "at": 1000.0, "hosts": ("h1", "h1", "h2"), "cost_seconds": 1.5}
    assert group_counts == [1, 2, 2, 2]


def test_only_the_latest_groups_are_kept() -> None:
    log = GroupLog(lambda: None)
    for _ in range(MAX_GROUPS + 3):
        log.record_group(["h1"])
    assert [group["number"] for group in log.to_json()] == list(range(4, MAX_GROUPS + 4))


def test_restarts_of_the_same_hosts_are_counted_until_a_commit() -> None:
    log = GroupLog(lambda: None)
    assert log.restarts_without_commit() == 0
    for hosts, count in ((["h1"], 0), (["h1"], 1), (["h1"], 2), (["h1", "h2"], 0), (["h1", "h2"], 1)):
        log.record_group(hosts)
        assert log.restarts_without_commit() == count
    log.record_resume(20)
    assert log.restarts_without_commit() == 0
    log.record_group(["h1", "h2"])
    assert log.restarts_without_commit() == 1


RANK = """
import importlib, threading, time
now = 100.0
time.monotonic = lambda: now
state = importlib.import_module("horovod.common.elastic").State()
def step(seconds):
    global now
    now += seconds
    state.check_host_updates()
for _ in range(4):
    step(0.1)
state.on_reset()  # half a second without a step, and then one that takes its usual time
step(0.6)
step(0.1)
for thread in threading.enumerate()[1:]:  # that of the request
    thread.join()
print(state.checked, state.reset)
"""
HOROVOD = """
class HorovodInternalError(Exception): pass
def run_fn(func, reset): return func
class State:
    checked = reset = 0
    def check_host_updates(self): self.checked += 1
    def on_reset(self): self.reset += 1
"""


def test_a_rank_reports_how_long_it_could_not_train(tmp_path: Path) -> None:
    """With a stand-in for Horovod's State; launch/test_elastic_group.py uses the real one."""
    package = tmp_path / "horovod" / "common"
    package.mkdir(parents=True)
    (package / "elastic.py").write_text(HOROVOD)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    costs: list[int] = []
    driver = serve("secret", Routes(record_resume=costs.append), "127.0.0.1", 0)
    forwarder = start_forwarder(lambda: "127.0.0.1", driver.server_port, "secret")
    env = {
        "PYTHONPATH": f"{SHIM}:{tmp_path}",
        "HOROVOD_HOSTNAME": "h1",
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(forwarder.server_port),
    }
    try:
        rank = subprocess.run([sys.executable, "-c", RANK], env=env, capture_output=True, check=True, timeout=60)
        assert json.loads(f"[{rank.stdout.decode().replace(' ', ',')}]") == [6, 1]
        assert costs == [500]
    finally:
        for each in (forwarder, driver):
            each.shutdown()
            each.server_close()
