"""Jobs over REST: submit, list, act. Their logs and outputs are in ``log_api``."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import django_filters
from django import forms
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db.models import F, Prefetch, QuerySet
from django.db.models.fields.json import KT
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import mixins, status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.viewsets import GenericViewSet

from portal.accounts.models import User
from portal.accounts.permissions import signed_in
from portal.environments.models import Environment
from portal.jobs import editing, permissions, services, trash
from portal.jobs.environments import best_environment, offered_environments
from portal.jobs.job_list import JOBS
from portal.jobs.models import Allocation, Attempt, Container, Job, JobEvent, JobState
from portal.jobs.serializers import (
    AttemptSerializer,
    EditSerializer,
    EventSerializer,
    JobDetailSerializer,
    JobSerializer,
    SubmitSerializer,
)
from portal.jobs.spec import FIELDS, WORD_LISTS, Submission, label_of
from portal.jobs.word_lists import contains_all_words
from portal.projects.inspecting import entries
from portal.projects.models import CodeVersion, Project
from portal.projects.services import require_member
from portal.refused import Refused
from portal.rest import KnownParameters, NewestFirst, refusals, validated
from portal.search import any_contains

JobAction = Callable[[User, Job], Job]
IDEMPOTENCY_KEY_HEADER = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description="Any text of your own. Sent again with the same body, it answers with the job it made the first time.",
)


EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
"""The range of moments that have a date in every time zone."""


ORDERINGS = ("id", "submitted_at", "finished_at")
"""The columns that jobs can be ordered by with an index, however many there are."""


def _moment_filter(column: str, label: str) -> django_filters.IsoDateTimeFilter:
    """Return a filter for rows whose moment is at or after that of the request."""
    bounds = [MinValueValidator(EARLIEST), MaxValueValidator(LATEST)]
    wrong = "Send a time such as 2026-11-20T00:00:00Z. In an address, the + of a time zone is written %%2B."  # of a message with parameters
    return django_filters.IsoDateTimeFilter(
        field_name=column, lookup_expr="gte", label=label, validators=bounds, error_messages={"invalid": wrong}
    )


class IdFilter(django_filters.NumberFilter):
    """A whole number; the filter of numbers takes 1.5, and would look for 1."""

    field_class = forms.IntegerField


class JobFilter(django_filters.FilterSet):
    state = django_filters.MultipleChoiceFilter(choices=JobState.choices, label="Jobs in this state; may be repeated.")
    project = IdFilter(field_name="project_id", max_value=2**62, min_value=1, label="The id of a project.")
    launcher = django_filters.ChoiceFilter(choices=Job.Launcher.choices, label="Jobs with this launcher.")
    environment = django_filters.CharFilter(field_name="environment__key", label="The key of an environment.")
    submitted_by = django_filters.CharFilter(method="of_person", label="A user name.")
    q = django_filters.CharFilter(method="named", label="Part of the name of the job.")
    submitted_after = _moment_filter("submitted_at", "Jobs submitted at this time or later.")
    finished_after = _moment_filter("finished_at", "Jobs that finished at this time or later.")
    mine = django_filters.ChoiceFilter(
        method="of_reader",
        choices=[("true", "yours"), ("false", "those of others")],
        label="true: only jobs that you submitted; false: only those of others.",
    )
    ordering = django_filters.ChoiceFilter(
        method="ordered_by",
        choices=[(f"{minus}{name}", name) for name in ORDERINGS for minus in ("", "-")],
        label="An indexed column; with a minus, the latest first. Jobs that have not finished count as the latest. Pages are "
        "numbered then.",
    )
    sort = django_filters.ChoiceFilter(
        method="sorted_by",
        choices=[(f"{minus}{name}", name) for name in JOBS.sort_names for minus in ("", "-")],
        label="The column of the list of jobs to sort by; with a minus, the largest or newest first. Pages are numbered then.",
    )

    class Meta:
        model = Job
        fields: list[str] = []

    def sorted_by(self, rows: QuerySet[Job], _: str, sort: str) -> QuerySet[Job]:
        return rows.order_by(*JOBS.ordering(sort))

    def ordered_by(self, rows: QuerySet[Job], _: str, ordering: str) -> QuerySet[Job]:
        if "sort" in self.data:
            raise ValidationError({"ordering": ["Send ordering or sort, not both."]})
        column, falling = F(ordering.lstrip("-")), ordering.startswith("-")
        if falling:
            return rows.order_by(column.desc(nulls_first=True), "-pk")
        return rows.order_by(column.asc(nulls_last=True), "pk")

    def of_reader(self, rows: QuerySet[Job], _: str, mine: str) -> QuerySet[Job]:
        reader = signed_in(self.request)
        return rows.filter(submitted_by=reader) if mine == "true" else rows.exclude(submitted_by=reader)

    def of_person(self, rows: QuerySet[Job], _: str, name: str) -> QuerySet[Job]:
        return rows.filter(submitted_by__in=User.objects.called(name))

    def named(self, rows: QuerySet[Job], _: str, words: str) -> QuerySet[Job]:
        return rows.filter(any_contains(words, "name"))


def _word_filter(name: str) -> django_filters.CharFilter:
    """Return a filter by words of a list: a row must have all the words of the request."""

    def filtered(rows: QuerySet[Job], _: str, text: str) -> QuerySet[Job]:
        return rows.filter(contains_all_words(name, text))

    return django_filters.CharFilter(method=filtered, label=f"{label_of(name)}: a word, or several with commas between")


for _name in WORD_LISTS:
    JobFilter.base_filters[_name] = _word_filter(_name)


class Jobs(KnownParameters, mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[Job]):
    """Jobs of the projects that the user may see, the newest first."""

    pagination_class = NewestFirst
    queryset = Job.objects.none()
    filterset_class = JobFilter

    def get_queryset(self) -> QuerySet[Job]:
        rows = Job.objects.visible_to(signed_in(self.request))
        return rows.select_related("project", "code", "environment", "submitted_by", "group").defer(
            "code__files", "code__guess", "search_text"
        )

    def get_serializer_class(self) -> type[BaseSerializer[Job]]:
        return JobSerializer if self.action == "list" else JobDetailSerializer

    def _detail(self, job: Job, code: int = status.HTTP_200_OK) -> Response:
        user = signed_in(self.request)
        row = self.get_queryset().get(pk=job.pk)
        context = {"env_vars": permissions.env_vars_for(user, row), "may_act": permissions.may_act_on(user, row)}
        return Response(JobDetailSerializer(row, context=context).data, code)

    @extend_schema(responses={200: JobDetailSerializer, **refusals(404)})
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Return a job with all its values."""
        return self._detail(self.get_object())

    @extend_schema(
        operation_id="jobs_submit",
        parameters=[IDEMPOTENCY_KEY_HEADER],
        request=SubmitSerializer,
        responses={201: JobDetailSerializer, 200: JobDetailSerializer, **refusals(400, 403, 404, 409, 429)},
    )
    def create(self, request: Request) -> Response:
        """Submit a job. The status is 200 instead of 201 if the same Idempotency-Key created it before."""
        user, data = signed_in(request), validated(SubmitSerializer(data=request.data))
        project = get_object_or_404(Project.objects.visible_to(user), pk=data["project"])
        require_member(user, project)
        key, body = request.headers.get("Idempotency-Key", ""), _canonical_body(request.data)
        # Before anything is guessed: after another upload the guess may differ, but the response must not.
        if job := services.submitted_before(user, key, body):
            return self._detail(job)
        job = services.submit(user, project, _submission(project, data), idempotency_key=key, body=body)
        return self._detail(job, status.HTTP_201_CREATED)

    @extend_schema(request=EditSerializer, responses={200: JobDetailSerializer, **refusals(400, 403, 404, 409)})
    def partial_update(self, request: Request, pk: int) -> Response:
        """Change name, description or tags, and of a job that waits also its priority, time limit or deadline.

        The job keeps its place in the queue. Its history names the change.
        """
        sent = validated(EditSerializer(data=request.data))
        return self._detail(editing.edit(signed_in(request), self.get_object(), sent))

    @extend_schema(responses={204: None, **refusals(403, 404, 409)})
    def destroy(self, request: Request, pk: int) -> Response:
        """Move a finished job to the trash, from which it can be restored for 14 days (/trash/)."""
        trash.delete(signed_in(request), self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _act(self, act: JobAction) -> Response:
        return self._detail(act(signed_in(self.request), self.get_object()))

    @extend_schema(request=None, responses={200: JobDetailSerializer, **refusals(403, 404, 409)})
    def cancel(self, request: Request, pk: int) -> Response:
        """Cancel a job. A running job is stopped first."""
        return self._act(services.cancel)

    @extend_schema(request=None, responses={200: JobDetailSerializer, **refusals(403, 404, 409)})
    def hold(self, request: Request, pk: int) -> Response:
        """Put a job on hold: it does not run until it is released."""
        return self._act(services.hold)

    @extend_schema(request=None, responses={200: JobDetailSerializer, **refusals(403, 404, 409)})
    def release(self, request: Request, pk: int) -> Response:
        """Release a job that is on hold: it is queued again."""
        return self._act(services.release)

    @extend_schema(request=None, responses={200: JobDetailSerializer, **refusals(403, 404, 409)})
    def keep(self, request: Request, pk: int) -> Response:
        """Protect a job from deletion, and from rules that clean up."""
        return self._act(trash.keep)

    @extend_schema(request=None, responses={200: JobDetailSerializer, **refusals(403, 404, 409)})
    def stop_keeping(self, request: Request, pk: int) -> Response:
        """Stop protecting a job from deletion."""
        return self._act(trash.stop_keeping)

    @extend_schema(
        parameters=[IDEMPOTENCY_KEY_HEADER],
        request=None,
        responses={201: JobDetailSerializer, **refusals(403, 404, 409, 429)},
    )
    def retry(self, request: Request, pk: int) -> Response:
        """Submit a copy of a finished job. The response is the new job."""
        key = request.headers.get("Idempotency-Key", "")
        job = services.retry(signed_in(request), self.get_object(), idempotency_key=key)
        return self._detail(job, status.HTTP_201_CREATED)


def _canonical_body(data: Any) -> bytes:
    """Return a canonical form of a request: order and spacing of its JSON make no difference."""
    return json.dumps(data, sort_keys=True, default=str).encode()


def _submission(project: Project, data: dict[str, Any]) -> Submission:
    code = _code_version(project, data.get("code"))
    guess = code.guess
    launcher = data.get("launcher") or guess.get("launcher") or Job.Launcher.COMMAND
    guessed = services.command_for(guess) if launcher == Job.Launcher.COMMAND else entries.entry_of(guess)
    entry = data.get("entry") or guessed
    if not entry:
        raise Refused("Name the file or command to run: none could be guessed from the code.", field="entry")
    asked: dict[str, Any] = {
        "code": code,
        "environment": _environment(project, data.get("environment"), guess),
        "launcher": launcher,
        "entry": entry,
        "elastic": data.get("elastic", launcher == Job.Launcher.HOROVOD and bool(guess.get("elastic"))),
        "max_gpus": data.get("max_gpus", data.get("min_gpus", 1)),
    }
    values: dict[str, Any] = {
        name: tuple(data[name]) if isinstance(data[name], list) else data[name] for name in FIELDS if name in data
    }
    return Submission(**values | asked)


def _code_version(project: Project, number: int | None) -> CodeVersion:
    rows = CodeVersion.objects.filter(project=project)
    found = rows.filter(number=number).first() if number else rows.first()
    if found is None:
        message = (
            f"There is no code version {number} in this project." if number else "Upload code to this project first."
        )
        raise Refused(message, field="code")
    return found


def _environment(project: Project, key: str | None, guess: dict[str, Any]) -> Environment:
    offered = offered_environments(project)
    found = next((each for each in offered if each.key == key), None) if key else best_environment(guess, offered)
    if found is None:
        known = ", ".join(each.key for each in offered) or "none yet"
        raise Refused(f"There is no such environment. Offered are: {known}.", field="environment")
    return found


class JobSubresource(KnownParameters, GenericViewSet[Any]):
    """The base of the endpoints under /jobs/{job}/: the response is 404 for a job that the user may not see."""

    @property
    def job(self) -> Job:
        rows = Job.objects.visible_to(signed_in(self.request)).select_related("project")
        return get_object_or_404(rows, pk=self.kwargs["job_pk"])


class Events(mixins.ListModelMixin, JobSubresource):
    """The history of a job, oldest line first."""

    queryset = JobEvent.objects.none()
    serializer_class = EventSerializer

    def get_queryset(self) -> QuerySet[JobEvent]:
        return self.job.events.select_related("actor").order_by("seq")


class Attempts(mixins.ListModelMixin, mixins.RetrieveModelMixin, JobSubresource):
    """The attempts of a job with their containers and GPUs, the first one first."""

    queryset = Attempt.objects.none()
    serializer_class = AttemptSerializer
    lookup_field = "number"

    def get_queryset(self) -> QuerySet[Attempt]:
        containers = (
            Container.objects.defer("spec")
            .annotate(layer=KT("spec__layer"))
            .select_related("node")
            .prefetch_related(Prefetch("allocations", Allocation.objects.select_related("gpu")))
        )
        return self.job.attempts.prefetch_related(Prefetch("containers", containers)).order_by("number")
