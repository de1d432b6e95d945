"""Pages and CSV files of usage and of the fairness ledger."""

from datetime import timedelta

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from portal.accounts.permissions import signed_in
from portal.cluster.slots import lab_noun
from portal.spreadsheets import csv_response
from portal.usage import charts, export, reports, rollups
from portal.usage.forms import UsageForm, WindowForm
from portal.usage.reports import Ledger, Usage

PER_PAGE = 50
PERIODS = ((7, "7 days"), (30, "30 days"), (90, "90 days"), (365, "365 days"))


def _usage_report(request: HttpRequest) -> tuple[UsageForm, Usage]:
    now, user = timezone.now(), signed_in(request)
    form = UsageForm(request.GET, user=user, today=rollups.today(now))
    return form, reports.usage(reports.visibility_of(user), *form.window, now, form.grouping, form.usage_filter)


def _ledger_report(request: HttpRequest) -> tuple[WindowForm, Ledger]:
    now, user = timezone.now(), signed_in(request)
    form = WindowForm(request.GET, today=rollups.today(now))
    return form, reports.ledger(reports.visibility_of(user), *form.window, now)


@require_safe
def usage(request: HttpRequest) -> HttpResponse:
    form, report = _usage_report(request)
    noun = lab_noun()
    drawn = (
        charts.gpu_hours_over_time(report, noun),
        charts.gpu_hours_by_row(report, noun),
        charts.waiting_times(report),
    )
    about = {
        "form": form,
        "report": report,
        "page": Paginator(report.rows, PER_PAGE).get_page(request.GET.get("page")),
        "charts": [chart for chart in drawn if chart is not None],
        **_period_links(request, form),
    }
    return render(request, "usage/usage.html", about, status=200 if form.is_valid() else 400)


@require_safe
def ledger(request: HttpRequest) -> HttpResponse:
    form, report = _ledger_report(request)
    about = {
        "form": form,
        "report": report,
        "page": Paginator(report.people, PER_PAGE).get_page(request.GET.get("page")),
        "charts": charts.ledger_charts(report, lab_noun()),
        "half_life_days": int(reports.HALF_LIFE_DAYS),
        **_period_links(request, form),
    }
    return render(request, "usage/ledger.html", about, status=200 if form.is_valid() else 400)


def _period_links(request: HttpRequest, form: WindowForm) -> dict[str, object]:
    """Return the links to other periods and to the file; they keep the other filters."""
    first, last = form.window
    rest = request.GET.copy()
    rest.pop("page", None)
    periods = []
    for days, text in PERIODS:
        since = form.today - timedelta(days=days - 1)
        query = rest.copy()
        query["since"], query["until"] = since.isoformat(), form.today.isoformat()
        periods.append((text, query.urlencode(), (first, last) == (since, form.today)))
    return {"first": first, "last": last, "periods": periods, "query": rest.urlencode()}


@require_safe
def usage_csv(request: HttpRequest) -> HttpResponse:
    form, report = _usage_report(request)
    if not form.is_valid():
        return usage(request)
    return csv_response(f"usage-{report.by}-{report.first}-{report.last}", export.usage_rows(report))


@require_safe
def ledger_csv(request: HttpRequest) -> HttpResponse:
    form, report = _ledger_report(request)
    if not form.is_valid():
        return ledger(request)
    return csv_response(f"ledger-{report.first}-{report.last}", export.ledger_rows(report))
