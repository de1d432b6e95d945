"""Empties the outbox: claims deliveries that are due, sends them outside of transactions, and records what came of it.

A claim is a lease. Whoever is killed between the receiver's acceptance and the record of it leaves a delivery whose lease
runs out, and the same message is sent again with the same id. Nothing else is ever sent twice to one place.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from django.db import transaction
from django.db.models import Case, F, Q, QuerySet, When, Window
from django.db.models.functions import RowNumber
from django.urls import reverse
from django.utils import timezone

from portal.accounts.models import User
from portal.accounts.services import active_admins
from portal.environments.credentials import unseal
from portal.notifications import channel_types, kinds, mail, markup, outbox, rendering
from portal.notifications.expansion import expand
from portal.notifications.messages import ChannelPaused, MailGaveUp, WebhookWithoutOwner
from portal.notifications.models import (
    Channel,
    Delivery,
    MutedProject,
    Notice,
    NotificationSettings,
    Preferences,
)
from portal.notifications.rendering import NotPossibleError
from portal.notifications.sending import ChatMessage, Outcome, WebhookRequest, send
from portal.projects.models import Membership, Project
from portal.projects.services import may_manage, role_of
from portal.refused import Refused

logger = logging.getLogger(__name__)

LEASE = timedelta(minutes=5)
"""Longer than a batch may take: a mail is begun within ``BEGIN_SECONDS``, and has 20 s for each answer of the mail server."""
BEGIN_SECONDS = 60
"""What has not begun by then is left to the next batch."""
MAILS, MAILS_AT_ONCE = 16, 4
MESSAGES = 8
"""To channels, all at once: so a batch takes half a minute at most, and the mails of the next one wait no longer."""
PER_CHANNEL, PER_OWNER = 2, 4
"""How many of these go to one channel, and to the channels of one person."""
CANDIDATES = 500
"""How many messages, those of each channel that come first, a batch is chosen from."""
MAX_TOGETHER = 200
"""How many notices one message summarises."""
PAUSES = tuple(timedelta(seconds=each) for each in (30, 120, 600, 1800, 7200))
"""Between the attempts: the sixth, three hours after the first, is the last."""
Message = mail.Mail | ChatMessage | WebhookRequest
Sender = Callable[[Message], Outcome]
WAITING, SENT, GAVE_UP, DROPPED = (
    Delivery.Status.WAITING,
    Delivery.Status.SENT,
    Delivery.Status.GAVE_UP,
    Delivery.Status.DROPPED,
)


@dataclass(frozen=True, slots=True)
class Claimed:
    """A delivery that this process may send until its lease runs out."""

    delivery: Delivery
    claim: UUID


class TargetRefusedError(NotPossibleError):
    """What was filled in for a channel is no longer permitted."""


class OwnerGoneError(NotPossibleError):
    """Who registered the webhook of a project or the lab may no longer do so."""


def tick(now: datetime | None = None, sender: Sender = send) -> int:
    """Expand new notices and attempt what is due; return how many messages were claimed.

    1. Expand notices. 2. Claim a batch, each together with those that go along. 3. Make the messages. 4. Send them, without
    a transaction or a lock, mails beside channels. 5. Record each outcome as it comes: what happens to one message changes
    nothing for the others.
    """
    expand(now)
    claimed = _claim_due(now or timezone.now())
    until = time.monotonic() + BEGIN_SECONDS
    sending: dict[Future[Outcome | None], tuple[Claimed, Message]] = {}
    with ThreadPoolExecutor(MAILS_AT_ONCE) as mails, ThreadPoolExecutor(MESSAGES) as messages:
        for each in claimed:
            if message := _made(each, now):
                pool = mails if isinstance(message, mail.Mail) else messages
                sending[pool.submit(_attempt, sender, message, until)] = (each, message)
        for done in as_completed(sending):
            each, message = sending[done]
            try:
                _note(each, message, done.result(), now)
            except Exception:  # its lease runs out, and it is sent again
                logger.exception("what came of delivery %s could not be recorded", each.delivery.pk)
    return len(claimed)


def _made(claimed: Claimed, now: datetime | None) -> Message | None:
    """Return the message of a delivery; None if there is none, which is recorded."""
    if claimed.delivery.attempts > len(PAUSES) + 1:
        _finish(claimed, GAVE_UP, now, "No attempt came to an end; the log of the worker may have the reason.")
        return None
    try:
        return message_of(claimed.delivery)
    except OwnerGoneError as error:
        _finish(claimed, DROPPED, now, str(error))
        _pause_without_owner(claimed.delivery, str(error), now or timezone.now())
    except NotPossibleError as error:
        _finish(claimed, DROPPED, now, str(error))
        if isinstance(error, TargetRefusedError):
            _give_up(claimed.delivery, str(error), now or timezone.now())
    except Exception:
        logger.exception("delivery %s could not be made into a message", claimed.delivery.pk)
        _finish(claimed, GAVE_UP, now, "The message could not be made; the log of the worker has the reason.")
    return None


def _attempt(sender: Sender, message: Message, until: float) -> Outcome | None:
    """Send a message, in a thread of a pool. None if it was too late to begin."""
    if time.monotonic() > until:
        return None
    try:
        return sender(message)
    except Exception:
        logger.exception("a message could not be sent")
        return Outcome(False, "The message could not be sent; the log of the worker has the reason.")


def _note(claimed: Claimed, message: Message, outcome: Outcome | None, now: datetime | None) -> None:
    if outcome is not None:
        record(claimed, outcome, now, by_mail=isinstance(message, mail.Mail))
        return
    Delivery.objects.filter(pk=claimed.delivery.pk, claim=claimed.claim, status=WAITING).update(
        claim=None, claimed_until=None, attempts=F("attempts") - 1
    )


# --- claims ------------------------------------------------------------------------------------------------------


def _claim_due(now: datetime) -> list[Claimed]:
    return [found for pk in (*_due_mails(now), *_due_messages(now)) if (found := _claim(pk, now))]


def _due(now: datetime) -> QuerySet[Delivery]:
    free = Q(claimed_until=None) | Q(claimed_until__lt=now)
    return Delivery.objects.filter(free, status=WAITING, lead=None, due_at__lte=now)


def _due_mails(now: datetime) -> list[int]:
    """Return the mails that are due, those of accounts first: a user waits for their link."""
    of_accounts_first = Case(When(notice__kind=kinds.ACCOUNT, then=0), default=1)
    rows = _due(now).filter(channel=None).order_by(of_accounts_first, "due_at", "pk")
    return list(rows.values_list("pk", flat=True)[:MAILS])


def _due_messages(now: datetime) -> list[int]:
    """Return the messages to channels that are due, in turn: whatever waits at one channel, the others have their places.

    Channels that failed last come after the others, and of these first the one that has not received anything for longest.
    """
    turn = Window(RowNumber(), partition_by=[F("channel")], order_by=[F("due_at").asc(), F("pk").asc()])
    rows = _due(now).exclude(channel=None).annotate(turn=turn).filter(turn__lte=PER_CHANNEL)
    failed = Case(When(channel__last_error="", then=0), default=1)
    served = F("channel__last_sent_at").asc(nulls_first=True)
    rows = rows.annotate(failed=failed).order_by("failed", "turn", served, "due_at", "pk")
    chosen: list[int] = []
    owners: Counter[int] = Counter()
    for pk, owner, turn_at_channel, has_failed in rows.values_list("pk", "channel__owner", "turn", "failed")[
        :CANDIDATES
    ]:
        if owners[owner] < PER_OWNER and not (has_failed and turn_at_channel > 1) and len(chosen) < MESSAGES:
            chosen.append(pk)
            owners[owner] += 1
    return chosen


@transaction.atomic
def _claim(pk: int, now: datetime) -> Claimed | None:
    """Claim a delivery, with those to the same place that wait; None if another process was faster."""
    claim = uuid4()
    free = Q(claimed_until=None) | Q(claimed_until__lt=now)
    taken = Delivery.objects.filter(free, pk=pk, status=WAITING, lead=None, due_at__lte=now).update(
        claim=claim, claimed_until=now + LEASE, attempts=F("attempts") + 1
    )
    if not taken:
        return None
    delivery = Delivery.objects.select_related("notice__user", "channel__owner", "channel__project").get(pk=pk)
    if delivery.attempts == 1:  # later ones repeat the same message
        Delivery.objects.filter(pk__in=_that_go_along(delivery)).update(lead=delivery)
    return Claimed(delivery, claim)


def _that_go_along(delivery: Delivery) -> list[int]:
    """Return the deliveries that wait for the same person at the same place, locked: they become part of one message."""
    channel, notice = delivery.channel, delivery.notice
    if notice.kind not in kinds.BY_KEY or notice.user is None or (channel is not None and channel.is_program):
        return []
    same = Delivery.objects.filter(status=WAITING, lead=None, members=None, channel=channel, attempts=0)
    same = same.filter(notice__user=notice.user, notice__kind__in=kinds.BY_KEY).exclude(pk=delivery.pk)
    free = same.select_for_update(skip_locked=True, of=("self",))  # another worker may have claimed some just now
    return list(free.order_by("pk").values_list("pk", flat=True)[:MAX_TOGETHER])


# --- messages ----------------------------------------------------------------------------------------------------


def message_of(delivery: Delivery) -> Message:
    """Return the message of a delivery.

    Raises NotPossibleError if its reader may not see it any more, no longer wants it, or has no place for it.
    """
    channel = delivery.channel
    if channel is not None and not has_rights(channel):
        raise OwnerGoneError(_without_rights(channel))
    rows = Notice.objects.select_related("user", "project", "job__project", "job__submitted_by")
    found = rows.filter(Q(deliveries=delivery) | Q(deliveries__lead=delivery)).order_by("-pk")
    notices = [notice for notice in _wanted(list(found), channel) if may_read(notice, delivery)]
    if not notices:
        raise NotPossibleError("Its reader may not see it any more, or no longer wants it.")
    if channel is None:
        return rendering.mail_for(delivery, notices)
    return _to_channel(delivery, channel, notices)


def has_rights(channel: Channel) -> bool:
    """Return whether the owner of a webhook of a project or the lab may still manage it. Other channels are their owner's."""
    if channel.scope == Channel.Scope.PERSON:
        return True
    if channel.project is None:
        return channel.owner.is_admin
    return may_manage(role_of(channel.owner, channel.project))


def _without_rights(channel: Channel) -> str:
    what = "owner of the project" if channel.project else "admin"
    return (
        f"{channel.owner.get_username()}, who registered it, is no {what} any more. Who switches it on takes it over."
    )


def _wanted(notices: Sequence[Notice], channel: Channel | None) -> list[Notice]:
    """Return the notices that their reader still wants at a place: what waited may have been switched off in the meantime."""
    user = notices[0].user if notices else None
    if user is None or (channel is not None and channel.scope != Channel.Scope.PERSON):
        return list(notices)
    off = set(Preferences.of(user.pk).mail_off if channel is None else channel.off) & set(kinds.BY_KEY)
    muted = set(MutedProject.objects.filter(user=user).values_list("project", flat=True))
    return [
        each for each in notices if each.kind not in off and (each.project_id is None or each.project_id not in muted)
    ]


def may_read(notice: Notice, delivery: Delivery) -> bool:
    """Return whether what a notice is about may still be sent where it goes."""
    user = notice.user
    if delivery.channel is not None and delivery.channel.scope != Channel.Scope.PERSON:
        return True  # whose rights are those of ``has_rights``
    if user is None:
        return notice.kind == kinds.ACCOUNT
    if not user.is_active or (notice.kind in kinds.FOR_ADMINS and not user.is_admin):
        return False
    if notice.project_id is None:
        return True
    return bool(Project.objects.visible_to(user).filter(pk=notice.project_id).exists())


def _to_channel(delivery: Delivery, channel: Channel, notices: Sequence[Notice]) -> Message:
    if channel.paused_at is not None:
        raise NotPossibleError("The channel is paused.")
    config = config_of(channel)
    settings = NotificationSettings.current()
    if channel.type not in settings.enabled_types:
        raise NotPossibleError("An admin has switched off channels of this type.")
    try:
        target = channel_types.TYPES[channel.type].target(config, settings.allowed_hosts)
    except Refused as refusal:
        raise TargetRefusedError(refusal.message) from None
    if channel.type == Channel.Type.APPRISE and not set(target.schemes) <= set(settings.apprise_schemes):
        raise NotPossibleError("An admin has switched off this scheme of apprise.")
    if channel.type == Channel.Type.WEBHOOK:
        body = json.dumps(rendering.body_for(delivery, notices[0], channel))
        return WebhookRequest(delivery.uid, target.url, str(config["secret"]), body, settings.allowed_hosts)
    text = rendering.text_of(notices)
    words = markup.literal(channel.type, text.title, text.body)
    body = "\n\n".join(part for part in (words.text, *rendering.link_to(text.path)) if part)
    secrets = [str(value) for value in config.values() if len(str(value)) >= 6]
    return ChatMessage(target.url, target.schemes, words.title, body, settings.allowed_hosts, secrets, words.format)


def config_of(channel: Channel) -> dict[str, object]:
    """Return what was filled in for a channel. Raises NotPossibleError if it can no longer be decrypted."""
    content = unseal(channel.sealed_config)
    if not content:
        raise NotPossibleError("Its settings can no longer be read: the key in the portal's folder is another one.")
    found: dict[str, object] = json.loads(content)
    return found


# --- outcomes ----------------------------------------------------------------------------------------------------


@transaction.atomic
def record(claimed: Claimed, outcome: Outcome, now: datetime | None, *, by_mail: bool) -> None:
    """Record what came of an attempt: it is done, comes again after a pause, or is given up."""
    now = now or timezone.now()
    delivery = claimed.delivery
    if by_mail:
        mail.record_answer(outcome.error if not outcome.sent else "")
    elif delivery.channel is not None:
        _note_at_channel(delivery.channel, outcome, now)
    if outcome.sent:
        _finish(claimed, SENT, now)
        return
    if outcome.final or delivery.attempts > len(PAUSES):
        if _finish(claimed, GAVE_UP, now, outcome.error):
            _give_up(delivery, outcome.error, now)
        return
    later = now + PAUSES[delivery.attempts - 1]
    Delivery.objects.filter(pk=delivery.pk, claim=claimed.claim, status=WAITING).update(
        claim=None, claimed_until=None, due_at=later, error=outcome.error
    )
    if delivery.channel is not None:  # the others would fail now as well
        waiting = Delivery.objects.filter(channel=delivery.channel, status=WAITING, claim=None, due_at__lt=later)
        waiting.update(due_at=later)


def _note_at_channel(channel: Channel, outcome: Outcome, now: datetime) -> None:
    changed = {"last_sent_at": now, "last_error": ""} if outcome.sent else {"last_error": outcome.error}
    Channel.objects.filter(pk=channel.pk).update(**changed)


def _finish(claimed: Claimed, status: str, now: datetime | None, error: str = "") -> bool:
    """End a delivery and those that went along; return whether this process still held it."""
    now = now or timezone.now()
    with transaction.atomic():
        ended = {"status": status, "closed_at": now, "error": error[:300], "claim": None, "claimed_until": None}
        held = Delivery.objects.filter(pk=claimed.delivery.pk, claim=claimed.claim, status=WAITING).update(**ended)
        if held:
            Delivery.objects.filter(lead=claimed.delivery, status=WAITING).update(**ended)
            if status != GAVE_UP:
                Notice.objects.filter(pk=claimed.delivery.notice_id).exclude(sealed_mail="").update(sealed_mail="")
    return bool(held)


def _give_up(delivery: Delivery, error: str, now: datetime) -> None:
    """Pause a channel that failed again and again, and notify the person in the portal; the admins' page lists it."""
    channel, notice = delivery.channel, delivery.notice
    if channel is not None:
        if _pause(channel, error, now):
            outbox.add_trouble(channel.owner, ChannelPaused(channel.name, error), page_of(channel))
    elif notice.user is not None:
        title = rendering.words_outside(notice).title
        message = MailGaveUp(notice.user.email, title, error)
        outbox.add_trouble(notice.user, message, notice.path or reverse("notifications:preferences"))


def _pause(channel: Channel, error: str, now: datetime) -> bool:
    """Pause a channel and drop what waits for it; return whether it was on."""
    if not Channel.objects.filter(pk=channel.pk, paused_at=None).update(paused_at=now, last_error=error[:300]):
        return False
    Delivery.objects.filter(channel=channel, status=WAITING).update(
        status=DROPPED, closed_at=now, error="The channel was paused."
    )
    return True


@transaction.atomic
def _pause_without_owner(delivery: Delivery, error: str, now: datetime) -> None:
    """Pause a webhook whose owner may not manage it any more, and notify those who may: of a project, else of the lab."""
    channel = delivery.channel
    if channel is None or not _pause(channel, error, now):
        return
    owners: list[User] = []
    if channel.project is not None:
        owns = Membership.objects.filter(project=channel.project, role=Membership.Role.OWNER, user__is_active=True)
        owners = [each.user for each in owns.select_related("user")]
    project = channel.project.name if channel.project else ""
    message = WebhookWithoutOwner(channel.name, channel.owner.get_username(), project)
    for user in owners or active_admins():
        outbox.add_trouble(user, message, page_of(channel))


def page_of(channel: Channel) -> str:
    """Return the path of the page on which a channel is managed."""
    if channel.scope == Channel.Scope.PROJECT:
        return reverse("notifications:project", args=[channel.project_id])
    return reverse("notifications:lab-webhooks" if channel.scope == Channel.Scope.LAB else "notifications:preferences")
