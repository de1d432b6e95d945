"""Causes are found in the logs of real failures."""

import json
import re
import time
from dataclasses import asdict, replace
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from portal.cluster.models import Gpu
from portal.jobs import causes, lifecycle, logs
from portal.jobs.causes import Facts
from portal.jobs.causes.output import Output, read_lines
from portal.jobs.models import Attempt
from portal.jobs.rules import LOSSES_IN_A_ROW
from portal.sentences.causes import explain_cause
from portal.ui import duration
from runners.messages import Quotation
from runners.messages.containers import CheckpointsNotKept, EnvironmentMissing, InvalidName, WithRemark
from runners.messages.launch import RanksApart
from tests.portal.jobs_world import exit, make_environment, make_job, make_node, make_project, make_user, place

FAILED = Facts(outcome="failed", exit_reason="exited", exit_code=1)


def classify(facts: Facts, tail: str) -> dict[str, str]:
    """The cause of a job with one rank that wrote ``tail``, in words, as a page shows it after it was stored."""
    return explain_cause(json.loads(json.dumps(asdict(causes.classify(facts, [Output(read_lines(tail.encode()))])))))


TRACE = 'Traceback (most recent call last):\n  File "/workspace/train.py", line 12, in <module>\n    main()\n'


@pytest.mark.parametrize(
    ("tail", "code", "words"),
    [
        (
            TRACE
            + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB",
            "gpu_out_of_memory",
            "GPU's memory",
        ),
        (
            TRACE + "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
            "gpu_out_of_memory",
            "GPU",
        ),
        (TRACE + "ModuleNotFoundError: No module named 'sklearn.datasets'", "import_error", "sklearn.datasets"),
        (TRACE + "ImportError: cannot import name 'Foo' from 'torch'", "import_error", "import failed"),
        (
            '  File "/workspace/train.py", line 3\n    def x(:\n          ^\nSyntaxError: invalid syntax',
            "syntax_error",
            "could not read train.py:3",
        ),
        (TRACE + "IndentationError: unexpected indent", "syntax_error", "could not read train.py:12"),
        (
            TRACE + "FileNotFoundError: [Errno 2] No such file or directory: 'data/mnist.npz'",
            "file_not_found",
            "data/mnist.npz",
        ),
        (
            "python: can't open file '/workspace/trian.py': [Errno 2] No such file or directory",
            "file_not_found",
            "trian.py",
        ),
        (TRACE + "OSError: [Errno 28] No space left on device: '/outputs/x'", "disk_full", "disk"),
        (TRACE + "PermissionError: [Errno 13] Permission denied: '/etc/x'", "not_writable", "may not write"),
        (TRACE + "OSError: [Errno 30] Read-only file system: '/data/x'", "not_writable", "may not write"),
        (
            "RuntimeError: DataLoader worker (pid 71) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
            "shared_memory",
            "Shared memory",
        ),
        (
            TRACE + "RuntimeError: unable to write to file </torch_8241_1913_0>: No space left on device (28)",
            "shared_memory",
            "Shared memory",
        ),
        (TRACE + "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'", "shared_memory", "Shared memory"),
        (TRACE + "RuntimeError: No CUDA GPUs are available", "no_gpu", "CUDA GPU"),
        (TRACE + "RuntimeError: CUDA error: device-side assert triggered", "index_on_gpu", "out of range"),
        (TRACE + "MemoryError", "out_of_memory", "memory"),
        (
            TRACE
            + "numpy.core._exceptions._ArrayMemoryError: Unable to allocate\nOSError: [Errno 12] Cannot allocate memory",
            "out_of_memory",
            "memory",
        ),
        ("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --epoch 3", "arguments", "arguments"),
        (
            TRACE + "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
            "no_internet",
            "Internet",
        ),
        (
            TRACE + "horovod.common.exceptions.HorovodInternalError: ncclAllReduce failed: unhandled system error",
            "ring",
            "lost each other",
        ),
        (
            'One or more rank (marked by "!") is stalled for longer than 50 seconds. Will shutdown.\n'
            + TRACE
            + "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down.",
            "rank_hangs",
            "more than 50 s",
        ),
        (
            "RuntimeError: [/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.3]:4711",
            "ring",
            "lost each other",
        ),
        (
            TRACE
            + "schedulearn_train.divergence.RanksDivergedError: The ranks have diverged: at step 40 the parameters of rank 1 differ"
            " from those of rank 0 in 2 of 8: head.weight by 3.1% of its largest value and 1 more. Update parameters by run.step"
            " alone.\n" + TRACE + "RuntimeError: Connection closed by peer [10.0.0.3]:4711",
            "ranks_diverged",
            "no longer trained the same model",
        ),
        (TRACE + "ValueError: num_classes must be positive", "exception", "ValueError"),
        (TRACE + "mypackage.errors.DataError: bad row", "exception", "DataError"),
        ("something went wrong", "exit_code", "exit code 1"),
    ],
)
def test_the_log_gives_the_cause_away(tail: str, code: str, words: str) -> None:
    cause = classify(FAILED, tail)
    assert cause["code"] == code and words in cause["title"]
    assert cause["advice"]


def test_a_rank_that_hangs_is_named_with_what_it_did_not_do() -> None:
    missing = "Missing ranks:\n1!: [done]\n2!: [done, ranks]\n"
    message = 'One or more rank (marked by "!") is stalled for longer than 50 seconds. Will shutdown.'
    tail = f"[2026-09-01 10:00:00.1: E horovod/common/stall_inspector.cc:115] One or more tensors were submitted. \n{missing}{message}\n{TRACE}"
    assert classify(FAILED, tail)["detail"] == f"{missing}{message}"


def test_ranks_that_diverged_are_named_without_the_advice_twice() -> None:
    message = "The ranks have diverged: at step 40 the parameters of rank 1 differ from those of rank 0 in 1 of 8: head.weight by 3.1%."
    tail = f"{TRACE}schedulearn_train.divergence.RanksDivergedError: {message} Update parameters by run.step alone."
    detail = classify(FAILED, tail)["detail"]
    assert detail == f"schedulearn_train.divergence.RanksDivergedError: {message}"


STOOD_STILL = "Process 17 was stopped by a signal 30 s ago and not woken: it is ended"


def test_a_rank_that_stood_still_is_to_blame_and_not_the_others_complaints() -> None:
    tail = f"{STOOD_STILL}\n{TRACE}RuntimeError: Connection closed by peer [10.0.0.3]:4711"
    cause = classify(replace(FAILED, exit_code=137), tail)
    assert (cause["code"], cause["detail"]) == ("stood_still", STOOD_STILL)
    assert "SIGSTOP" in cause["advice"]


def test_a_rank_that_stood_still_long_ago_is_not() -> None:
    assert classify(FAILED, f"{STOOD_STILL}\n{TRACE}ValueError: bad row")["code"] == "exception"


def test_a_rank_s_own_error_beats_the_complaints_of_the_others() -> None:
    tail = "\n".join(
        [TRACE, "ModuleNotFoundError: No module named 'wandb'", TRACE, "HorovodInternalError: Connection reset by peer"]
    )
    assert classify(FAILED, tail)["code"] == "import_error"


def test_the_last_of_several_errors_counts() -> None:
    tail = (
        TRACE
        + "KeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\n"
        + TRACE
        + "RuntimeError: b"
    )
    cause = classify(FAILED, tail)
    assert (
        cause["title"] == "The code raised RuntimeError" and cause["detail"] == "RuntimeError: b\ntrain.py:12: main()"
    )


def test_a_missing_package_names_the_environment_that_has_it() -> None:
    facts = Facts(outcome="failed", exit_reason="exited", exit_code=1, offered_by={"sklearn": ["PyTorch with Horovod"]})
    assert "PyTorch with Horovod" in classify(facts, "ModuleNotFoundError: No module named 'sklearn.svm'")["advice"]
    assert (
        "install a package of that name" in classify(FAILED, "ModuleNotFoundError: No module named 'nowhere'")["advice"]
    )


@pytest.mark.parametrize(
    ("line", "package"),
    [
        (
            "ModuleNotFoundError: Requirement 'jsonargparse[signatures]>=4.27.7' not met. HINT: Try running `pip install -U "
            "'jsonargparse[signatures]>=4.27.7'`",
            "jsonargparse",
        ),
        ("ImportError: pandas requires openpyxl to read this. Use pip install openpyxl.", "openpyxl"),
        ("ImportError: AutoModel needs the accelerate library: `pip install accelerate>=1.1.0`", "accelerate"),
        ("ImportError: Please `pip3 install -q Pillow` first", "Pillow"),
    ],
)
def test_a_package_that_a_library_asks_for_is_named(line: str, package: str) -> None:
    cause = classify(FAILED, f'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n{line}\n')
    assert cause["title"] == f"The package {package} is missing"
    assert f"the form offers to install {package}" in cause["advice"]


def test_a_package_that_a_library_asks_for_is_found_in_environments_by_its_modules() -> None:
    facts = replace(FAILED, offered_by={"PIL": ["PyTorch with vision"]})
    line = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nImportError: run pip install pillow\n'
    assert classify(facts, line)["advice"] == "Choose the environment PyTorch with vision, which has it."


def test_no_environment_is_named_that_lacks_the_framework_of_the_code() -> None:
    facts = replace(FAILED, offered_by={"tensorboard": []}, without={"tensorboard": ["torch"]})
    advice = classify(facts, TRACE + "ModuleNotFoundError: No module named 'tensorboard'")["advice"]
    assert advice.endswith("install tensorboard beside torch.")


@pytest.mark.parametrize(
    ("module", "files", "advice"),
    [
        ("lib.nn", ["lib/requirements.txt", "lib/lib/nn/__init__.py"], "has lib/lib/nn/__init__.py.*PYTHONPATH=lib,"),
        ("lib.nn", ["code/lib/nn.py", "docs/lib/nn.md"], "has code/lib/nn.py.*PYTHONPATH=code,"),
        ("lib.more", ["code/v1/lib/__init__.py"], "has code/v1/lib/__init__.py.*PYTHONPATH=code/v1,"),
        ("lib", ["code/lib/net.py"], "has code/lib/net.py.*PYTHONPATH=code,"),
        ("lib", ["a/b/lib.py", "z/lib.py"], "has z/lib.py.*PYTHONPATH=z,"),
        ("lib.nn", ["lib/nn.py"], "has lib/nn.py.*entry: import"),
        ("lib", ["lib/readme.md", "mylib.py"], "make an environment with that package"),
    ],
)
def test_an_uploaded_module_is_named_with_the_folder_that_finds_it(module: str, files: list[str], advice: str) -> None:
    cause = classify(replace(FAILED, files=files), TRACE + f"ModuleNotFoundError: No module named '{module}'")
    assert re.search(advice, cause["advice"])


@pytest.mark.parametrize(
    "tail",
    [
        TRACE.replace("main()", "rows = os.popen('stty size').read().split()[0]")
        + "IndexError: list index out of range",
        TRACE + "OSError: [Errno 25] Inappropriate ioctl for device",
        TRACE + "termios.error: (25, 'Inappropriate ioctl for device')",
    ],
)
def test_a_program_that_needs_a_terminal_fails_for_want_of_one(tail: str) -> None:
    cause = classify(FAILED, tail)
    assert cause["code"] == "no_terminal" and "get_terminal_size" in cause["advice"]


def test_a_full_disk_of_the_node_is_not_only_the_job_s_fault() -> None:
    cause = classify(FAILED, "OSError: [Errno 28] No space left on device")
    assert cause["title"] == "The disk was full" and "report the node to an admin" in cause["advice"]
    over_limit = classify(Facts(outcome="failed", exit_reason="disk", exit_code=1), "")
    assert "admin" not in over_limit["advice"]


@pytest.mark.parametrize(
    ("facts", "code", "words"),
    [
        (Facts(outcome="failed", exit_reason="oom", exit_code=137, memory_mib=4096), "out_of_memory", "4096 MiB"),
        (Facts(outcome="failed", exit_reason="disk", exit_code=1), "disk_full", "disk limit"),
        (Facts(outcome="failed", exit_reason="exited", exit_code=137), "killed", "killed"),
        (Facts(outcome="failed", exit_reason="exited", exit_code=-9), "killed", "killed"),
        (Facts(outcome="failed", exit_reason="exited", exit_code=139), "signal", "SIGSEGV"),
        (Facts(outcome="failed", exit_reason="exited", exit_code=3), "exit_code", "exit code 3"),
        (Facts(outcome="failed", exit_reason="exited"), "unknown", "without a reason"),
        (Facts(outcome="timed_out", time_limit_seconds=5400), "time_limit", "1 h 30 min"),
        (Facts(outcome="lost", exit_reason="lost", node="gpu-3"), "node_lost", "gpu-3 was lost"),
        (Facts(outcome="lost", exit_reason="fenced", node="gpu-3"), "node_lost", "cut off"),
        (Facts(outcome="error", exit_reason="create_error", detail="no such image: x"), "environment", "environment"),
        (Facts(outcome="error", exit_reason="create_error", detail="engine away", node="n"), "node_trouble", "node n"),
        (
            Facts(outcome="error", exit_reason="create_error", detail=EnvironmentMissing("torch").data()),
            "environment",
            "environment",
        ),
        (
            Facts(
                outcome="error",
                exit_reason="create_error",
                detail=InvalidName("images/environment.py").data(),
                node="n",
            ),
            "node_trouble",
            "node n",
        ),
        (Facts(outcome="error", exit_reason="launch_error"), "launch", "brought together"),
        (Facts(outcome="error", stop_reason="stuck", exit_reason="stopped"), "stuck", "in time"),
        (Facts(outcome="cancelled"), "cancelled", "Cancelled"),
        (Facts(outcome="held", stop_reason="held"), "held", "hold"),
        (Facts(outcome="preempted", stop_reason="preempted"), "preempted", "make room for others"),
        (Facts(outcome="preempted", stop_reason="drained"), "preempted", "drained"),
    ],
)
def test_the_rows_give_the_cause_away(facts: Facts, code: str, words: str) -> None:
    cause = classify(facts, "")
    assert cause["code"] == code and words in cause["title"]


WORKER = """\
epoch 1
Process SpawnProcess-1:
Traceback (most recent call last):
  File "/x/workspace/data.py", line 4, in load
    return rows[9]
IndexError: list index out of range
"""


@pytest.mark.parametrize(
    ("log", "raised"),
    [
        (WORKER, "IndexError"),
        (WORKER + "epoch 2\n", ""),
        ("epoch 1\n", ""),
        (TRACE + "KeyboardInterrupt\n", ""),
        (TRACE + "torch.distributed.DistBackendError: Connection closed by peer [127.0.0.1]:5\n", ""),
    ],
)
def test_a_job_that_hung_after_an_exception_names_it_beside_its_time_limit(log: str, raised: str) -> None:
    cause = classify(Facts(outcome="timed_out", time_limit_seconds=5400), log)
    assert cause["code"] == "time_limit" and cause["title"] == "It reached its time limit of 1 h 30 min"
    if raised:
        assert f"After {raised} nothing more was written:" in cause["advice"] and "data.py:4" in cause["detail"]
    else:
        assert "longer time limit" in cause["advice"] and not cause["detail"]


def test_a_job_that_was_silent_before_its_time_limit_may_have_hung() -> None:
    computed, hung = (
        Facts(outcome="timed_out", time_limit_seconds=5400, was_silent=silent) for silent in (False, True)
    )
    assert classify(computed, "")["advice"].startswith(
        "Submit it again with a longer time limit. The new job begins without"
    )
    assert "may have hung: look at the end of its log first" in classify(hung, "")["advice"]


def test_a_part_that_ended_early_is_mentioned() -> None:
    facts = Facts(outcome="failed", exit_reason="exited", exit_code=1, some_ended_early=True)
    assert "same number of steps" in classify(facts, "HorovodInternalError: x")["detail"]


def test_a_hostile_tail_is_read_in_no_time() -> None:
    for text in (
        "A" * 200_000,
        "a." * 100_000,
        "\n" * 100_000,
        ": error: " * 20_000,
        "'" * 100_000,
        "CUDA error: " * 20_000,
        'Traceback (most recent call last):\n  File "/workspace/a.py", line 1, in <module>\n    f()\nValueError: keys:\n'
        + f"  {'x' * 5000}\n" * 40,
        'Traceback (most recent call last):\n  File "/workspace/a.py", line 1, in <module>\n    f()\nE: x\n' * 2000,
        "Traceback (most recent call last):\n" * 6000,
        "  + Exception Group Traceback (most recent call last):\n" * 4000,
        "\r 43%|##| 3/4" * 20_000,
    ):
        began = time.process_time()
        classify(FAILED, text)
        assert time.process_time() - began < 2, text[:20]


def test_durations_in_words() -> None:
    assert [duration(seconds) for seconds in (0, 59, 90, 3600, 90_061)] == [
        "0 s",
        "59 s",
        "1 min 30 s",
        "1 h",
        "1 d 1 h",
    ]


@pytest.mark.django_db
def test_the_cause_is_found_again_when_the_last_of_the_log_has_come() -> None:
    make_environment("science", packages=["sklearn"])
    job = make_job(make_project(make_user("alice")), launcher="command")
    attempt = place(job, list(Gpu.objects.filter(node=make_node(gpus=1))))
    part = attempt.containers.get()
    exit(part, 1)
    assert Attempt.objects.get(pk=attempt.pk).cause["code"] == "exit_code"
    logs.append(logs.open_stream(part, "0"), 0, b"ModuleNotFoundError: No module named 'sklearn'\n")
    lifecycle.record_collected(part)
    cause = Attempt.objects.get(pk=attempt.pk).explanation
    assert cause["code"] == "import_error" and "science" in cause["advice"]


APART = RanksApart().text


@pytest.mark.django_db
@pytest.mark.parametrize(
    "detail",
    [
        RanksApart().data(),
        WithRemark(RanksApart(), CheckpointsNotKept(Quotation("full"))).data(),
        APART,
        f"{APART} Its checkpoints were not kept in the portal: full",
        WithRemark(Quotation(APART), CheckpointsNotKept(Quotation("full"))).data(),
    ],
    ids=["a message", "a message and a remark", "a text", "a text and a remark", "a quotation and a remark"],
)
def test_ranks_that_never_joined_are_a_hint_on_the_page_of_a_job_that_succeeded(client: Client, detail: Any) -> None:
    owner = make_user("alice")
    job = make_job(make_project(owner))
    attempt = place(job, list(Gpu.objects.filter(node=make_node(gpus=2))))
    exit(attempt.containers.get(), 0, detail=detail)
    job.refresh_from_db()
    attempt.refresh_from_db()
    assert (job.state, attempt.cause["code"]) == ("SUCCEEDED", "ranks_apart")
    client.force_login(owner)
    page = client.get(reverse("jobs:detail", args=[job.pk])).content.decode()
    assert "Its ranks did not work together" in page and "What to do:" in page
    assert 'class="card failure"' not in page


@pytest.mark.django_db
def test_a_job_that_succeeded_without_a_hint_has_no_cause() -> None:
    job = make_job(make_project(make_user("alice")))
    attempt = place(job, list(Gpu.objects.filter(node=make_node(gpus=1))))
    exit(attempt.containers.get(), 0, detail="some remark")
    attempt.refresh_from_db()
    assert attempt.outcome == "succeeded" and attempt.cause == {}


@pytest.mark.django_db
def test_a_part_that_the_job_went_on_without_is_not_to_blame() -> None:
    first, second = make_node(gpus=1), make_node(gpus=1)
    job = make_job(make_project(make_user("alice")), elastic=True, max_gpus=2)
    attempt = place(job, list(Gpu.objects.filter(node__in=(first, second)).order_by("id")), driver=True)
    base, more, driver = attempt.containers.order_by("index")
    exit(more, None, "lost")
    exit(base, 3)
    exit(driver, 3)
    attempt.refresh_from_db()
    assert (attempt.outcome, attempt.explanation["title"]) == ("failed", "It ended with exit code 3")


@pytest.mark.django_db
def test_a_host_that_was_given_back_did_not_end_early() -> None:
    first, second = make_node(gpus=1), make_node(gpus=1)
    job = make_job(make_project(make_user("alice")), elastic=True, max_gpus=2)
    attempt = place(job, list(Gpu.objects.filter(node__in=(first, second)).order_by("id")), driver=True)
    base, more, driver = attempt.containers.order_by("index")
    lifecycle.stop_container(more, "preempted")
    exit(more, 0)
    exit(base, 3)
    exit(driver, 3)
    attempt.refresh_from_db()
    assert attempt.outcome == "failed" and "same number of steps" not in attempt.explanation["detail"]


@pytest.mark.django_db
def test_the_last_of_many_losses_promises_no_further_attempt() -> None:
    node = make_node(gpus=1)
    job = make_job(make_project(make_user("alice")), launcher="command")
    advice = []
    for _ in range(LOSSES_IN_A_ROW):
        attempt = place(job, list(Gpu.objects.filter(node=node)))
        exit(attempt.containers.get(), None, "lost")
        attempt.refresh_from_db()
        advice.append(attempt.explanation["advice"])
        job.refresh_from_db()
    assert job.state == "FAILED"
    assert all("restarts on another node" in text for text in advice[:-1]) and "Report it to an admin" in advice[-1]
    lifecycle.record_collected(attempt.containers.get())
    attempt.refresh_from_db()
    assert attempt.explanation["advice"] == advice[-1]
