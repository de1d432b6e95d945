"""Usage and the fairness ledger over REST: what the pages show, in exact numbers."""

from datetime import date
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from portal.accounts.permissions import signed_in
from portal.rest import Pages, refusals
from portal.usage import reports, rollups
from portal.usage.export import gpu_seconds
from portal.usage.forms import UsageForm, WindowForm


class GpuSeconds(serializers.DecimalField):
    """Whole microseconds inside; a decimal with all its digits outside."""

    def __init__(self, **options: Any) -> None:
        super().__init__(max_digits=20, decimal_places=6, read_only=True, **options)

    def to_representation(self, value: Any) -> Any:
        return super().to_representation(gpu_seconds(value))


class UsageSerializer(serializers.Serializer[Any]):
    """One person, group, project, month or day."""

    id = serializers.CharField(allow_null=True, help_text="Number, or for times 2026-11 or 2026-11-30.")
    name = serializers.CharField()
    allocated_gpu_seconds = GpuSeconds(source="spent.allocated", help_text="Held by jobs.")
    useful_gpu_seconds = GpuSeconds(source="spent.useful", help_text="Held, less the three kinds of waste.")
    starting_gpu_seconds = GpuSeconds(source="spent.starting", help_text="Held before the program ran.")
    failed_gpu_seconds = GpuSeconds(source="spent.failed", help_text="Of attempts that failed.")
    interrupted_gpu_seconds = GpuSeconds(source="spent.interrupted", help_text="Stopped or lost without a checkpoint.")
    jobs_submitted = serializers.IntegerField(source="spent.submitted")
    jobs_started = serializers.SerializerMethodField()
    waiting_mean_seconds = serializers.FloatField(source="mean", allow_null=True)
    waiting_median_seconds = serializers.FloatField(source="median", allow_null=True)
    waiting_p95_seconds = serializers.FloatField(source="p95", allow_null=True)

    def get_jobs_started(self, row: reports.Row) -> int:
        return len(row.spent.waits)


class StatementSerializer(serializers.Serializer[Any]):
    """One line of the ledger."""

    kind = serializers.ChoiceField(choices=["user", "group", "others"])
    id = serializers.IntegerField(allow_null=True)
    name = serializers.CharField()
    entitled_gpu_seconds = GpuSeconds(source="line.entitled")
    used_gpu_seconds = GpuSeconds(source="line.used")
    lent_gpu_seconds = GpuSeconds(source="line.lent")
    borrowed_gpu_seconds = GpuSeconds(source="line.borrowed")
    spare_gpu_seconds = GpuSeconds(source="line.spare", help_text="Entitled, wanted, and used by nobody.")
    balance_gpu_seconds = serializers.SerializerMethodField(help_text="Lent less borrowed; half after seven days.")

    def get_balance_gpu_seconds(self, statement: reports.Statement) -> float:
        return round(statement.balance / 1e6, 1)


class LedgerTotalSerializer(serializers.Serializer[Any]):
    """Used of all people and idle make up capacity; entitled of all people and unclaimed do, too."""

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
    by = serializers.ChoiceField(choices=list(reports.BY))
    total = UsageSerializer()
    results = UsageSerializer(many=True)


class LedgerAnswerSerializer(_Answer):
    total = LedgerTotalSerializer()
    results = StatementSerializer(many=True)


WINDOW = [
    OpenApiParameter("since", date, description="First day; without it thirty days up to the last."),
    OpenApiParameter("until", date, description="Last day; without it today."),
    OpenApiParameter("page", int),
    OpenApiParameter("page_size", int),
]


def _valid(form: WindowForm) -> None:
    if not form.is_valid():
        raise serializers.ValidationError({name: [str(one) for one in found] for name, found in form.errors.items()})


class UsageReport(ViewSet):
    """GPU time held, of use and wasted, and waiting times."""

    @extend_schema(
        operation_id="usage",
        tags=["usage"],
        parameters=[
            *WINDOW,
            OpenApiParameter("by", str, enum=list(reports.BY)),
            OpenApiParameter("user", int),
            OpenApiParameter("group", int),
            OpenApiParameter("project", int),
        ],
        responses={200: UsageAnswerSerializer, **refusals(400)},
    )
    def report(self, request: Request) -> Response:
        """Members see their own usage, and the totals of their groups and projects."""
        now, user = timezone.now(), signed_in(request)
        form = UsageForm(request.query_params, user=user, today=rollups.today(now))
        _valid(form)
        report = reports.usage(reports.sight_of(user), *form.window, now, form.grouping, form.only)
        pages = Pages()
        rows = pages.paginate_queryset(report.rows, request, view=self)
        answer = pages.get_paginated_response(UsageSerializer(rows, many=True).data)
        answer.data.update(
            since=report.first, until=report.last, by=report.by, total=UsageSerializer(report.total).data
        )
        return answer


class LedgerReport(ViewSet):
    """Who was entitled to how much, used, lent and borrowed."""

    @extend_schema(
        operation_id="ledger",
        tags=["usage"],
        parameters=WINDOW,
        responses={200: LedgerAnswerSerializer, **refusals(400)},
    )
    def report(self, request: Request) -> Response:
        """First people, then groups. Members see themselves, their groups, and all others as one line."""
        now, user = timezone.now(), signed_in(request)
        form = WindowForm(request.query_params, user=user, today=rollups.today(now))
        _valid(form)
        report = reports.ledger(reports.sight_of(user), *form.window, now)
        pages = Pages()
        rows = pages.paginate_queryset(report.statements, request, view=self)
        answer = pages.get_paginated_response(StatementSerializer(rows, many=True).data)
        answer.data.update(since=report.first, until=report.last, total=LedgerTotalSerializer(report).data)
        return answer
