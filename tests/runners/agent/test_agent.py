"""The agent with one container after the other: what becomes of each, and what it reports."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from runners.runtime import AttemptNetwork, CreateError, ObservedContainer
from runners.runtimes.fake import FailingRuntime, FakeRuntime, SlowRuntime
from runners.spec import CollectiveGroup
from tests.fake_portal import FakePortal
from tests.runners.agent_bench import FOREVER, NAME, Bench, entry, give_code, spec_of, starts

pytestmark = pytest.mark.usefixtures("quick_agent")


class TestOneContainer:
    def test_it_goes_its_way_from_code_to_collected_outputs(self, bench: Bench, portal: FakePortal) -> None:
        spec = spec_of(give_code(portal), env={"FAKE_RUN_SECONDS": "0.5", "FAKE_OUTPUT": "epoch 1\n"})
        portal.want(entry(spec))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
        assert (bench.files.workspace(NAME) / "train.py").read_bytes() == b"print('hello')\n"
        (bench.files.outputs(spec.attempt) / "deep").mkdir()
        (bench.files.outputs(spec.attempt) / "deep/model.pt").write_bytes(b"weights")
        (bench.files.workspace(NAME) / "beside.txt").write_bytes(b"also kept")
        portal.until(lambda: not portal.desired)
        last = portal.container(NAME)
        assert (last["state"], last["exit_code"], last["exit_reason"]) == ("EXITED", 0, "exited")
        assert last["collected"] and last["running_at"] == pytest.approx(time.time(), abs=20)
        assert portal.log(NAME) == b"epoch 1\n" and portal.logs[NAME, "0"].closed
        assert portal.logs[NAME, "0"].label == "rank 0" and portal.logs[NAME, "0"].marks
        assert portal.log(NAME, "setup") == b"pretending to run\n"
        beside = "beside-code/h0/beside.txt" if spec.collective else "beside-code/beside.txt"
        assert portal.outputs == {(NAME, "deep/model.pt"): b"weights", (NAME, beside): b"also kept"}
        assert portal.states(NAME)[-2:] == ["RUNNING", "EXITED"]
        # and leaves nothing behind but its checkpoints
        portal.until(lambda: not bench.files.container(NAME).exists() and not bench.runtime.list())
        portal.until(lambda: not bench.files.attempt(spec.attempt).exists())
        assert bench.files.checkpoints(spec.job).exists()
        assert starts(bench.runtime) == [NAME]

    def test_its_exit_is_reported_after_its_log(self, bench: Bench, portal: FakePortal) -> None:
        complete_at_exit = []

        def look(report: dict) -> None:
            for item in report["containers"]:
                if item["state"] == "EXITED":
                    complete_at_exit.append(portal.log(NAME) == b"x" * 3_000_000)

        portal.on_report = look
        output = "x" * 3_000_000
        portal.want(entry(spec_of(give_code(portal), env={"FAKE_OUTPUT": output, "FAKE_RUN_SECONDS": "0.2"})))
        bench.start()
        portal.until(lambda: complete_at_exit)
        assert all(complete_at_exit)

    def test_a_stop_is_delivered_and_obeyed(self, bench: Bench, portal: FakePortal) -> None:
        spec = spec_of(give_code(portal), env=FOREVER)
        portal.want(entry(spec))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
        portal.on_report = lambda report: None
        portal.want(entry(spec, "stop", "preempted"))
        portal.until(lambda: portal.container(NAME).get("state") == "EXITED")
        last = portal.container(NAME)
        assert (last["exit_reason"], last["detail"]) == ("stopped", "preempted")
        control = json.loads((bench.files.control(NAME) / "control.json").read_bytes())
        assert control == {
            "stop": {"reason": "preempted", "grace_seconds": 2},
            "hosts": [],
            "batch": None,
            "driver": None,
        }
        assert ("stop", NAME) not in bench.runtime.calls, "the supervisor does it; the engine is the last resort"  # type: ignore[attr-defined]

    def test_a_stop_before_the_start_means_no_start(self, bench: Bench, portal: FakePortal) -> None:
        portal.on_report = lambda report: None
        portal.want(entry(spec_of(give_code(portal)), "stop"))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "EXITED")
        assert portal.container(NAME)["exit_reason"] == "stopped"
        assert not starts(bench.runtime)

    def test_new_hosts_reach_the_driver(self, bench: Bench, portal: FakePortal) -> None:
        spec = spec_of(give_code(portal), env=FOREVER, role="driver", slots=0)
        portal.want(entry(spec))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
        portal.want(entry(spec, hosts=[{"name": "h0", "slots": 1}, {"name": "h1", "slots": 2}]))
        control = bench.files.control(NAME) / "control.json"
        portal.until(lambda: [host["name"] for host in json.loads(control.read_bytes())["hosts"]] == ["h0", "h1"])

    def test_running_out_of_memory_is_reported(self, bench: Bench, portal: FakePortal) -> None:
        portal.want(entry(spec_of(give_code(portal), env={"FAKE_OOM": "1", "FAKE_RUN_SECONDS": "0.1"})))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "EXITED")
        assert portal.container(NAME)["exit_reason"] == "oom"
        assert "memory" in portal.container(NAME)["detail"]

    def test_a_full_disk_ends_only_who_filled_it(self, bench: Bench, portal: FakePortal) -> None:
        sha256 = give_code(portal)
        greedy = spec_of(sha256, env=FOREVER)
        modest = spec_of(sha256, "sl-2-a1-0", job=2, env=FOREVER)
        portal.want(entry(greedy), entry(modest))
        bench.start()
        portal.until(lambda: len([1 for seen in bench.runtime.list() if seen.state == "running"]) == 2)
        (bench.files.workspace(NAME) / "junk").write_bytes(b"\1" * (65 << 20))
        portal.until(lambda: portal.container(NAME).get("state") == "EXITED")
        assert portal.container(NAME)["exit_reason"] == "disk"
        assert "its limit is 64 MiB" in portal.container(NAME)["detail"]
        assert portal.container("sl-2-a1-0")["state"] == "RUNNING"

    def test_outputs_that_are_too_large_are_named(self, bench: Bench, portal: FakePortal) -> None:
        portal.largest_output = 10
        spec = spec_of(give_code(portal), env={"FAKE_RUN_SECONDS": "0.5"})
        portal.want(entry(spec))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
        (bench.files.outputs(spec.attempt) / "big.bin").write_bytes(b"x" * 11)
        (bench.files.outputs(spec.attempt) / "small.bin").write_bytes(b"x")
        portal.until(lambda: portal.container(NAME).get("collected"))
        assert "big.bin was not kept" in portal.container(NAME)["detail"]
        assert set(portal.outputs) == {(NAME, "small.bin")}


class TestADriver:
    """Its name comes first, its container last: the ranks load while it comes up."""

    def ring(self, portal: FakePortal) -> None:
        sha256 = give_code(portal)
        driver = spec_of(sha256, env=FOREVER, role="driver", slots=0, launcher="horovod")
        portal.want(entry(driver), entry(spec_of(sha256, "sl-1-a1-1", env=FOREVER, launcher="horovod")))

    def test_it_lets_the_host_beside_it_start_first(self, portal: FakePortal, tmp_path: Path) -> None:
        runtime = SlowRuntime(0.3)
        bench = Bench(tmp_path / "agent", portal, runtime)
        self.ring(portal)
        bench.start()
        portal.until(lambda: NAME in starts(runtime))
        calls = [(verb, name[-1]) for verb, name in runtime.calls if verb in ("create", "start")]
        assert calls == [("create", "1"), ("start", "1"), ("create", "0"), ("start", "0")]
        bench.stop()

    def test_it_does_not_wait_long_for_a_host_that_does_not_start(
        self, portal: FakePortal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("runners.agent.actions.HOSTS_FIRST_SECONDS", 0.3)
        runtime = FailingRuntime(("start",), times=10**6)
        bench = Bench(tmp_path / "agent", portal, runtime)
        self.ring(portal)
        bench.start()
        portal.until(lambda: ("create", NAME) in runtime.calls)
        bench.stop()


class TestWhatCannotStart:
    @pytest.mark.parametrize(
        ("sha256", "sentence"), [("f" * 64, "There is nothing|could not be fetched"), ("nonsense", "not the hash")]
    )
    def test_code_that_the_portal_has_not_got(
        self, bench: Bench, portal: FakePortal, sha256: str, sentence: str
    ) -> None:
        portal.want(entry(spec_of(sha256)))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "EXITED")
        assert portal.container(NAME)["exit_reason"] == "create_error"
        assert any(part in portal.container(NAME)["detail"] for part in sentence.split("|"))

    def test_an_engine_that_refuses(self, portal: FakePortal, tmp_path: Path) -> None:
        bench = Bench(tmp_path / "agent", portal, FailingRuntime(("create",), error=CreateError("No.")))
        portal.want(entry(spec_of(give_code(portal))))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "EXITED")
        assert (portal.container(NAME)["exit_reason"], portal.container(NAME)["detail"]) == ("create_error", "No.")
        bench.stop()

    def test_a_container_that_vanishes_is_lost_and_not_created_again(self, bench: Bench, portal: FakePortal) -> None:
        portal.want(entry(spec_of(give_code(portal), env=FOREVER)))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
        assert isinstance(bench.runtime, FakeRuntime)
        bench.runtime.containers.clear()
        portal.until(lambda: portal.container(NAME).get("state") == "EXITED")
        assert portal.container(NAME)["exit_reason"] == "lost"
        portal.until_reports(3)
        assert starts(bench.runtime) == [NAME]


class TestReports:
    def test_facts_gpus_and_problems_are_there_from_the_first_report(self, bench: Bench, portal: FakePortal) -> None:
        bench.start()
        portal.until(lambda: portal.reports and portal.reports[-1]["facts"].get("engine"))
        first, last = portal.reports[0], portal.reports[-1]
        assert [gpu["uuid"] for gpu in first["gpus"]] == ["cpu-0", "cpu-1"]
        assert {"hostname", "system", "kernel", "python", "agent", "cpus", "memory_mib", "disk_free_mib"} <= set(
            last["facts"]
        )
        assert last["runtime"] == "fake" and last["boot"] == first["boot"]

    def test_an_engine_that_is_away_is_a_problem_of_the_node(self, portal: FakePortal, tmp_path: Path) -> None:
        bench = Bench(tmp_path / "agent", portal, FailingRuntime(("list",), times=10**6))
        bench.start()
        portal.until(lambda: portal.reports and portal.reports[-1]["problems"])
        assert "does not answer" in portal.reports[-1]["problems"][0]["text"]
        assert not portal.reports[-1]["full_pass"]
        bench.stop()

    def test_environments_are_prepared_in_the_order_asked(self, bench: Bench, portal: FakePortal) -> None:
        portal.environments = ["second", "first"]
        bench.start()
        portal.until(
            lambda: (
                [item["state"] for item in (portal.reports[-1]["environments"] if portal.reports else [])]
                == ["ready", "ready"]
            )
        )
        assert [item["key"] for item in portal.reports[-1]["environments"]] == ["second", "first"]

    def test_a_notification_is_answered_at_once(
        self, bench: Bench, portal: FakePortal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "runners.agent.program.SYNC_SECONDS", 3600.0
        )  # so that nothing but the bell can bring the news
        bench.start()
        portal.until(lambda: portal.reports and portal.reports[-1]["full_pass"])
        portal.until_asked("GET /agent/v1/wait")
        portal.want(entry(spec_of(give_code(portal), env=FOREVER)))
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")


def test_the_fake_observes_like_the_real(bench: Bench) -> None:
    spec = spec_of("0" * 64)
    bench.runtime.create(spec, bench.files.make_container(spec))
    assert bench.runtime.list() == [ObservedContainer(NAME, job=1, attempt=11, epoch=1, state="created")]


def test_a_hostile_container_leaks_nothing_and_delays_no_other(
    bench: Bench, portal: FakePortal, tmp_path: Path
) -> None:
    """Everything a container may write is replaced by traps while it runs."""
    secret = tmp_path / "secret"
    secret.write_text('{"phase": "the secret", "code": 0, "reason": "exited", "detail": "the secret"}')
    sha256 = give_code(portal)
    hostile = spec_of(sha256, env=FOREVER, slots=4)
    honest = spec_of(sha256, "sl-2-a1-0", job=2, env={"FAKE_RUN_SECONDS": "600", "FAKE_OUTPUT": "honest\n"})
    portal.want(entry(hostile), entry(honest))
    bench.start()
    portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
    scribe, outputs = bench.files.scribe(NAME), bench.files.outputs(hostile.attempt)
    for name in ("0.log", "0.idx", "1.log", "1.idx", "2.log", "streams.json"):
        (scribe / "log" / name).unlink(missing_ok=True)
    (scribe / "log/0.log").symlink_to(secret)
    os.mkfifo(scribe / "log/1.log")
    (scribe / "log/2.log").mkdir()
    (scribe / "log/3.idx").write_bytes(b"\xff" * 1_000_000)
    (scribe / "log/streams.json").symlink_to(secret)
    for name in ("status.json", "exit.json"):
        (scribe / name).unlink(missing_ok=True)
        os.mkfifo(scribe / name)
    (outputs / "link").symlink_to(secret)
    (outputs / "folder").symlink_to(tmp_path)
    os.mkfifo(outputs / "pipe")
    (outputs / "honest").write_text("kept")
    portal.until_reports(3)
    bench.pass_time(601)
    (scribe / "exit.json").unlink()
    (scribe / "exit.json").symlink_to(secret)
    bench.runtime.signal(NAME, 9)
    portal.until(lambda: not portal.desired, 30)
    assert portal.log("sl-2-a1-0") == b"honest\n"
    assert portal.outputs == {(NAME, "honest"): b"kept"}
    assert portal.container(NAME)["exit_code"] == 137
    everything = json.dumps(portal.reports) + str(portal.logs) + str(portal.outputs)
    assert "the secret" not in everything


class TestSeveralNodes:
    def test_the_networks_of_its_attempts_reach_the_nodes_that_the_portal_names(
        self, bench: Bench, portal: FakePortal
    ) -> None:
        assert isinstance(bench.runtime, FakeRuntime)
        runtime = bench.runtime
        group = CollectiveGroup("10.192.4.2", 4000, "s", 1, 3, number=9, subnet="10.192.4.0/22", address="10.192.4.3")
        spec = replace(spec_of(give_code(portal), env=FOREVER), collective=group)
        portal.want(entry(spec, peers=["10.1.0.2"]))
        bench.start()
        portal.until(lambda: runtime.connected == [AttemptNetwork("sl-1-a1", 9, frozenset({"10.1.0.2"}))])
        portal.want(entry(spec, peers=["10.1.0.2", "10.1.0.3"], driver="10.192.4.9"))
        portal.until(lambda: [len(each.peers) for each in runtime.connected] == [2])
        control = bench.files.control(NAME) / "control.json"
        portal.until(lambda: control.exists() and json.loads(control.read_text())["driver"] == "10.192.4.9")
        portal.want()
        portal.until(lambda: runtime.connected == [])
