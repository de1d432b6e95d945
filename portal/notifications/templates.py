"""The subjects and first lines of mails, which admins may write: fixed placeholders, and nothing that is evaluated."""

import re
from collections.abc import Mapping

from portal.accounts.models import User
from portal.notifications import kinds
from portal.notifications.models import MailTemplate
from portal.refused import Refused

PLACEHOLDERS = {
    "title": "what happened: Job 12 “train” failed",
    "user": "the name of the reader",
    "project": "the project, empty for messages about something else",
    "kind": "the kind of the message, as on this page",
}
DEFAULT_SUBJECT, DEFAULT_INTRO = "Schedulearn: {title}", "Hello {user},"
MAX_SUBJECT = 150
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
SUMMARY = "summary"
TITLES = {**{key: kind.title for key, kind in kinds.BY_KEY.items()}, SUMMARY: "Several notices together"}
"""The titles of what has a template."""


def template_of(kind: str) -> MailTemplate:
    """Return the template of a kind, unsaved if no admin has written one."""
    found = MailTemplate.objects.filter(kind=kind).first()
    return found or MailTemplate(kind=kind, subject=DEFAULT_SUBJECT, intro=DEFAULT_INTRO)


def check(text: str, field: str) -> None:
    """Refuse braces that are no placeholder of ours."""
    unknown = [name for name in _PLACEHOLDER.findall(text) if name not in PLACEHOLDERS]
    if unknown or set("{}") & set(_PLACEHOLDER.sub("", text)):
        what = f"There is no placeholder {{{unknown[0]}}}." if unknown else "A brace is left over."
        known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise Refused(f"{what} There are: {known}.", field=field)


def fill(text: str, values: Mapping[str, str]) -> str:
    """Put values in the place of the placeholders, once: braces in a value stay as they are."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)


def values_for(user: User | None, title: str, project: str, kind: str) -> dict[str, str]:
    name = (user.get_full_name() or user.get_username()) if user else ""
    return {"title": title, "user": name, "project": project, "kind": TITLES.get(kind, kind)}


def subject_line(text: str) -> str:
    """Return a subject as one line of bounded length: what fills it may have been typed by anyone."""
    return " ".join(text.split())[:MAX_SUBJECT] or "Schedulearn"
