"""An agent that follows another one, and containers that do not obey."""

from collections.abc import Callable
from pathlib import Path

import pytest

from runners.agent import actions, journal
from runners.runtime import Folders
from runners.runtimes.fake import FailingRuntime, FakeRuntime, StuckRuntime
from runners.spec import RunSpec
from tests.fake_portal import FakePortal
from tests.runners.agent_bench import FOREVER, NAME, Bench, entry, give_code, spec_of, starts

pytestmark = pytest.mark.usefixtures("quick_agent")


class TestRestart:
    def test_the_next_agent_adopts_what_it_expects(self, bench: Bench, portal: FakePortal) -> None:
        spec = spec_of(give_code(portal), env={"FAKE_RUN_SECONDS": "600", "FAKE_OUTPUT": "one\n"})
        portal.want(entry(spec))
        bench.start()
        portal.until(lambda: portal.log(NAME) == b"one\n")
        bench.stop()
        with open(bench.files.scribe(NAME) / "log/0.log", "ab") as file:
            file.write(b"two\n")
        bench.start()
        portal.until(lambda: portal.log(NAME) == b"one\ntwo\n")
        bench.pass_time(601)
        portal.until(lambda: not portal.desired)
        assert starts(bench.runtime) == [NAME]
        assert portal.container(NAME)["exit_reason"] == "exited"
        assert "PREPARING" not in portal.states(NAME)[portal.states(NAME).index("RUNNING") :]

    def test_an_unobserved_end_is_found(self, bench: Bench, portal: FakePortal) -> None:
        portal.want(entry(spec_of(give_code(portal), env={"FAKE_RUN_SECONDS": "600", "FAKE_EXIT_CODE": "3"})))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
        bench.stop()
        bench.pass_time(601)
        assert [seen.exit_code for seen in bench.runtime.list()] == [3]
        bench.start()
        portal.until(lambda: not portal.desired)
        assert (portal.container(NAME)["exit_code"], portal.container(NAME)["exit_reason"]) == (3, "exited")

    def test_unexpected_containers_are_stopped_before_the_node_is_ready(self, bench: Bench, portal: FakePortal) -> None:
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
        runtime = FailingRuntime(("remove",), times=3)
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
        died: list[bool] = []

        class DeadError(BaseException):
            pass

        def dies(work: Callable[..., object]) -> Callable[..., None]:
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
            monkeypatch.setattr("runners.agent.actions.unpack", dies(actions.unpack))
        elif crash == "fetch":
            monkeypatch.setattr(agent.code, "fetch", dies(agent.code.fetch))
        elif crash == "forget":
            monkeypatch.setattr("runners.agent.journal.delete_tree", dies(journal.delete_tree))
        else:
            monkeypatch.setattr(agent.executor, f"_{crash}", dies(getattr(agent.executor, f"_{crash}")))
        monkeypatch.setattr("threading.excepthook", lambda args: None)
        portal.until(lambda: died)
        bench.stop()
        bench.start()
        portal.until(lambda: not portal.desired)
        portal.until(lambda: not bench.files.container(NAME).exists())
        assert [name for verb, name in bench.runtime.calls if verb == "start"].count(NAME) <= 2  # type: ignore[attr-defined]
        assert portal.log(NAME) == b"all of it\n", "it ran not at all, or twice"
        assert portal.container(NAME)["exit_reason"] == "exited"

    def test_stop_jobs_on_exit_leaves_nothing_running_and_reports_lost(self, bench: Bench, portal: FakePortal) -> None:
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

            def create(self, spec: RunSpec, folders: Folders) -> None:
                super().create(
                    spec,
                    Folders(folders.workspace, tmp_path / "none", folders.scribe, folders.outputs, folders.checkpoints),
                )

        monkeypatch.setattr("runners.agent.loops.OverdueTracker.__init__.__defaults__", (0.3,))
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
        """Users' code can write it: the GPUs are free when the container is gone, not when the file exists."""
        portal.want(entry(spec_of(give_code(portal), env=FOREVER)))
        bench.start()
        portal.until(lambda: portal.container(NAME).get("state") == "RUNNING")
        (bench.files.scribe(NAME) / "exit.json").write_text('{"code": 0, "reason": "exited"}')
        portal.until_reports(3)
        assert portal.container(NAME)["state"] == "RUNNING"

    def test_a_container_that_never_comes_up_can_be_stopped(self, portal: FakePortal, tmp_path: Path) -> None:
        bench = Bench(tmp_path / "agent", portal, StuckRuntime())
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
