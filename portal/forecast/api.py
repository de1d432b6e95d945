"""Forecasts over REST: when a job starts, which changes would start it sooner, and making one of them."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.permissions import signed_in
from portal.forecast import advice
from portal.forecast.models import Forecast
from portal.forecast.serializers import ChosenChangeSerializer, CounselSerializer, ForecastSerializer
from portal.forecast.services import describe, reliability_of
from portal.jobs import permissions
from portal.jobs.api import JobSubresource
from portal.jobs.models import JobState
from portal.jobs.serializers import JobDetailSerializer
from portal.rest import refusals, validated


class Forecasts(JobSubresource):
    queryset = Forecast.objects.none()
    serializer_class = ForecastSerializer

    @extend_schema(responses={200: ForecastSerializer, **refusals(404)})
    def retrieve(self, request: Request, job_pk: int) -> Response:
        """Return when a waiting job starts: a range from simulated futures, and how reliable such ranges have been."""
        job = self.job
        waits = job.state == JobState.QUEUED
        row = Forecast.objects.filter(job=job).first() if waits else None
        about: dict[str, Any] = {
            "state": job.state,
            "waiting_reason": job.why_waiting,
            "queue_position": job.queue_position,
            "sentence": describe(row).sentence if waits else advice.NO_LONGER_WAITING,
            "gpu_models": row.kinds if row and not row.note else [],
            "futures": row.draws if row and not row.note else 0,
            "lengths_known": row is None or row.lengths_known,
            "measured": reliability_of(row),
        }
        for name in ("low", "high", "until", "snapshot_at", "made_at"):
            about[name] = getattr(row, name, None)
        return Response(ForecastSerializer(about).data)

    @extend_schema(responses={200: CounselSerializer, **refusals(404)})
    def changes(self, request: Request, job_pk: int) -> Response:
        """Return changes that would start the job now or clearly sooner; each was tried in the lab's present state."""
        return Response(CounselSerializer(advice.advice_for(self.job, signed_in(request))).data)

    @extend_schema(
        request=ChosenChangeSerializer,
        responses={201: JobDetailSerializer, **refusals(400, 403, 404, 409, 429)},
    )
    def change(self, request: Request, job_pk: int) -> Response:
        """Cancel the job and submit it again with a change, in its place in the queue. Returns the new job."""
        asked = validated(ChosenChangeSerializer(data=request.data))
        user = signed_in(request)
        changed = advice.make_change(user, self.job, asked["change"])
        context = {
            "env_vars": permissions.env_vars_for(user, changed),
            "may_act": permissions.may_act_on(user, changed),
        }
        return Response(JobDetailSerializer(changed, context=context).data, status.HTTP_201_CREATED)
