"""Usage and the fairness ledger over REST: the numbers of the pages, unrounded."""

from datetime import date
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from portal.accounts.permissions import signed_in
from portal.rest import KnownParameters, Pages, refusals
from portal.usage import reports, rollups
from portal.usage.export import gpu_seconds
from portal.usage.forms import UsageForm, WindowForm


class GpuSeconds(serializers.DecimalField):
    """GPU time: whole microseconds inside, decimal seconds with all digits in the response."""

    def __init__(self, **options: Any) -> None:
        super().__init__(max_digits=20, decimal_places=6, read_only=True, **options)

    def to_representation(self, value: Any) -> Any:
        return super().to_representation(gpu_seconds(value))


class UsageSerializer(serializers.Serializer[Any]):
    """The usage of one person, group, project, month or day."""

    id = serializers.CharField(allow_null=True, help_text="A number; for months and days 2026-11 and 2026-11-30.")
    name = serializers.CharField()
    allocated_gpu_seconds = GpuSeconds(source="spent.allocated", help_text="GPU time held by jobs.")
    useful_gpu_seconds = GpuSeconds(source="spent.useful", help_text="Held, minus the three kinds of waste.")
    starting_gpu_seconds = GpuSeconds(source="spent.starting", help_text="Held before the program ran.")
    failed_gpu_seconds = GpuSeconds(source="spent.failed", help_text="Held by attempts that failed.")
    interrupted_gpu_seconds = GpuSeconds(
        source="spent.interrupted", help_text="Held by attempts that were stopped or lost without a checkpoint."
    )
    jobs_submitted = serializers.IntegerField(source="spent.submitted")
    jobs_started = serializers.SerializerMethodField()
    waiting_mean_seconds = serializers.FloatField(source="mean", allow_null=True)
    waiting_median_seconds = serializers.FloatField(source="median", allow_null=True)
    waiting_p95_seconds = serializers.FloatField(source="p95", allow_null=True)

    def get_jobs_started(self, row: reports.Row) -> int:
        return len(row.spent.waits)


LINE_KINDS = ["user", "group", "others"]
GROUPINGS = list(reports.GROUPINGS)


class StatementSerializer(serializers.Serializer[Any]):
    """One line of the ledger: of a user, of a group, or of all others."""

    kind = serializers.ChoiceField(choices=LINE_KINDS)
    id = serializers.IntegerField(allow_null=True)
    name = serializers.CharField()
    entitled_gpu_seconds = GpuSeconds(source="line.entitled")
    used_gpu_seconds = GpuSeconds(source="line.used")
    lent_gpu_seconds = GpuSeconds(source="line.lent")
    borrowed_gpu_seconds = GpuSeconds(source="line.borrowed")
    spare_gpu_seconds = GpuSeconds(source="line.spare", help_text="Entitled and requested, but not used by anyone.")
    balance_gpu_seconds = serializers.SerializerMethodField(help_text="Lent minus borrowed; halved every seven days.")

    def get_balance_gpu_seconds(self, statement: reports.Statement) -> float:
        return round(statement.balance / 1e6, 1)


class LedgerTotalSerializer(serializers.Serializer[Any]):
    """The totals: the used time of all people plus idle is the capacity, and so is their entitled time plus unclaimed."""

    capacity_gpu_seconds = GpuSeconds(source="capacity")
    used_gpu_seconds = GpuSeconds(source="total.used")
    entitled_gpu_seconds = GpuSeconds(source="total.entitled")
    idle_gpu_seconds = GpuSeconds(source="idle")
    unclaimed_gpu_seconds = GpuSeconds(source="unclaimed")


class _Answer(serializers.Serializer[Any]):
    since = serializers.DateField()
    until = serializers.DateField()
    count = serializers.IntegerField()
    next = serializers.URLField(allow_null=True)
    previous = serializers.URLField(allow_null=True)


class UsageAnswerSerializer(_Answer):
    by = serializers.ChoiceField(choices=GROUPINGS)
    total = UsageSerializer()
    results = UsageSerializer(many=True)


class LedgerAnswerSerializer(_Answer):
    total = LedgerTotalSerializer()
    results = StatementSerializer(many=True)


WINDOW_PARAMETERS = [
    OpenApiParameter("since", date, description="The first day; the default is 30 days up to the last one."),
    OpenApiParameter("until", date, description="The last day; the default is today."),
    OpenApiParameter("page", int),
    OpenApiParameter("page_size", int),
]


def _require_valid(form: WindowForm) -> None:
    if not form.is_valid():
        raise serializers.ValidationError({name: [str(one) for one in found] for name, found in form.errors.items()})


class UsageReport(KnownParameters, ViewSet):
    """GPU time held, useful and wasted, and waiting times."""

    @extend_schema(
        tags=["usage"],
        parameters=[
            *WINDOW_PARAMETERS,
            OpenApiParameter("by", str, enum=GROUPINGS),
            OpenApiParameter("user", int),
            OpenApiParameter("group", int),
            OpenApiParameter("project", int),
        ],
        responses={200: UsageAnswerSerializer, **refusals(400)},
    )
    def report(self, request: Request) -> Response:
        """Return usage; members see their own, and the totals of their groups and projects."""
        now, user = timezone.now(), signed_in(request)
        form = UsageForm(request.query_params, user=user, today=rollups.today(now))
        _require_valid(form)
        report = reports.usage(reports.visibility_of(user), *form.window, now, form.grouping, form.usage_filter)
        pages = Pages()
        rows = pages.paginate_queryset(report.rows, request, view=self)
        answer = pages.get_paginated_response(UsageSerializer(rows, many=True).data)
        answer.data.update(
            since=report.first, until=report.last, by=report.by, total=UsageSerializer(report.total).data
        )
        return answer


class LedgerReport(KnownParameters, ViewSet):
    """How much GPU time each was entitled to, used, lent and borrowed."""

    @extend_schema(
        tags=["usage"],
        parameters=WINDOW_PARAMETERS,
        responses={200: LedgerAnswerSerializer, **refusals(400)},
    )
    def report(self, request: Request) -> Response:
        """Return people, then groups; members see themselves, their groups, and all others as one line."""
        now, user = timezone.now(), signed_in(request)
        form = WindowForm(request.query_params, today=rollups.today(now))
        _require_valid(form)
        report = reports.ledger(reports.visibility_of(user), *form.window, now)
        pages = Pages()
        rows = pages.paginate_queryset(report.statements, request, view=self)
        answer = pages.get_paginated_response(StatementSerializer(rows, many=True).data)
        answer.data.update(since=report.first, until=report.last, total=LedgerTotalSerializer(report).data)
        return answer
