"""The agent against a portal and a runtime that fail in every way they can."""

import errno
import json
import os
import random
import threading
import time
from pathlib import Path

import pytest

from runners.agent import actions
from runners.agent.leases import renew_lease
from runners.agent.portal_client import Backoff
from runners.agent.program import RETRY_SECONDS
from runners.host.node_files import NodeFiles, write_json
from runners.launch.log_writer import RESERVE, RESERVE_BYTES, reserve_space
from runners.messages import Quotation
from runners.runtime import TransientCreateError
from runners.runtimes.fake import FailingRuntime, FakeRuntime
from tests.fake_portal import FakePortal
from tests.runners.agent_bench import FOREVER, NAME, Bench, entry, give_code, spec_of, starts

pytestmark = pytest.mark.usefixtures("quick_agent")

SYNC = "POST /agent/v1/sync"
FAILED = Backoff.next_pause
"""As it is, without the limit that ``quick_agent`` sets."""


class TestFailures:
    def test_an_engine_that_fails_now_and_then_is_asked_again(self, portal: FakePortal, tmp_path: Path) -> None:
        runtime = FailingRuntime(("list", "create", "start", "remove", "logs"), times=2)
        bench = Bench(tmp_path / "agent", portal, runtime)
        portal.want(entry(spec_of(give_code(portal))))
        bench.start()
        portal.until(lambda: not portal.desired and not bench.runtime.containers, 20)  # type: ignore[attr-defined]
        assert portal.states(NAME)[-1] == "EXITED"
        assert portal.container(NAME)["exit_reason"] == "exited"
        bench.stop()

    def test_an_engine_in_trouble_is_asked_again(self, portal: FakePortal, tmp_path: Path) -> None:
        runtime = FailingRuntime(("create", "start"), times=2, error=TransientCreateError("No disk."))
        bench = Bench(tmp_path / "agent", portal, runtime)
        portal.want(entry(spec_of(give_code(portal))))
        bench.start()
        portal.until(lambda: not portal.desired, 20)
        assert portal.container(NAME)["exit_reason"] == "exited"
        bench.stop()

    def test_but_not_for_ever(self, portal: FakePortal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(actions, "TRANSIENT_ERROR_SECONDS", 0.5)
        bench = Bench(
            tmp_path / "agent", portal, FailingRuntime(("start",), times=99, error=TransientCreateError("No disk."))
        )
        portal.want(entry(spec_of(give_code(portal))))
        bench.start()
        portal.until(lambda: not portal.desired, 20)
        assert (portal.container(NAME)["exit_reason"], portal.container(NAME)["detail"]) == ("create_error", "No disk.")
        assert starts(bench.runtime).count(NAME) > 1
        bench.stop()

    def test_a_slow_engine_does_not_hold_up_the_reports(self, portal: FakePortal, tmp_path: Path) -> None:
        class Stuck(FakeRuntime):
            """Answers nothing until the test lets it; then every verb at once."""

            answers = threading.Event()

            def _record_call(self, verb: str, name: str) -> None:
                super()._record_call(verb, name)
                self.answers.wait(60)

        bench = Bench(tmp_path / "agent", portal, runtime := Stuck())
        sha256 = give_code(portal)
        portal.want(*(entry(spec_of(sha256, f"sl-{job}-a1-0", job=job, env=FOREVER)) for job in range(1, 6)))
        bench.start()
        portal.until(lambda: runtime.calls)
        portal.until_reports(4)
        assert not runtime.containers
        runtime.answers.set()
        portal.until(
            lambda: (
                portal.reports[-1]["containers"]
                and all(item["state"] == "RUNNING" for item in portal.reports[-1]["containers"])
            ),
            30,
        )
        bench.stop()

    def test_outputs_that_the_portal_takes_slowly_do_not_hold_up_leases(
        self, bench: Bench, portal: FakePortal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One job's files are under way for as long as the test likes; the next job's lease goes on being renewed."""
        taken, asked, take = threading.Event(), threading.Event(), portal.put

        def slowly(container: str, path: str, body: bytes) -> tuple[int, dict[str, object]]:
            asked.set()
            taken.wait(60)
            return take(container, path, body)

        monkeypatch.setattr(portal, "put", slowly)
        sha256, other = give_code(portal), "sl-2-a1-0"
        spec = spec_of(sha256, env=FOREVER)
        portal.want(entry(spec), entry(spec_of(sha256, other, job=2, env=FOREVER)))
        bench.start()
        portal.until(lambda: all(portal.container(name).get("state") == "RUNNING" for name in (NAME, other)))
        for number in range(20):
            (bench.files.outputs(spec.attempt) / f"{number}.bin").write_bytes(b"x")
            os.utime(bench.files.outputs(spec.attempt) / f"{number}.bin", (1, 1))
        portal.want(entry(spec, "stop"), entry(spec_of(sha256, other, job=2, env=FOREVER)))
        portal.until(asked.is_set)
        for _ in range(3):
            before = bench.lease(other)
            portal.until(lambda before=before: bench.lease(other) != before)  # type: ignore[misc]
        portal.until(lambda: portal.states(NAME)[-1:] == ["EXITED"])
        assert not portal.outputs
        taken.set()
        portal.until(lambda: len(portal.outputs) == 20)

    def test_one_slow_code_does_not_hold_up_another_job(self, bench: Bench, portal: FakePortal) -> None:
        slow, fast = give_code(portal, {"slow.py": b"1"}), give_code(portal, {"fast.py": b"2"})
        portal.faults = lambda path: "500" if slow in path else ""
        portal.want(entry(spec_of(slow)), entry(spec_of(fast, "sl-2-a1-0", job=2, env=FOREVER)))
        bench.start()
        portal.until(lambda: portal.container("sl-2-a1-0").get("state") == "RUNNING")
        assert portal.container(NAME)["state"] == "PREPARING"
        portal.faults = lambda path: ""
        portal.until(lambda: not [item for item in portal.desired if item["spec"]["name"] == NAME])

    def test_a_container_whose_gpu_is_in_use_outside_the_portal_ends_before_it_starts(
        self, bench: Bench, portal: FakePortal
    ) -> None:
        bench.start().executor.gpu_conflict = lambda gpus: (
            Quotation(f"{gpus[0]} is in use outside the portal.") if gpus else None
        )
        portal.want(entry(spec_of(give_code(portal), env=FOREVER, gpus=("cpu-0",))))
        portal.until(lambda: portal.states(NAME)[-1:] == ["EXITED"])
        ended = portal.container(NAME)
        assert ended["exit_reason"] == "create_error" and "cpu-0 is in use outside the portal" in ended["detail"]
        assert not starts(bench.runtime)

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
        chance = random.Random(6)  # a fixed order could meet the same of the agent's requests again and again
        portal.faults = lambda path: chance.choice(("500", "lose", "down", "", ""))
        output = "".join(f"line {number}\n" for number in range(1000))
        spec = spec_of(give_code(portal), env={"FAKE_OUTPUT": output, "FAKE_RUN_SECONDS": "600"})
        portal.want(entry(spec))
        bench.start()
        portal.until(lambda: bench.files.outputs(spec.attempt).exists(), 20)
        (bench.files.outputs(spec.attempt) / "a").write_bytes(b"a")
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
        portal.until_reports(6)
        bench.pass_time(601)
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
            portal.until_reports()
            portal.want()
            portal.until_reports()
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
        portal.until_reports(3)
        portal.want({**entry(spec), "wanted": "dance"})
        portal.until_reports(3)
        assert bench.runtime.list()[0].state == "running"
        portal.want(entry(spec))
        portal.until(lambda: bench.lease(NAME) != lease)


class TestPortalAway:
    def test_containers_run_on_without_a_lease_and_everything_arrives_afterwards(
        self, bench: Bench, portal: FakePortal
    ) -> None:
        spec = spec_of(give_code(portal), env={"FAKE_RUN_SECONDS": "600", "FAKE_OUTPUT": "before\n"})
        portal.want(entry(spec))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING" and portal.log(NAME) == b"before\n")
        portal.down = True
        portal.until_asked(SYNC)  # a report that was under way has been answered
        lease = bench.lease(NAME)
        assert lease
        with open(bench.files.scribe(NAME) / "log/0.log", "ab") as file:
            file.write(b"meanwhile\n")
        (bench.files.outputs(spec.attempt) / "result").write_bytes(b"42")
        portal.until_asked(SYNC, 3)
        assert bench.runtime.list()[0].state == "running"
        assert bench.lease(NAME) == lease, "a lease was renewed without the portal"
        bench.pass_time(601)
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

    def test_a_lease_that_cannot_be_written_does_not_keep_the_others_from_theirs(
        self, bench: Bench, portal: FakePortal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def renew(files: NodeFiles, name: str, sent_at: float) -> None:
            if name == NAME:
                raise OSError(5, "Input/output error")
            renew_lease(files, name, sent_at)

        sha256 = give_code(portal)
        other = "sl-2-a1-0"
        portal.want(entry(spec_of(sha256, env=FOREVER)), entry(spec_of(sha256, other, job=2, env=FOREVER)))
        bench.start()
        portal.until(lambda: bench.lease(NAME) and bench.lease(other))
        monkeypatch.setattr("runners.agent.program.renew_lease", renew)
        before = bench.lease(other)
        portal.until(lambda: bench.lease(other) != before)

    def test_a_container_waits_for_room_on_a_full_disk(
        self, bench: Bench, portal: FakePortal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        full = [True]

        def keep(folder: Path) -> None:
            if full[0]:
                raise OSError(errno.ENOSPC, "No space left on device")
            reserve_space(folder)

        monkeypatch.setattr("runners.agent.actions.reserve_space", keep)
        portal.want(entry(spec_of(give_code(portal), env=FOREVER)))
        bench.start()
        portal.until(lambda: "full" in portal.container(NAME).get("detail", ""))
        assert portal.container(NAME)["state"] == "PREPARING"
        full[0] = False
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
        assert (bench.files.scribe(NAME) / RESERVE).stat().st_size == RESERVE_BYTES

    def test_a_late_reply_renews_a_lease_that_counts_from_the_report(
        self, bench: Bench, portal: FakePortal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        portal.want(entry(spec_of(give_code(portal), env=FOREVER)))
        bench.start()
        portal.until(lambda: bench.lease(NAME))
        write_json(bench.files.scribe(NAME) / "status.json", {"lease": "report"})
        monkeypatch.setattr("runners.agent.program.MAX_REPLY_SECONDS", 0.05)
        portal.slow_seconds = 0.15
        portal.until_reports()
        lease = bench.lease(NAME)
        portal.until(lambda: bench.lease(NAME) != lease)
        renewed = json.loads(bench.lease(NAME))
        assert time.monotonic() - renewed["sent_at"] >= 0.15

    def test_a_late_reply_renews_nothing_that_counts_from_the_reply(
        self, bench: Bench, portal: FakePortal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        portal.want(entry(spec_of(give_code(portal), env=FOREVER)))
        bench.start()
        portal.until(lambda: bench.lease(NAME))
        with monkeypatch.context() as late:
            late.setattr("runners.agent.program.MAX_REPLY_SECONDS", 0.05)
            portal.slow_seconds = 0.15
            portal.until_reports()
            lease = bench.lease(NAME)
            portal.until_reports(4)
            assert bench.lease(NAME) == lease
            portal.slow_seconds = 0.0
        portal.until(lambda: bench.lease(NAME) != lease)

    def test_nothing_is_started_on_an_old_reply(
        self, bench: Bench, portal: FakePortal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sha256 = give_code(portal)
        portal.faults = lambda path: "500" if "code" in path else ""
        portal.want(entry(spec_of(sha256, env=FOREVER)))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "PREPARING")
        portal.faults = lambda path: "down" if "sync" in path or "code" in path else ""
        assert bench.agent is not None
        portal.until_asked(SYNC)
        bench.agent._replied_at -= 60  # the portal's last word is a minute old
        portal.faults = lambda path: "down" if "sync" in path else ""
        portal.until(bench.runtime.list)
        portal.until_asked(SYNC, 4)
        assert [seen.state for seen in bench.runtime.list()] == ["created"]
        portal.faults = lambda path: ""
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")

    @pytest.mark.parametrize("runs", [True, False])
    def test_an_agent_whose_leases_run_out_tries_again_every_second(
        self, bench: Bench, portal: FakePortal, monkeypatch: pytest.MonkeyPatch, runs: bool
    ) -> None:
        agent = bench.start()
        portal.want(*([entry(spec_of(give_code(portal), env=FOREVER))] if runs else []))
        portal.until(lambda: portal.reports and portal.reports[-1]["full_pass"])
        portal.until(lambda: not runs or portal.container(NAME).get("state") == "RUNNING")
        portal.down = True
        portal.until(lambda: agent._backoff.failures > 0)  # what was under way has come back
        monkeypatch.setattr("runners.agent.program.SYNC_SECONDS", 60.0)
        monkeypatch.setattr("runners.agent.program.RETRY_SECONDS", RETRY_SECONDS)
        monkeypatch.setattr(Backoff, "next_pause", FAILED)
        agent._backoff.failures = 20
        agent._sync_not_before = 0.0
        rest = agent._sync()
        assert rest is not None and (rest <= RETRY_SECONDS) == runs

    def test_an_agent_that_starts_while_the_portal_is_away_ends_nothing(self, bench: Bench, portal: FakePortal) -> None:
        portal.want(entry(spec_of(give_code(portal), env=FOREVER)))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
        bench.stop()
        portal.down = True
        bench.start()
        portal.until_asked(SYNC, 3)
        assert [seen.state for seen in bench.runtime.list()] == ["running"]
        portal.down = False
        portal.until(lambda: portal.reports[-1]["full_pass"])
        assert [seen.state for seen in bench.runtime.list()] == ["running"]
