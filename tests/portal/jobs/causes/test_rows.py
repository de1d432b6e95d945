"""The cause of a row: from the end of its logs while the job is locked, from more of them once they have arrived."""

import pytest

from portal.cluster.models import Gpu
from portal.jobs import causes, lifecycle, logs
from portal.jobs.models import Attempt, LogStream
from tests.portal.jobs_world import exit, make_environment, make_job, make_node, make_project, make_user, place

HEAD = (
    b'Traceback (most recent call last):\n  File "/workspace/train.py", line 3, in <module>\n    net.load_state_dict(state)\n'
    b"RuntimeError: Error(s) in loading state_dict for Net:\n"
)


@pytest.mark.django_db
def test_a_message_longer_than_what_is_read_at_the_end_is_found_with_the_whole_log() -> None:
    node = make_node(gpus=1)
    job = make_job(make_project(make_user("alice")), launcher="command")
    attempt = place(job, list(Gpu.objects.filter(node=node)))
    part = attempt.containers.get()
    message = b'\tMissing key(s) in state_dict: "' + b'layer.weight", "' * (2 * causes.QUICK_BYTES // 16) + b'".\n'
    logs.append(logs.open_stream(part, "0"), 0, HEAD + message)
    exit(part, 1)
    assert Attempt.objects.get(pk=attempt.pk).cause["code"] == "exit_code"
    lifecycle.record_collected(part)
    cause = Attempt.objects.get(pk=attempt.pk).cause
    assert cause["code"] == "checkpoint_differs" and "loading state_dict for Net" in cause["detail"]


@pytest.mark.django_db
def test_only_the_end_of_a_large_log_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node(gpus=1)
    job = make_job(make_project(make_user("alice")), launcher="command")
    part = place(job, list(Gpu.objects.filter(node=node))).containers.get()
    logs.append(logs.open_stream(part, "0"), 0, b"".join(b"line %d\n" % number for number in range(100_000)))
    asked: list[int] = []
    read = logs.read

    def counted(stream: LogStream, start: int, limit: int) -> bytes:
        asked.append(limit)
        return read(stream, start, limit)

    monkeypatch.setattr(logs, "read", counted)
    exit(part, 3)
    assert asked == [causes.QUICK_BYTES]
    part.attempt.refresh_from_db()
    assert part.attempt.explanation["title"] == "It ended with exit code 3"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("imports", "advice"),
    [
        (["torch", "plots"], "beside torch."),
        (["plots"], "Choose the environment other, which has it."),
    ],
)
def test_another_environment_has_the_frameworks_that_the_code_uses(imports: list[str], advice: str) -> None:
    node = make_node(gpus=1)
    job = make_job(make_project(make_user("alice")), launcher="command")
    make_environment("other", packages=["tensorflow", "plots"])
    job.environment.packages = ["torch"]
    job.environment.save()
    job.code.guess = {"imports": {name: ["train.py", 1] for name in imports}}
    job.code.save()
    part = place(job, list(Gpu.objects.filter(node=node))).containers.get()
    text = HEAD.split(b"RuntimeError")[0] + b"ModuleNotFoundError: No module named 'plots'\n"
    logs.append(logs.open_stream(part, "0"), 0, text)
    exit(part, 1)
    assert Attempt.objects.get(pk=part.attempt_id).explanation["advice"].endswith(advice)
