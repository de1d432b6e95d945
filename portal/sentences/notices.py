"""The words of notices: a title, which is also the subject of a mail, and a text of a few sentences."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from portal.sentences.causes import explain_cause
from portal.sentences.events import silence
from portal.sentences.mails import utilisation
from portal.sentences.registry import nested_sentence
from portal.ui import duration

MAX_TITLE = 150
MAX_NAMED = 10
"""Titles that a summary lists."""


class NoticeText(NamedTuple):
    title: str
    text: str = ""


NOTICES: dict[str, Callable[..., NoticeText]] = {}


def notice(function: Callable[..., NoticeText]) -> Callable[..., NoticeText]:
    """Register the function that words the notices with its name as their code."""
    NOTICES[function.__name__] = function
    return function


def notice_text(content: Mapping[str, Any]) -> NoticeText:
    """Return the words of a notice. One of another release is shown by its code and parameters."""
    values = {name: value for name, value in content.items() if name != "code"}
    words = NOTICES.get(str(content.get("code")))
    try:
        found = words(**values) if words else NoticeText(nested_sentence(content))
    except (TypeError, ValueError, LookupError, AttributeError):  # other parameters than ours
        found = NoticeText(nested_sentence(content))
    return NoticeText(" ".join(found.title.split())[:MAX_TITLE], found.text)


def of_job(job: int, name: str) -> str:
    return f"Job {job} “{name}”"


@notice
def notice_job_succeeded(job: int, name: str, project: str, seconds: int) -> NoticeText:
    return NoticeText(
        f"{of_job(job, name)} succeeded", f"Project {project}. It took {duration(seconds)} from its first start."
    )


@notice
def notice_job_failed(job: int, name: str, project: str, cause: Mapping[str, Any] | None) -> NoticeText:
    found = explain_cause(cause) if cause else {}
    why = f": {found['title'].rstrip('.')}" if found.get("title") else ""
    return NoticeText(f"{of_job(job, name)} failed{why}", f"Project {project}. {found.get('advice', '')}".strip())


@notice
def notice_job_cancelled(
    job: int, name: str, project: str, user: str, why: Mapping[str, Any] | None = None
) -> NoticeText:
    text = f"Project {project}. {nested_sentence(why)}" if why else f"Project {project}."
    return NoticeText(f"{of_job(job, name)} was cancelled{f' by {user}' if user else ''}", text)


@notice
def notice_job_started(job: int, name: str, project: str, seconds: int) -> NoticeText:
    return NoticeText(f"{of_job(job, name)} has started", f"Project {project}. It waited {duration(seconds)}.")


JOB_EVENTS = {
    "attempt_stopping": "was stopped to restart later",
    "gpus_idle": "has idle GPUs",
    "job_held_for_idle_gpus": "was put on hold",
    "job_held": "was put on hold",
}


@notice
def notice_job_event(job: int, name: str, project: str, event: Mapping[str, Any]) -> NoticeText:
    what = JOB_EVENTS.get(str(event.get("code")), "")
    text = nested_sentence(event)
    return NoticeText(
        f"{of_job(job, name)} {what}" if what else f"{of_job(job, name)}: {text}", f"Project {project}. {text}"
    )


@notice
def notice_job_silent(
    job: int, name: str, project: str, seconds: int, ranks: Sequence[Sequence[str]], gpus: Mapping[str, Any] | None
) -> NoticeText:
    who = "Ranks of job" if ranks else "No output from job"
    length = f"are silent for {duration(seconds)}" if ranks else f"for {duration(seconds)}"
    used = f" Their {utilisation(**gpus)}." if gpus else ""
    advice = (
        "Ranks may compute for a long time, or wait for data or for each other. The job is not stopped for this: check the "
        "end of its log, and cancel or hold it if it hangs."
    )
    return NoticeText(f"{who} {job} “{name}” {length}", f"Project {project}. {silence(seconds, ranks)}{used} {advice}")


@notice
def notice_more_time_asked(job: int, name: str, project: str, user: str, seconds: int, reason: str) -> NoticeText:
    why = f" The reason: “{reason}”" if reason else ""
    return NoticeText(
        f"{user} asks for {duration(seconds)} more for job {job} “{name}”",
        f"Project {project}. See whom it would delay, then grant or refuse it.{why}",
    )


@notice
def notice_more_time_decided(
    job: int, name: str, project: str, user: str, seconds: int, granted: bool, answer: str
) -> NoticeText:
    then = "Its time limit is longer by that." if granted else "Its time limit stays as it is; you can ask again."
    words = f" {user} wrote: “{answer}”" if answer else ""
    return NoticeText(
        f"{of_job(job, name)}: {duration(seconds)} more {'granted' if granted else 'refused'}",
        f"Project {project}, by {user}. {then}{words}",
    )


@notice
def notice_schedule_refused(schedule: str, project: str, why: str) -> NoticeText:
    return NoticeText(
        f"The schedule “{schedule}” could not submit its job",
        f"Project {project}. {why} It is tried again on its next day.",
    )


@notice
def notice_schedule_paused(schedule: str, project: str, why: Mapping[str, Any]) -> NoticeText:
    return NoticeText(f"The schedule “{schedule}” is paused", f"Project {project}. {nested_sentence(why)}")


@notice
def lab_alarms(alarms: Sequence[Mapping[str, Any]]) -> NoticeText:
    """``alarms``: for each the message, and the path of the page where it can be fixed."""
    texts = [nested_sentence(each["message"]) for each in alarms]
    title = texts[0].rstrip(".") if len(texts) == 1 else f"{len(texts)} things in the lab need an admin"
    then = "Jobs that ran there restart elsewhere where possible. You are not notified of the same problem again."
    return NoticeText(title, "\n".join([*(texts if len(texts) > 1 else []), then]))


@notice
def notice_channel_paused(channel: str, error: str) -> NoticeText:
    return NoticeText(
        f"The channel “{channel}” is paused",
        f"Messages can no longer be sent to it. The last error: {error} Fix it or add it again, test it, and switch it on again.",
    )


@notice
def notice_webhook_without_owner(channel: str, user: str, project: str) -> NoticeText:
    whose, what = (f"of the project {project}", "an owner of it") if project else ("of the lab", "an admin")
    return NoticeText(
        f"The webhook “{channel}” {whose} is paused",
        f"{user}, who registered it, is no longer {what}, and may still read what it receives. Nothing more is sent there. "
        "Remove it, or switch it on to take it over.",
    )


@notice
def notice_mail_gave_up(address: str, title: str, error: str) -> NoticeText:
    return NoticeText(f"A mail to {address} could not be sent", f"It was about this: {title}. The last error: {error}")


@notice
def notice_test(user: str) -> NoticeText:
    return NoticeText("A test of Schedulearn's notifications", f"{user} sent this to see whether it arrives.")


def summary(texts: Sequence[NoticeText], more: int = 0) -> NoticeText:
    """Return one text for several notices, the newest first; ``more`` are not among them."""
    count = len(texts) + more
    named = [f"- {each.title}" for each in texts[:MAX_NAMED]]
    left = count - len(named)
    if left > 0:
        named.append(f"- and {left} more")
    return NoticeText(f"{count} notices of your jobs", "\n".join(named))
