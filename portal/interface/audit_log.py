"""The audit log: its entries as sentences, by day, with what they changed; filtered by person, kind, subject and days.

Entries are shown as they were written; only the links follow what exists now.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from portal.accounts.models import AuditEntry, User
from portal.accounts.permissions import admin_required, signed_in
from portal.days import DayRange, read_days
from portal.interface.audit_subjects import Subject, subjects_of
from portal.lists import Column, Listing, quote, read_table
from portal.scheduler.param_labels import labelled_params
from portal.scheduler.services import title_of as policy_title
from portal.search import any_contains
from portal.sentences import audit, audit_values, sentence_of
from portal.ui import exact

PAGE_SIZE = 50
AUDIT = Listing("audit", (Column("when", "Time", ("pk",), falls=True, fixed=True),), "-when")


@dataclass(frozen=True, slots=True)
class Change:
    """A value before and after an action; ``is_new`` when it differs."""

    title: str
    before: object
    after: object
    is_new: bool


@dataclass(frozen=True, slots=True)
class Line:
    """An entry of the log."""

    at: datetime
    number: int
    sentence: SafeString
    title: str
    changes: list[Change]
    has_before: bool


@require_safe
@admin_required
def audit_log(request: HttpRequest) -> HttpResponse:
    problems: list[str] = []
    days = read_days(request.GET, "entry")
    rows = _filtered(request, days, problems)
    table = read_table(request, AUDIT, signed_in(request), [*problems, *days.problems])
    page = Paginator(rows.order_by(*table.ordering), PAGE_SIZE).get_page(request.GET.get("page"))
    names = ("action", "actor", "target", "from", "to")
    chosen = {name: request.GET.get(name, "").strip() for name in names}
    about = {
        "table": table,
        "page_obj": page,
        "days": by_day(list(page)),
        "range": days,
        "chosen": chosen | {"since": chosen["from"]},
        "is_filtered": any(chosen.values()),
        "kinds": _kinds(),
        "people": User.objects.filter(pk__in=AuditEntry.objects.order_by().values("actor")).order_by("username"),
        "zone": str(timezone.get_current_timezone()),
    }
    return render(request, "interface/audit.html", about)


def _filtered(request: HttpRequest, days: DayRange, problems: list[str]) -> Any:
    asked = {name: request.GET.get(name, "").replace("\0", "").strip() for name in ("action", "actor", "target")}
    condition = days.condition("at")
    if kind := asked["action"]:
        stored = AuditEntry.objects.filter(action=kind)
        if kind not in audit.ACTIONS and not stored.exists():
            problems.append(f"There is no kind “{quote(kind)}”: that part of the filter is left out.")
        else:
            condition &= Q(action=kind)
    if asked["actor"]:
        found = User.objects.matching(asked["actor"])
        if not found:
            problems.append(f"There is no user called “{quote(asked['actor'])}”, so no entry can match.")
        condition &= Q(actor__in=found)
    if asked["target"]:
        condition &= any_contains(asked["target"], "target")
    return AuditEntry.objects.select_related("actor").filter(condition)


def _kinds() -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the kinds of entries that there are, by area, for a menu."""
    areas: dict[str, list[tuple[str, str]]] = {}
    for key in AuditEntry.objects.order_by("action").values_list("action", flat=True).distinct():
        area = audit.ACTIONS[key].area if key in audit.ACTIONS else "Other"
        areas.setdefault(area, []).append((key, audit.title_of(key)))
    return sorted((area, sorted(kinds, key=lambda kind: kind[1])) for area, kinds in areas.items())


def by_day(entries: Sequence[AuditEntry]) -> list[tuple[date, list[Line]]]:
    """Return the lines of a page, by the reader's days, in the order of the entries."""
    subjects = subjects_of(entries)
    days: dict[date, list[Line]] = {}
    for entry in entries:
        days.setdefault(timezone.localtime(entry.at).date(), []).append(line_of(entry, subjects[entry.pk]))
    return list(days.items())


def line_of(entry: AuditEntry, subject: Subject) -> Line:
    before, after = _values(entry.before), _values(entry.after)
    phrase = audit.phrase_of(entry.action, _with_title(before), _with_title(after))
    actor = _actor(entry)
    command = format_html(" with a join command from {}", actor) if entry.actor else ""
    sentence = format_html(phrase.template, actor=actor, subject=subject.html, with_command=command, **phrase.values)
    return Line(entry.at, entry.pk, sentence, audit.title_of(entry.action), changes_of(before, after), bool(before))


def _values(stored: object) -> dict[str, Any]:
    """Return the stored values. Each entry of ours has an object, but nothing in the database demands it."""
    return dict(stored) if isinstance(stored, Mapping) else {"value": stored} if stored else {}


def _with_title(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with the title of their policy beside its key."""
    return {**values, "title": policy_title(str(values["policy"]))} if values.get("policy") else dict(values)


def _actor(entry: AuditEntry) -> SafeString:
    return format_html("<strong>{}</strong>", entry.actor.username if entry.actor else audit.PORTAL)


# --- what changed ------------------------------------------------------------------------------------------------


def changes_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Return the values of an entry by their names, those that changed first."""
    old, new = _shown(before), _shown(after)
    found = [
        Change(title, old.get(title, "–"), new.get(title, "–"), old.get(title) != new.get(title))
        for title in dict.fromkeys([*new, *old])
    ]
    return sorted(found, key=lambda change: not change.is_new)


def _shown(values: Mapping[str, Any]) -> dict[str, object]:
    """Return values by their names on pages. The parameters of a policy stand beside the others."""
    found: dict[str, object] = {}
    for key, value in values.items():
        if key == "params" and isinstance(value, Mapping):
            found |= dict(labelled_params(str(values.get("policy", "")), value))
        else:
            found[audit_values.field_title(key)] = (
                policy_title(str(value)) if key == "policy" else shown_value(key, value)
            )
    return found


def shown_value(key: str, value: object) -> object:
    """Return a stored value in words: a time in the reader's zone, a message as its sentence, a list as its items."""
    if value is None or value == "" or value == []:
        return audit_values.NONE.get(key, "none")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str):
        moment = _moment(value)
        return exact(moment, relative=False) if moment else audit_values.VALUES.get(key, {}).get(value, value)
    if isinstance(value, Mapping):
        if "code" in value:
            return sentence_of(value)
        parts = ((audit_values.field_title(str(name)), shown_value(str(name), each)) for name, each in value.items())
        return format_html_join(", ", "{}: {}", parts)
    if isinstance(value, Iterable):
        return format_html_join(", ", "{}", ((shown_value("", each),) for each in value))
    return value


def _moment(text: str) -> datetime | None:
    """Return the moment that a text is, with its zone; names that look like one keep their text."""
    try:
        moment = parse_datetime(text)
    except ValueError:
        return None
    return moment if moment is not None and timezone.is_aware(moment) else None
