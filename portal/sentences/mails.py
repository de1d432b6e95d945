"""The mails: a task has the code and parameters of one, and its subject and text are made when it is sent.

The classes of those about accounts are in ``portal/accounts/mails.py``. The others are notices now (``notices``); processes
of the previous release may have queued them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from django.conf import settings
from django.template.loader import render_to_string

from portal.sentences import words
from portal.sentences.events import silence
from portal.sentences.registry import nested_sentence
from portal.ui import duration

MAX_SUBJECT_CHARACTERS = 150


class Mail(NamedTuple):
    subject: str
    text: str


MAILS: dict[str, Callable[..., Mail]] = {}


def mail(function: Callable[..., Mail]) -> Callable[..., Mail]:
    """Register the function that returns the mails with its name as their code."""
    MAILS[function.__name__] = function
    return function


def mail_of(content: Mapping[str, Any]) -> Mail:
    """Return the mail for a message. Raises KeyError or TypeError for one of another release that is not known here."""
    return MAILS[content["code"]](**{name: value for name, value in content.items() if name != "code"})


@mail
def password_reset(user: str, path: str) -> Mail:
    about = {"user_name": user, "link": settings.SITE_URL + path}
    return Mail("Choose a new password for Schedulearn", render_to_string("accounts/mail_reset.txt", about))


@mail
def invitation(inviter: str, path: str, days: int) -> Mail:
    about = {"inviter": inviter, "link": settings.SITE_URL + path, "days": days}
    return Mail("Your invitation to Schedulearn", render_to_string("accounts/mail_invitation.txt", about))


@mail
def lab_alarms(alarms: Sequence[Mapping[str, Any]]) -> Mail:
    """``alarms``: for each the message, and the path of the page where it can be fixed."""
    shown = [{"text": nested_sentence(each["message"]), "path": each["path"]} for each in alarms]
    what = shown[0]["text"].rstrip(".") if len(shown) == 1 else f"{len(shown)} things in the lab need an admin"
    text = render_to_string("cluster/mail_alarms.txt", {"alarms": shown, "site": settings.SITE_URL})
    return Mail(f"Schedulearn: {what}"[:MAX_SUBJECT_CHARACTERS], text)


@mail
def job_silent(
    job: int, name: str, path: str, seconds: int, ranks: Sequence[Sequence[str]], gpus: Mapping[str, Any] | None
) -> Mail:
    """``ranks`` as in the event of this silence; ``gpus`` are the parameters of ``utilisation``."""
    length = duration(seconds)
    subject = f"Schedulearn: ranks of job {job} are silent for {length}"
    if not ranks:
        subject = f"Schedulearn: no output from job {job} for {length}"
    about = {
        "number": job,
        "name": name,
        "text": silence(seconds, ranks),
        "gpus": utilisation(**gpus) if gpus else "",
        "link": settings.SITE_URL + path,
    }
    return Mail(subject, render_to_string("jobs/mail_silent.txt", about))


def utilisation(gpus: int, cpu_slots: bool, lowest: int, highest: int) -> str:
    """Return how much some GPUs do: ``2 GPUs are at 0 to 3 % utilisation``."""
    span = f"{lowest} to {highest}" if lowest != highest else f"{lowest}"
    return f"{words.devices(gpus, cpu_slots)} {words.is_or_are(gpus)} at {span}\u00a0% utilisation"
