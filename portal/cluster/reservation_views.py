"""The pages of reservations: the calendar, one reservation, and the form of admins."""

from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.accounts.models import User
from portal.accounts.permissions import admin_required, signed_in
from portal.cluster import reservation_calendar, reservations
from portal.cluster.forms import ReservationForm
from portal.cluster.models import Reservation
from portal.cluster.reservation_calendar import VIEWS, DayError, Shown, View
from portal.cluster.slots import lab_noun, node_nouns
from portal.hues import Mark, mark_of_group, mark_of_person
from portal.refused import Refused

PER_PAGE = 20
LISTS = ("upcoming", "past", "shown")
WORKDAY_BEGINS, WORKDAY_ENDS = time(9), time(17)


def shown_to(user: User, rows: Iterable[Reservation]) -> Callable[[Reservation], Shown]:
    """Return a function for what a user may see of each row: all see its title, only admins and its users see for whom."""
    nouns = node_nouns({row.node_id for row in rows})

    def show(row: Reservation) -> Shown:
        mine = user.pk in reservations.owner_ids(row)
        if not (mine or user.is_admin):
            return Shown(row, nouns[row.node_id], mine, None, None)
        people = [person.username for person in row.users.all()]
        groups = [f"group {group.name}" for group in row.groups.all()]
        return Shown(row, nouns[row.node_id], mine, (*people, *groups), _mark_of(row))

    return show


def _mark_of(row: Reservation) -> Mark | None:
    """Return the mark of the first group or, without groups, of the first person."""
    for group in row.groups.all():
        return mark_of_group(group.pk, group.name)
    for person in row.users.all():
        return mark_of_person(person.pk, person.username, person.first_name, person.last_name)
    return None


@require_http_methods(["GET", "HEAD", "POST"])
def reservations_page(request: HttpRequest) -> HttpResponseBase:
    """Show a week or a month, and a list: upcoming ones, those that are over (``?list=past``) or those in the calendar.

    ``?view=month&from=2026-11-23`` shows the month of that day. Their users are named to admins and to these users only.
    """
    if request.method == "POST":  # the form stood on this page before the calendar: it may still be open
        return new_reservation(request)
    user, now = signed_in(request), timezone.now()
    view, day, problems = _asked_for(request)
    rows = list(reservations.between(*reservation_calendar.bounds_of(view, day)))
    calendar = reservation_calendar.lay_out(view, day, rows, shown_to(user, rows))
    chosen = request.GET.get("list", LISTS[0])
    if chosen not in LISTS:
        problems.append("Choose a list of active and upcoming, past or shown reservations. The first one is shown.")
        chosen = LISTS[0]
    listed = {
        "upcoming": reservations.active_or_upcoming(now),
        "past": reservations.over(now),
        "shown": reservations.between(*reservation_calendar.bounds_of(view, day)),
    }[chosen]
    page = Paginator(listed, PER_PAGE).get_page(request.GET.get("page"))
    about = {
        "calendar": calendar,
        "hours": [f"{hour:02}:00" for hour in range(24)],
        "page": page,
        "listed": list(map(shown_to(user, page.object_list), page)),
        "chosen": chosen,
        "now": now,
        "today": timezone.localdate(),
        "problems": problems,
        "noun": lab_noun(),
        "zone": timezone.get_current_timezone_name(),
    }
    return render(request, "cluster/reservations.html", about)


def _asked_for(request: HttpRequest) -> tuple[View, date, list[str]]:
    """Return the view and the day of the address, and what of it could not be followed."""
    problems: list[str] = []
    asked, day = request.GET.get("view", "week"), timezone.localdate()
    view: View = "month" if asked == "month" else "week"
    if asked not in VIEWS:
        problems.append(f"“{asked[:40]}” is not a view of the calendar: choose week or month.")
    if text := request.GET.get("from"):
        try:
            day = reservation_calendar.parse_day(text)
        except DayError as error:
            problems.append(f"{error} This {view} is shown instead.")
    return view, day, problems


@require_safe
def reservation(request: HttpRequest, pk: int) -> HttpResponse:
    user, now = signed_in(request), timezone.now()
    row = get_object_or_404(reservations.valid_reservations(), pk=pk)
    about = {"shown": shown_to(user, [row])(row), "now": now, "is_over": row.end <= now, "day": _day_of(row)}
    return render(request, "cluster/reservation.html", about)


def _day_of(row: Reservation) -> str:
    return timezone.localtime(row.start).date().isoformat()


@admin_required
@require_http_methods(["GET", "HEAD", "POST"])
def new_reservation(request: HttpRequest) -> HttpResponse:
    """Reserve GPUs. ``?from=2026-11-23`` fills in the working hours of that day."""
    if request.method != "POST":
        form = ReservationForm(initial=_initial(request))
        return render(request, "cluster/new_reservation.html", {"form": form, "noun": lab_noun()})
    form = ReservationForm(request.POST)
    if form.is_valid():
        try:
            made = reservations.reserve(signed_in(request), **form.cleaned_data)
            messages.success(
                request, f"Reserved: {made.name}. When it begins, jobs of others that can be stopped make room."
            )
            return redirect("cluster:reservation", made.pk)
        except Refused as refusal:
            form.add_error(refusal.field or None, refusal.message)
    return render(request, "cluster/new_reservation.html", {"form": form, "noun": lab_noun()}, status=400)


def _initial(request: HttpRequest) -> dict[str, Any]:
    text = request.GET.get("from")
    if not text:
        return {}
    try:
        day = reservation_calendar.parse_day(text)
    except DayError as error:
        messages.warning(request, f"{error} Choose the times below.")
        return {}
    zone, now = timezone.get_current_timezone(), timezone.localtime()
    start, end = (datetime.combine(day, clock, zone) for clock in (WORKDAY_BEGINS, WORKDAY_ENDS))
    if start < now < end:
        start = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    return {"start": start, "end": max(end, start + timedelta(hours=1))}


@admin_required
@require_POST
def cancel_reservation(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(Reservation, pk=pk)
    reservations.cancel(signed_in(request), row)
    messages.success(request, f"{row.name} is cancelled: its {lab_noun()}s are available to all users again.")
    return redirect("cluster:reservations")
