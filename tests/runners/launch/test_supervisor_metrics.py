"""Metrics that ranks report and the batch that is chosen for them, through files beside their container's log."""

from pathlib import Path

from tests.runners.launching import attempt, until

REPORTS = 'echo printed; printf "%s\\n" one two >"$SCHEDULEARN_METRICS"; printf three >>"$SCHEDULEARN_METRICS"'
READS = 'until [ "$(cat "$SCHEDULEARN_BATCH" 2>/dev/null)" = "$1" ]; do sleep 0.05; done; echo "batch $1"'


def test_what_is_written_to_the_pipe_is_a_stream_beside_the_log(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        host = made.container(("sh", "-c", REPORTS)).start()
        assert host.wait() == {"code": 0, "reason": "exited", "detail": ""}
        assert host.log("metrics") == "one\ntwo\nthree"
        assert host.log() == "printed\n"
        assert host.labels()["metrics"] == "metrics"


def test_a_job_without_metrics_has_no_such_stream(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        host = made.container(("true",)).start()
        host.wait()
        assert not (host.scribe / "log" / "metrics.log").exists()
        assert "metrics" not in host.labels()


def test_a_process_that_keeps_the_pipe_open_does_not_keep_the_container(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        host = made.container(
            ("sh", "-c", 'exec 3>"$SCHEDULEARN_METRICS"; echo last >&3; setsid sleep 100 & true')
        ).start()
        assert host.wait(30)["code"] == 0
        assert host.log("metrics") == "last\n"


def test_ranks_read_the_batch_that_was_chosen_last(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        host = made.container(("sh", "-c", f"set -- 128; {READS}; set -- 96; {READS}")).start()
        until(lambda: host.process is not None)
        host.tell(batch=128)
        until(lambda: "batch 128" in host.log(), summary=host.summary)
        host.tell(batch=96)
        assert host.wait()["code"] == 0
        assert "batch 96" in host.log()
