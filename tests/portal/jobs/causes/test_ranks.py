"""The rank that failed by itself is to blame, whatever the others report and whenever they write it."""

from collections.abc import Sequence

import pytest

from portal.jobs.causes import Cause, Facts, classify
from portal.jobs.causes.output import Line, Output

FAILED = Facts(outcome="failed", exit_reason="exited", exit_code=1)
LOST = "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:14016."
SHUT_DOWN = (
    "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was caused by an exception."
)
WAITED = (
    "RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete"
)


def traceback(error: str, place: str = "main.py") -> list[str]:
    return [
        "Traceback (most recent call last):",
        f'  File "/workspace/{place}", line 9, in <module>',
        "    train()",
        error,
    ]


def output(lines: Sequence[str], rank: int, ms: int = 1000, exit_code: int | None = None) -> Output:
    return Output([Line(ms, line) for line in lines], slot=str(rank), rank=rank, exit_code=exit_code)


def setup(*lines: str) -> Output:
    return Output([Line(2000, line) for line in lines], slot="setup")


def torchrun_summary(first: int, exits: dict[int, int]) -> Output:
    lines = ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "Failures:"]
    for rank, code in exits.items():
        lines += ["Root Cause (first observed failure):"] if rank == first else []
        lines += [f"  rank      : {rank} (local_rank: {rank})", f"  exitcode  : {code} (pid: 1{rank})"]
    return setup(*traceback(lines[0], "run.py")[:-1], *lines)


def found(cause: Cause) -> tuple[str, int | None]:
    return cause.code, cause.rank


@pytest.mark.parametrize("consequence", [LOST, SHUT_DOWN, WAITED])
@pytest.mark.parametrize("late", [False, True], ids=["the others write it later", "it writes it last"])
def test_an_error_of_its_own_beats_a_consequence(consequence: str, late: bool) -> None:
    ranks = [
        output(traceback(consequence), 0, 1500),
        output(traceback("ValueError: bad row"), 1, 1900 if late else 1000),
    ]
    cause = classify(FAILED, ranks)
    assert (cause.code, cause.rank, cause.detail) == ("exception", 1, "ValueError: bad row\nmain.py:9: train()")


def test_of_two_errors_the_first_counts() -> None:
    ranks = [output(traceback("KeyError: 'b'"), 0, 5000), output(traceback("ValueError: a"), 1, 1000)]
    assert classify(FAILED, ranks).parameters["name"] == "ValueError"


def test_where_all_fail_alike_no_rank_is_named() -> None:
    ranks = [output(traceback("ValueError: a"), rank, 1000 + rank) for rank in range(4)]
    assert found(classify(FAILED, ranks)) == ("exception", None)


def test_a_crash_that_torchrun_saw_first_counts() -> None:
    ranks = [output(traceback(LOST), 0), output(["step 4"], 1)]
    cause = classify(FAILED, [torchrun_summary(1, {0: -15, 1: -11}), *ranks])
    assert (found(cause), cause.parameters) == (("signal", 1), {"name": "SIGSEGV"})


def test_a_crash_that_follows_from_a_lost_peer_does_not() -> None:
    watchdog = [
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "  what():  NCCL error: remote process exited or there was a network error, NCCL version 2.28.9",
    ]
    ranks = [output(watchdog, 0), output(traceback("torch.OutOfMemoryError: CUDA out of memory."), 1)]
    assert found(classify(FAILED, [torchrun_summary(0, {0: -6, 1: 1}), *ranks])) == ("gpu_out_of_memory", 1)


def test_a_rank_that_left_without_a_word_is_named_with_its_exit_code() -> None:
    launcher = setup("Rank 1 ended with exit code 77", "Rank 0 ended with exit code 143")
    cause = classify(FAILED, [launcher, output(traceback(SHUT_DOWN), 0), output(["step 2"], 1)])
    assert (found(cause), cause.parameters, cause.detail) == (
        ("exit_code", 1),
        {"number": 77, "quoted": True},
        "step 2",
    )


def test_a_text_with_which_a_rank_left_is_quoted() -> None:
    launcher = setup("Rank 1 ended with exit code 1", "Rank 0 ended with exit code 143")
    cause = classify(FAILED, [launcher, output(traceback(SHUT_DOWN), 0), output(["rank 1 sees no data"], 1)])
    assert (found(cause), cause.detail) == (("exit_code", 1), "rank 1 sees no data")


def test_only_consequences_say_that_the_ranks_lost_each_other_and_first_that_one_waited() -> None:
    lost = [output(traceback(LOST), 0, 1000), output(traceback(SHUT_DOWN), 1, 1001)]
    assert classify(FAILED, lost).code == "ring"
    waited = [output(traceback(LOST), 0, 1000), output(traceback(WAITED), 1, 1001)]
    assert found(classify(FAILED, waited)) == ("waited_for_rank", 1)


@pytest.mark.parametrize("name", ["ConnectionResetError", "urllib3.exceptions.ProtocolError", "BrokenPipeError"])
def test_a_connection_of_the_code_itself_is_not_that_of_the_ranks(name: str) -> None:
    error = f"{name}: [Errno 104] Connection reset by peer"
    assert found(classify(FAILED, [output(traceback(error), 0, exit_code=1)])) == ("exception", None)
    ranks = [output(traceback(LOST), 0, 1000), output(traceback(error), 1, 1001)]
    assert found(classify(FAILED, ranks)) == ("exception", 1)


def test_the_summary_of_the_launcher_is_no_cause() -> None:
    ranks = [output(["Usage: main.py [OPTIONS]", "", "Error: No such option: --epoch"], rank) for rank in range(2)]
    cause = classify(FAILED, [torchrun_summary(0, {0: 2, 1: 2}), *ranks])
    assert (found(cause), cause.detail) == (("arguments", None), "Error: No such option: --epoch")


def test_a_launcher_that_fails_itself_is_quoted() -> None:
    error = "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect."
    assert "client socket has timed out" in classify(FAILED, [setup(*traceback(error))]).detail


def test_ranks_that_one_command_started_write_into_one_stream() -> None:
    lines = [*traceback("ValueError: bad row"), *traceback(LOST), *traceback("pkg.errors.ChildFailedError: ", "run.py")]
    cause = classify(FAILED, [Output([Line(0, line) for line in lines])])
    assert cause.detail == "ValueError: bad row\nmain.py:9: train()"


@pytest.mark.parametrize(
    ("code", "after", "cause"),
    [
        (1, [], "exception"),
        (1, ["wandb: synced", "a.py:3: UserWarning: x", "  warnings.warn(x)"], "exception"),
        (1, ["Exception ignored in atexit callback: <f>", *traceback("OSError: away")], "exception"),
        (1, ["closing files"], "exception"),
        (3, ["the accuracy is too low"], "exit_code"),
        (1, [f"step {n}" for n in range(30)], "exit_code"),
        (143, [], "exception"),
        (-11, [], "exception"),
    ],
)
def test_a_program_that_went_on_has_handled_its_exception(code: int, after: list[str], cause: str) -> None:
    lines = [*traceback("ValueError: bad row"), *after]
    assert classify(FAILED, [output(lines, 0, exit_code=code)]).code == cause


def test_what_was_written_much_later_was_written_by_a_program_that_went_on() -> None:
    early = [Line(1000, line) for line in traceback("ValueError: bad row")]
    late = Output([*early, Line(60_000, "accuracy too low")], exit_code=1)
    assert classify(FAILED, [late]).detail == "accuracy too low"
