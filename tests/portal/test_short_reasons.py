"""Why a job waits, in about ten words: every reason has a short form, and pages offer the whole one."""

import inspect
from typing import Any

import pytest
from django.test import Client

from portal.sentences import SENTENCES, sentence_of
from portal.sentences.short_reasons import SHORT, short_reason
from scheduling.toolkit import reasons
from tests.portal import jobs_world as world
from tests.portal.pages import compact, one_line

MAX_WORDS = 13
ACCOUNT = {"code": "account_has", "name": "alice", "now": 7, "recent": 0.0, "share": 2.7}
NONE_FREE = {"code": "none_free", "ahead": 12, "total": 48, "everywhere": False, "kept": True}
SAMPLES: dict[str, Any] = {
    "reason": NONE_FREE, "why": {"code": "step_dropped", "why": "job_gone", "node": "", "count": 0},
    "account": ACCOUNT, "group": ACCOUNT | {"name": "group vision"}, "closed": [], "detail": "", "tier": "premium",
    "name": "group vision", "node": "gpu-1", "title": "PyTorch with Horovod", "spread": False, "everywhere": False,
    "kept": True, "promised": True, "begun": True, "share": 2.7, "recent": 0.0, "worth": 1.5, "cost": 2.5, "payoff": -1.0,
    "gpu_hours": 183.7, "times": 3.1,
}  # fmt: skip
WHOLE = {"text", "unexplained", "account_has", "step_dropped"}
"""What has no short form: the text of a lab's own policy, and parts of other sentences."""
REASONS = {code: each for code, each in SENTENCES.items() if each.__module__ == "portal.sentences.reasons"}


def sample(code: str) -> dict[str, Any]:
    return {"code": code} | {name: SAMPLES.get(name, 12) for name in inspect.signature(REASONS[code]).parameters}


@pytest.mark.parametrize("code", sorted(set(REASONS) - WHOLE))
def test_every_reason_is_short(code: str) -> None:
    text = short_reason(sample(code))
    assert len(text.split()) <= MAX_WORDS, text
    assert text.endswith(".") and "{" not in text
    assert not text[0].islower() or text.startswith("alice")


def test_short_forms_have_the_parameters_of_the_whole_ones() -> None:
    assert set(SHORT) <= set(REASONS)
    for code, function in SHORT.items():
        assert inspect.signature(function).parameters.keys() == inspect.signature(REASONS[code]).parameters.keys(), code


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            {"code": "behind_share", "reason": NONE_FREE, "account": ACCOUNT, "group": None},
            "alice has 7 GPUs, more than the fair share of 2.7.",
        ),
        (
            {
                "code": "behind_share", "reason": NONE_FREE, "account": ACCOUNT | {"now": 1},
                "group": ACCOUNT | {"name": "group vision", "now": 2, "recent": 12.04},
            },
            "Group vision had 12.0 GPUs recently; the fair share is 2.7.",
        ),
        (
            {"code": "behind_share", "reason": NONE_FREE, "account": ACCOUNT | {"now": 0}, "group": None},
            short_reason(NONE_FREE),
        ),
        ({"code": "in_cpu_slots", "reason": NONE_FREE | {"ahead": 1}}, "All 48 CPU slots for it are taken (1 job ahead)."),
        (reasons.TooFewFree(0, 4, 1, False), "It needs 4 GPUs; 1 is free."),
        ({"code": "none_free", "ahead": "x"}, "None free (ahead x)."),
        ("It needs 4 GPUs; 1 is free.", "It needs 4 GPUs."),
        (None, ""),
    ],
)  # fmt: skip
def test_the_short_sentence(content: Any, text: str) -> None:
    assert short_reason(content) == text


@pytest.mark.django_db
def test_pages_of_a_waiting_job_are_short_and_have_the_whole_sentence_on_demand() -> None:
    ada = world.make_user("ada", is_staff=True)
    stored = {"code": "behind_share", "reason": NONE_FREE, "account": ACCOUNT | {"name": "<b>eve"}, "group": None}
    job = world.make_job(world.make_project(ada), waiting_reason=stored, queue_position=1)
    client = Client()
    client.force_login(ada)
    short, whole = (
        "&lt;b&gt;eve has 7 GPUs, more than the fair share of 2.7.",
        "12 jobs are ahead of it and all 48 GPUs",
    )
    for path in (f"/jobs/{job.pk}/", "/jobs/queue"):
        html = compact(client.get(path).content.decode())
        assert f'<details class="why"><summary>{short}</summary><p>{whole}' in html and "<b>eve" not in html
    for path in ("/jobs/", "/"):
        html = one_line(client.get(path).content.decode())
        assert short in html and whole not in html
    assert sentence_of(stored) == client.get(f"/api/v1/jobs/{job.pk}/").json()["waiting_reason"]
