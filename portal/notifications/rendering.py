"""Makes what is sent of notices: a mail, a message in a chat, or the body for a program."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.urls import reverse

from portal.accounts.models import User
from portal.environments.credentials import unseal
from portal.jobs import logs
from portal.jobs.models import Attempt, Job, LogStream
from portal.notifications import kinds, templates, unsubscribe
from portal.notifications.mail import Mail
from portal.notifications.messages import JobFailed
from portal.notifications.models import Channel, Delivery, Notice, NotificationSettings, PrivateProject
from portal.sentences.mails import mail_of
from portal.sentences.notices import NoticeText, notice_text, summary

LINES, LINE_CHARACTERS, END_BYTES = 20, 300, 16 * 1024
"""How much of a log is quoted."""


class NotPossibleError(Exception):
    """It cannot be sent, now or later: what it needs is gone."""


@dataclass(frozen=True, slots=True)
class Text:
    """What a person reads of one or several notices."""

    title: str
    body: str
    path: str
    project: str
    kind: str


def text_of(notices: Sequence[Notice], more: int = 0) -> Text:
    """Return the text for these notices, the newest first; ``more`` are not among them. Only a failure quotes a log."""
    notice = notices[0]
    if len(notices) == 1 and not more:
        words = words_outside(notice)
        project = notice.project.name if notice.project else ""
        parts = [words.text, *_quotation(notice)]
        return Text(words.title, "\n\n".join(part for part in parts if part), notice.path, project, notice.kind)
    about = summary([words_outside(each) for each in notices], more)
    return Text(about.title, about.text, reverse("notifications:list"), "", templates.SUMMARY)


def words_outside(notice: Notice) -> NoticeText:
    """Return the words of a notice outside the portal. The cause of a failure may quote the log, so it can be withheld."""
    content: dict[str, Any] = notice.content
    if content.get("code") == JobFailed.code and not _may_quote(notice):
        content = {**content, "cause": None}
    return notice_text(content)


def _may_quote(notice: Notice) -> bool:
    if not NotificationSettings.current().log_lines_leave:
        return False
    return notice.project_id is None or not PrivateProject.objects.filter(project=notice.project_id).exists()


def _quotation(notice: Notice) -> list[str]:
    if notice.kind != kinds.FAILED or notice.job is None or not _may_quote(notice):
        return []
    attempt = notice.job.attempts.order_by("-number").first()
    lines = last_lines(attempt) if attempt else []
    return ["The end of its log:\n" + "\n".join(f"    {line}" for line in lines)] if lines else []


def last_lines(attempt: Attempt) -> list[str]:
    """Return the last lines of the rank that the cause of an attempt is about, or of the one that printed last."""
    streams = logs.streams_of(attempt)
    rank = attempt.cause.get("rank") if attempt.cause else None
    failed = [stream for stream in streams if logs.label_of(stream) == f"rank {rank}"]
    stream = max(failed or streams, key=_printed_at, default=None)
    if stream is None:
        return []
    data = logs.read(stream, max(0, stream.size - END_BYTES), END_BYTES)
    lines = [logs.strip_controls(line).decode(errors="replace").rstrip() for line in data.split(b"\n")]
    return [line[:LINE_CHARACTERS] for line in lines if line][-LINES:]


def _printed_at(stream: LogStream) -> tuple[bool, float]:
    return stream.name != "setup", stream.last_at.timestamp() if stream.last_at else 0.0


# --- mail --------------------------------------------------------------------------------------------------------


def mail_for(delivery: Delivery, notices: Sequence[Notice], more: int = 0) -> Mail:
    """Return the mail of a delivery. Raises NotPossibleError if its address or content is gone."""
    notice = notices[0]
    if notice.kind == kinds.ACCOUNT:
        return _account_mail(delivery, notice)
    user = notice.user
    address = delivery.address or (user.email if user else "")
    if not address:
        raise NotPossibleError("The person has no mail address any more.")
    text = text_of(notices, more)
    template = templates.template_of(text.kind)
    values = templates.values_for(user, text.title, text.project, text.kind)
    subject = templates.subject_line(templates.fill(template.subject, values))
    parts = [templates.fill(template.intro, values), text.title + ".", text.body, *link_to(text.path)]
    headers = {}
    if user is not None and notice.kind in kinds.BY_KEY:
        link = unsubscribe.link(user.pk, unsubscribe.ALL if text.kind == templates.SUMMARY else notice.kind)
        headers = {"List-Unsubscribe": f"<{link}>", "List-Unsubscribe-Post": "List-Unsubscribe=One-Click"}
        parts.append(_foot(user, link))
    return Mail(delivery.uid, address, subject, "\n\n".join(part for part in parts if part) + "\n", headers)


def link_to(path: str) -> list[str]:
    """Return the URL of a page of the portal, if there is one."""
    return [settings.SITE_URL + path] if path else []


def _foot(user: User, link: str) -> str:
    page = settings.SITE_URL + reverse("notifications:preferences")
    return f"--\nYou get this as {user.get_username()}. Choose what you get: {page}\nStop mails of this kind: {link}"


def _account_mail(delivery: Delivery, notice: Notice) -> Mail:
    content = unseal(notice.sealed_mail)
    if not content:
        raise NotPossibleError("Its content can no longer be read: the key in the portal's folder is another one.")
    subject, text = mail_of(json.loads(content))
    return Mail(delivery.uid, delivery.address, subject, text)


# --- programs ----------------------------------------------------------------------------------------------------


def body_for(delivery: Delivery, notice: Notice, channel: Channel) -> dict[str, Any]:
    """Return what a webhook receives: part of the API, so names stay."""
    words = words_outside(notice)
    body: dict[str, Any] = {
        "id": str(delivery.uid),
        "event": delivery.event or notice.event or f"notice.{notice.kind}",
        "at": notice.at.isoformat(),
        "title": words.title,
        "text": words.text,
        "url": settings.SITE_URL + notice.path,
    }
    if notice.job is not None:
        body["job"] = _job(notice.job)
        if notice.content.get("code") == JobFailed.code:
            body["cause"] = _cause(notice)
            if channel.scope == Channel.Scope.PERSON and _may_quote(notice):
                attempt = notice.job.attempts.order_by("-number").first()
                body["log"] = last_lines(attempt) if attempt else []
    return body


def _job(job: Job) -> dict[str, Any]:
    return {
        "id": job.pk,
        "name": job.name,
        "state": job.state,
        "project": {"id": job.project_id, "name": job.project.name},
        "submitted_by": job.submitted_by.get_username(),
    }


def _cause(notice: Notice) -> Mapping[str, Any] | None:
    cause = notice.content.get("cause")
    return {"code": cause["code"]} if isinstance(cause, Mapping) and _may_quote(notice) else None
