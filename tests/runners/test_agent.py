"""The agent against a portal and a runtime that fail in every way they can."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runners.fake_runtime import BadRuntime, FakeRuntime, NeverRuntime, SlowRuntime
from runners.runtime import Folders, Observed
from tests.fake_portal import FakePortal
from tests.runners.agent_bench import Bench, entry, follow_protocol, give_code, settle, spec_of

NAME = "sl-1-a1-0"
FOREVER = {"FAKE_RUN_SECONDS": "never"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.agent.SYNC_SECONDS", 0.5)
    monkeypatch.setattr("runners.agent.OBSERVE_SECONDS", 0.05)
    monkeypatch.setattr("runners.agent.TEND_SECONDS", 0.2)
    monkeypatch.setattr("runners.agent.OUTPUTS_SECONDS", 0.2)
    monkeypatch.setenv("SCHEDULEARN_CPU_SLOTS", "2")


@pytest.fixture
def portal() -> Iterator[FakePortal]:
    with FakePortal() as portal:
        follow_protocol(portal)
        yield portal


@pytest.fixture
def bench(tmp_path: Path, portal: FakePortal) -> Iterator[Bench]:
    bench = Bench(tmp_path / "agent", portal)
    yield bench
    bench.stop()


def starts(runtime: object) -> list[str]:
    return [name for verb, name in runtime.calls if verb == "start"]  # type: ignore[attr-defined]


class TestOneContainer:
    def test_it_goes_its_way_from_code_to_collected_outputs(self, bench: Bench, portal: FakePortal) -> None:
        spec = spec_of(give_code(portal), env={"FAKE_RUN_SECONDS": "0.5", "FAKE_OUTPUT": "epoch 1\n"})
        portal.want(entry(spec))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
        assert (bench.files.workspace(NAME) / "train.py").read_bytes() == b"print('hello')\n"
        (bench.files.outputs(spec.attempt) / "deep").mkdir()
        (bench.files.outputs(spec.attempt) / "deep/model.pt").write_bytes(b"weights")
        portal.until(lambda: not portal.desired)
        last = portal.container(NAME)
        assert (last["state"], last["exit_code"], last["exit_reason"]) == ("EXITED", 0, "exited")
        assert last["collected"] and last["running_at"] == pytest.approx(time.time(), abs=20)
        assert portal.log(NAME) == b"epoch 1\n" and portal.logs[NAME, "0"].closed
        assert portal.logs[NAME, "0"].label == "rank 0" and portal.logs[NAME, "0"].marks
        assert portal.log(NAME, "setup") == b"pretending to run\n"
        assert portal.outputs == {(NAME, "deep/model.pt"): b"weights"}
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

    def test_a_stop_is_told_and_obeyed(self, bench: Bench, portal: FakePortal) -> None:
        spec = spec_of(give_code(portal), env=FOREVER)
        portal.want(entry(spec))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
        portal.on_report = lambda report: None
        portal.want(entry(spec, "stop", "preempted"))
        portal.until(lambda: portal.container(NAME).get("state") == "EXITED")
        last = portal.container(NAME)
        assert (last["exit_reason"], last["detail"]) == ("stopped", "preempted")
        told = json.loads((bench.files.control(NAME) / "control.json").read_bytes())
        assert told == {"stop": {"reason": "preempted", "grace_seconds": 2}, "hosts": []}
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

    def test_memory_running_out_is_said(self, bench: Bench, portal: FakePortal) -> None:
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
        bench = Bench(tmp_path / "agent", portal, BadRuntime(("create",), refuse=True))
        portal.want(entry(spec_of(give_code(portal))))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "EXITED")
        assert (portal.container(NAME)["exit_reason"], portal.container(NAME)["detail"]) == ("create_error", "No.")
        bench.stop()

    def test_a_container_that_vanishes_is_lost_and_not_made_anew(self, bench: Bench, portal: FakePortal) -> None:
        portal.want(entry(spec_of(give_code(portal), env=FOREVER)))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
        assert isinstance(bench.runtime, FakeRuntime)
        bench.runtime.containers.clear()
        portal.until(lambda: portal.container(NAME).get("state") == "EXITED")
        assert portal.container(NAME)["exit_reason"] == "lost"
        settle(0.3)
        assert starts(bench.runtime) == [NAME]


class TestFailures:
    def test_an_engine_that_fails_now_and_then_is_asked_again(self, portal: FakePortal, tmp_path: Path) -> None:
        runtime = BadRuntime(("list", "create", "start", "remove", "logs"), times=2)
        bench = Bench(tmp_path / "agent", portal, runtime)
        portal.want(entry(spec_of(give_code(portal))))
        bench.start()
        portal.until(lambda: not portal.desired and not bench.runtime.containers, 20)  # type: ignore[attr-defined]
        assert portal.states(NAME)[-1] == "EXITED"
        assert portal.container(NAME)["exit_reason"] == "exited"
        bench.stop()

    def test_a_slow_engine_does_not_hold_up_the_reports(self, portal: FakePortal, tmp_path: Path) -> None:
        bench = Bench(tmp_path / "agent", portal, SlowRuntime(1.5))
        sha256 = give_code(portal)
        portal.want(*(entry(spec_of(sha256, f"sl-{job}-a1-0", job=job, env=FOREVER)) for job in range(1, 6)))
        bench.start()
        settle(0.3)
        before, began = len(portal.reports), time.monotonic()
        settle(2)
        assert (len(portal.reports) - before) / (time.monotonic() - began) > 1.2
        portal.until(
            lambda: (
                portal.reports[-1]["containers"]
                and all(item["state"] == "RUNNING" for item in portal.reports[-1]["containers"])
            ),
            30,
        )
        bench.stop()

    def test_one_slow_code_does_not_hold_up_another_job(self, bench: Bench, portal: FakePortal) -> None:
        slow, fast = give_code(portal, {"slow.py": b"1"}), give_code(portal, {"fast.py": b"2"})
        portal.faults = lambda path: "500" if slow in path else ""
        portal.want(entry(spec_of(slow)), entry(spec_of(fast, "sl-2-a1-0", job=2, env=FOREVER)))
        bench.start()
        portal.until(lambda: portal.container("sl-2-a1-0").get("state") == "RUNNING")
        assert portal.container(NAME)["state"] == "PREPARING"
        portal.faults = lambda path: ""
        portal.until(lambda: not [item for item in portal.desired if item["spec"]["name"] == NAME])

    def test_code_that_arrives_altered_is_not_run(self, bench: Bench, portal: FakePortal) -> None:
        sha256 = give_code(portal)
        honest = portal.code[sha256]
        portal.code[sha256] = honest[:-1] + b"\1"
        portal.want(entry(spec_of(sha256, env=FOREVER)))
        bench.start()
        portal.until(lambda: portal.requests[f"GET /agent/v1/code/{sha256}"] >= 2)
        assert not starts(bench.runtime)
        portal.code[sha256] = honest
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")

    def test_lost_and_failed_answers_cost_only_time(self, bench: Bench, portal: FakePortal) -> None:
        calls = 0

        def chaos(path: str) -> str:
            nonlocal calls
            calls += 1
            return {0: "500", 1: "lose", 2: "down"}.get(calls % 5, "")

        portal.faults = chaos
        output = "".join(f"line {number}\n" for number in range(1000))
        spec = spec_of(give_code(portal), env={"FAKE_OUTPUT": output, "FAKE_RUN_SECONDS": "1"})
        portal.want(entry(spec))
        bench.start()
        portal.until(lambda: bench.files.outputs(spec.attempt).exists(), 20)
        (bench.files.outputs(spec.attempt) / "a").write_bytes(b"a")
        portal.until(lambda: not portal.desired, 60)
        assert portal.log(NAME) == output.encode()
        assert portal.outputs == {(NAME, "a"): b"a"}
        assert starts(bench.runtime) == [NAME]

    def test_doubled_and_old_replies_start_nothing_twice(self, bench: Bench, portal: FakePortal) -> None:
        spec = spec_of(give_code(portal), env={"FAKE_RUN_SECONDS": "0.2"})
        portal.want(entry(spec))
        bench.start()
        portal.until(lambda: not portal.desired)
        portal.until(lambda: not bench.files.container(NAME).exists())
        for wanted in ("run", "run", "collect", "run", "stop"):
            portal.on_report = lambda report: None
            portal.want(entry(spec, wanted))
            settle(0.2)
            portal.want()
            settle(0.1)
        portal.want(entry(spec))
        portal.until(lambda: portal.container(NAME).get("state") == "EXITED")
        assert portal.container(NAME)["collected"]
        assert starts(bench.runtime) == [NAME]

    def test_a_reply_that_makes_no_sense_changes_nothing(self, bench: Bench, portal: FakePortal) -> None:
        spec = spec_of(give_code(portal), env=FOREVER)
        portal.want(entry(spec))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
        lease = bench.lease(NAME)
        portal.want({"spec": {"name": NAME}, "wanted": "dance"})
        settle(0.7)
        portal.want({**entry(spec), "wanted": "dance"})
        settle(0.7)
        assert bench.runtime.list()[0].state == "running"
        portal.want(entry(spec))
        portal.until(lambda: bench.lease(NAME) != lease)


class TestPortalAway:
    def test_containers_run_on_without_a_lease_and_everything_arrives_afterwards(
        self, bench: Bench, portal: FakePortal
    ) -> None:
        spec = spec_of(give_code(portal), env={"FAKE_RUN_SECONDS": "2.5", "FAKE_OUTPUT": "before\n"})
        portal.want(entry(spec))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING" and portal.log(NAME) == b"before\n")
        portal.down = True
        settle(0.3)
        lease = bench.lease(NAME)
        assert lease
        with open(bench.files.scribe(NAME) / "log/0.log", "ab") as file:
            file.write(b"meanwhile\n")
        (bench.files.outputs(spec.attempt) / "result").write_bytes(b"42")
        settle(1.0)
        assert bench.runtime.list()[0].state == "running"
        assert bench.lease(NAME) == lease, "a lease was renewed without the portal"
        settle(2.0)
        assert bench.runtime.list()[0].state == "exited"
        portal.down = False
        portal.until(lambda: not portal.desired, 30)
        assert portal.log(NAME) == b"before\nmeanwhile\n"
        assert portal.outputs == {(NAME, "result"): b"42"}

    def test_leases_are_renewed_by_each_reply(self, bench: Bench, portal: FakePortal) -> None:
        portal.want(entry(spec_of(give_code(portal), env=FOREVER)))
        bench.start()
        portal.until(lambda: bench.lease(NAME))
        first = bench.lease(NAME)
        portal.until(lambda: bench.lease(NAME) != first)

    def test_a_late_reply_renews_nothing(
        self, bench: Bench, portal: FakePortal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        portal.want(entry(spec_of(give_code(portal), env=FOREVER)))
        bench.start()
        portal.until(lambda: bench.lease(NAME))
        monkeypatch.setattr("runners.agent.PROMPT_SECONDS", 0.3)
        portal.slow_seconds = 0.6
        settle(1.0)
        lease = bench.lease(NAME)
        settle(2.0)
        assert bench.lease(NAME) == lease
        portal.slow_seconds = 0.0
        portal.until(lambda: bench.lease(NAME) != lease)

    def test_nothing_is_started_on_an_old_word(
        self, bench: Bench, portal: FakePortal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("runners.agent.PROMPT_SECONDS", 0.3)
        sha256 = give_code(portal)
        portal.faults = lambda path: "500" if "code" in path else ""
        portal.want(entry(spec_of(sha256, env=FOREVER)))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "PREPARING")
        portal.faults = lambda path: "down" if "sync" in path or "code" in path else ""
        settle(0.5)
        portal.faults = lambda path: "down" if "sync" in path else ""
        portal.until(bench.runtime.list)
        settle(1.0)
        assert [seen.state for seen in bench.runtime.list()] == ["created"]
        portal.faults = lambda path: ""
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")

    def test_an_agent_that_starts_while_the_portal_is_away_ends_nothing(self, bench: Bench, portal: FakePortal) -> None:
        portal.want(entry(spec_of(give_code(portal), env=FOREVER)))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
        bench.stop()
        portal.down = True
        bench.start()
        settle(0.7)
        assert [seen.state for seen in bench.runtime.list()] == ["running"]
        portal.down = False
        portal.until(lambda: portal.reports[-1]["full_pass"])
        assert [seen.state for seen in bench.runtime.list()] == ["running"]


class TestRestart:
    def test_the_next_agent_adopts_what_it_expects(self, bench: Bench, portal: FakePortal) -> None:
        spec = spec_of(give_code(portal), env={"FAKE_RUN_SECONDS": "3", "FAKE_OUTPUT": "one\n"})
        portal.want(entry(spec))
        bench.start()
        portal.until(lambda: portal.log(NAME) == b"one\n")
        bench.stop()
        with open(bench.files.scribe(NAME) / "log/0.log", "ab") as file:
            file.write(b"two\n")
        bench.start()
        portal.until(lambda: portal.log(NAME) == b"one\ntwo\n")
        portal.until(lambda: not portal.desired)
        assert starts(bench.runtime) == [NAME]
        assert portal.container(NAME)["exit_reason"] == "exited"
        assert "PREPARING" not in portal.states(NAME)[portal.states(NAME).index("RUNNING") :]

    def test_an_end_that_nobody_saw_is_found(self, bench: Bench, portal: FakePortal) -> None:
        portal.want(entry(spec_of(give_code(portal), env={"FAKE_RUN_SECONDS": "1", "FAKE_EXIT_CODE": "3"})))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
        bench.stop()
        settle(1.2)
        bench.start()
        portal.until(lambda: not portal.desired)
        assert (portal.container(NAME)["exit_code"], portal.container(NAME)["exit_reason"]) == (3, "exited")

    def test_what_nobody_expects_is_stopped_before_the_node_is_ready(self, bench: Bench, portal: FakePortal) -> None:
        sha256 = give_code(portal)
        stranger = spec_of(sha256, "sl-9-a1-0", job=9, env=FOREVER)
        bench.runtime.create(stranger, bench.files.make_container(stranger))
        bench.runtime.start(stranger.name)
        bench.start()
        portal.until(lambda: portal.reports and portal.reports[-1]["full_pass"])
        assert bench.runtime.list() == []
        assert not portal.reports[0]["full_pass"]
        assert not bench.files.container(stranger.name).exists()

    def test_a_node_is_not_ready_before_the_stranger_is_gone(self, portal: FakePortal, tmp_path: Path) -> None:
        runtime = BadRuntime(("remove",), times=3)
        bench = Bench(tmp_path / "agent", portal, runtime)
        stranger = spec_of(give_code(portal), "sl-9-a1-0", job=9)
        runtime.create(stranger, bench.files.make_container(stranger))
        bench.start()
        portal.until(lambda: len(portal.reports) > 2)
        assert not portal.reports[-1]["full_pass"]
        portal.until(lambda: portal.reports[-1]["full_pass"], 15)
        assert runtime.containers == {}
        bench.stop()

    @pytest.mark.parametrize("crash", ["create", "start", "unpack", "fetch", "finish", "collect", "forget"])
    def test_a_death_at_any_point_starts_nothing_twice(
        self, bench: Bench, portal: FakePortal, monkeypatch: pytest.MonkeyPatch, crash: str
    ) -> None:
        """The agent dies right after the named step, before it could write down that it was done."""
        spec = spec_of(give_code(portal), env={"FAKE_RUN_SECONDS": "0.5", "FAKE_OUTPUT": "all of it\n"})
        portal.want(entry(spec))
        agent = bench.start()
        died = []

        class DeadError(BaseException):
            pass

        def dies(work):  # noqa: ANN001, ANN202
            def die(*args: object, **kwargs: object) -> None:
                work(*args, **kwargs)
                if not died:
                    died.append(True)
                    agent._stopping = True
                    raise DeadError

            return die

        if crash in ("create", "start"):
            monkeypatch.setattr(bench.runtime, crash, dies(getattr(bench.runtime, crash)))
        elif crash == "unpack":
            monkeypatch.setattr("runners.hands.unpack", dies(__import__("runners.hands").hands.unpack))
        elif crash == "fetch":
            monkeypatch.setattr(agent.code, "fetch", dies(agent.code.fetch))
        elif crash == "forget":
            monkeypatch.setattr("runners.ledger.delete_tree", dies(__import__("runners.ledger").ledger.delete_tree))
        else:
            monkeypatch.setattr(agent.hands, f"_{crash}", dies(getattr(agent.hands, f"_{crash}")))
        monkeypatch.setattr("threading.excepthook", lambda args: None)
        portal.until(lambda: died)
        bench.stop()
        bench.start()
        portal.until(lambda: not portal.desired)
        portal.until(lambda: not bench.files.container(NAME).exists())
        assert [name for verb, name in bench.runtime.calls if verb == "start"].count(NAME) <= 2  # type: ignore[attr-defined]
        assert portal.log(NAME) == b"all of it\n", "it ran not at all, or twice"
        assert portal.container(NAME)["exit_reason"] == "exited"

    def test_stop_jobs_on_exit_leaves_nothing_running_and_says_lost(self, bench: Bench, portal: FakePortal) -> None:
        portal.want(entry(spec_of(give_code(portal), env=FOREVER)))
        agent = bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
        agent.stop(stop_jobs=True)
        bench.agent = None
        assert [seen.state for seen in bench.runtime.list()] == ["exited"]
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "EXITED")
        assert portal.container(NAME)["exit_reason"] == "lost"


class TestStubborn:
    def test_one_that_does_not_stop_is_ended_through_the_runtime(
        self, portal: FakePortal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Deaf(FakeRuntime):
            """Its supervisor reads no control.json."""

            def create(self, spec: object, folders: Folders) -> None:
                super().create(
                    spec,
                    Folders(folders.workspace, tmp_path / "none", folders.scribe, folders.outputs, folders.checkpoints),
                )  # type: ignore[arg-type]

        monkeypatch.setattr("runners.loops.Patience.__init__.__defaults__", (0.3,))
        bench = Bench(tmp_path / "agent", portal, Deaf())
        spec = spec_of(give_code(portal), env=FOREVER, grace_seconds=0)
        portal.want(entry(spec))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
        portal.on_report = lambda report: None
        portal.want(entry(spec, "stop"))
        portal.until(lambda: portal.container(NAME).get("state") == "EXITED")
        assert portal.container(NAME)["exit_reason"] == "stopped"
        bench.stop()

    def test_exit_json_alone_ends_nothing(self, bench: Bench, portal: FakePortal) -> None:
        """Users' code can write it: the GPUs are free when the container is gone, not when it says so."""
        portal.want(entry(spec_of(give_code(portal), env=FOREVER)))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
        (bench.files.scribe(NAME) / "exit.json").write_text('{"code": 0, "reason": "exited"}')
        settle(0.5)
        assert portal.container(NAME)["state"] == "RUNNING"

    def test_a_container_that_never_comes_up_can_be_stopped(self, portal: FakePortal, tmp_path: Path) -> None:
        bench = Bench(tmp_path / "agent", portal, NeverRuntime())
        spec = spec_of(give_code(portal), env=FOREVER)
        portal.want(entry(spec))
        bench.start()
        portal.until(lambda: starts(bench.runtime))
        portal.on_report = lambda report: None
        portal.want(entry(spec, "stop"))
        portal.until(lambda: portal.container(NAME).get("state") == "EXITED")
        portal.until(lambda: not bench.runtime.list())
        bench.stop()

    def test_what_the_portal_gave_up_is_ended_even_when_it_runs(self, bench: Bench, portal: FakePortal) -> None:
        spec = spec_of(give_code(portal), env=FOREVER)
        portal.want(entry(spec))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
        portal.want(entry(spec, "collect"))
        portal.until(lambda: not portal.desired)
        portal.until(lambda: not bench.runtime.list())


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
        bench = Bench(tmp_path / "agent", portal, BadRuntime(("list",), times=10**6))
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

    def test_a_ring_of_the_bell_is_answered_at_once(
        self, bench: Bench, portal: FakePortal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("runners.agent.SYNC_SECONDS", 30.0)
        bench.start()
        portal.until(lambda: portal.reports and portal.reports[-1]["full_pass"])
        settle(0.3)
        began = time.monotonic()
        portal.want(entry(spec_of(give_code(portal), env=FOREVER)))
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING", 5)
        assert time.monotonic() - began < 2


def test_the_fake_observes_like_the_real(bench: Bench) -> None:
    spec = spec_of("0" * 64)
    bench.runtime.create(spec, bench.files.make_container(spec))
    assert bench.runtime.list() == [Observed(NAME, job=1, attempt=11, epoch=1, state="created")]


def test_a_hostile_container_leaks_nothing_and_holds_up_nobody(
    bench: Bench, portal: FakePortal, tmp_path: Path
) -> None:
    """Everything a container may write is replaced by traps while it runs."""
    secret = tmp_path / "secret"
    secret.write_text('{"phase": "the secret", "code": 0, "reason": "exited", "detail": "the secret"}')
    sha256 = give_code(portal)
    hostile = spec_of(sha256, env={"FAKE_RUN_SECONDS": "1.5"}, slots=4)
    honest = spec_of(sha256, "sl-2-a1-0", job=2, env={"FAKE_RUN_SECONDS": "1.5", "FAKE_OUTPUT": "honest\n"})
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
    settle(0.5)
    (scribe / "exit.json").unlink()
    (scribe / "exit.json").symlink_to(secret)
    bench.runtime.signal(NAME, 9)
    portal.until(lambda: not portal.desired, 30)
    assert portal.log("sl-2-a1-0") == b"honest\n"
    assert portal.outputs == {(NAME, "honest"): b"kept"}
    assert portal.container(NAME)["exit_code"] == 137
    everything = json.dumps(portal.reports) + str(portal.logs) + str(portal.outputs)
    assert "the secret" not in everything
