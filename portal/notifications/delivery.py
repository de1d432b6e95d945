"""Empties the outbox: claims deliveries that are due, sends them outside of transactions, and records what came of it.

A claim is a lease. Whoever is killed between the receiver's acceptance and the record of it leaves a delivery whose lease
runs out, and the same message is sent again with the same id. Nothing else is ever sent twice to one place.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from django.db import transaction
from django.db.models import F, Q
from django.urls import reverse
from django.utils import timezone

from portal.environments.credentials import unseal
from portal.notifications import channel_types, kinds, mail, markup, outbox, rendering
from portal.notifications.expansion import expand
from portal.notifications.messages import ChannelPaused, MailGaveUp
from portal.notifications.models import Channel, Delivery, Notice, NotificationSettings
from portal.notifications.rendering import NotPossibleError
from portal.notifications.sending import ChatMessage, Outcome, WebhookRequest, send
from portal.projects.models import Project
from portal.refused import Refused

logger = logging.getLogger(__name__)

LEASE = timedelta(minutes=3)
"""Longer than the attempts of a batch together may take: 16 messages of half a minute, four at a time."""
BATCH, AT_ONCE = 16, 4
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


def tick(now: datetime | None = None, sender: Sender = send) -> int:
    """Expand new notices and attempt what is due; return how many messages were attempted.

    1. Expand notices. 2. Claim up to ``BATCH`` deliveries, together with those that go along. 3. Make the messages.
    4. Send them, without a transaction or a lock. 5. Record each outcome.
    """
    expand(now)
    ready: list[tuple[Claimed, Message]] = []
    claimed = _claim_due(now or timezone.now())
    for each in claimed:
        try:
            ready.append((each, message_of(each.delivery)))
        except NotPossibleError as error:
            _finish(each, DROPPED, now, str(error))
        except Exception:
            logger.exception("delivery %s could not be made into a message", each.delivery.pk)
            _finish(each, GAVE_UP, now, "The message could not be made; the log of the worker has the reason.")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(sender, [message for _, message in ready]))
    for (each, message), outcome in zip(ready, outcomes, strict=True):
        record(each, outcome, now, by_mail=isinstance(message, mail.Mail))
    return len(claimed)


# --- claims ------------------------------------------------------------------------------------------------------


def _claim_due(now: datetime) -> list[Claimed]:
    free = Q(claimed_until=None) | Q(claimed_until__lt=now)
    due = Delivery.objects.filter(free, status=WAITING, lead=None, due_at__lte=now).order_by("due_at", "pk")
    claimed: list[Claimed] = []
    at_channel: Counter[int] = Counter()
    for pk, channel, last_error in due.values_list("pk", "channel", "channel__last_error")[: 4 * BATCH]:
        # One slow receiver must not take all places: the rest comes with the next batch.
        if channel is not None and at_channel[channel] >= (1 if last_error else AT_ONCE):
            continue
        if found := _claim(pk, now):
            claimed.append(found)
            at_channel[channel] += 1
        if len(claimed) == BATCH:
            break
    return claimed


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
    delivery = Delivery.objects.select_related("notice__user", "channel__owner").get(pk=pk)
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
    """Return the message of a delivery. Raises NotPossibleError if its reader may not see it any more, or has no place for it."""
    rows = Notice.objects.select_related("user", "project", "job__project", "job__submitted_by")
    found = rows.filter(Q(deliveries=delivery) | Q(deliveries__lead=delivery)).order_by("-pk")
    notices = [notice for notice in found if may_read(notice, delivery)]
    if not notices:
        raise NotPossibleError("Its reader may not see it any more.")
    if delivery.channel is None:
        return rendering.mail_for(delivery, notices)
    return _to_channel(delivery, delivery.channel, notices)


def may_read(notice: Notice, delivery: Delivery) -> bool:
    """Return whether what a notice is about may still be sent where it goes."""
    user = notice.user
    if delivery.channel is not None and delivery.channel.scope != Channel.Scope.PERSON:
        return delivery.channel.owner.is_active or delivery.channel.scope == Channel.Scope.PROJECT
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
        raise NotPossibleError(refusal.message) from None
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
        if Channel.objects.filter(pk=channel.pk, paused_at=None).update(paused_at=now):
            Delivery.objects.filter(channel=channel, status=WAITING).update(
                status=DROPPED, closed_at=now, error="The channel was paused."
            )
            outbox.add_trouble(channel.owner, ChannelPaused(channel.name, error), page_of(channel))
    elif notice.user is not None:
        title = rendering.words_outside(notice).title
        message = MailGaveUp(notice.user.email, title, error)
        outbox.add_trouble(notice.user, message, notice.path or reverse("notifications:preferences"))


def page_of(channel: Channel) -> str:
    """Return the path of the page on which a channel is managed."""
    if channel.scope == Channel.Scope.PROJECT:
        return reverse("notifications:project", args=[channel.project_id])
    return reverse("notifications:lab-webhooks" if channel.scope == Channel.Scope.LAB else "notifications:preferences")
