"""Rules of retention over REST."""

from typing import Any

from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers, status
from rest_framework.generics import get_object_or_404
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from portal.accounts.permissions import signed_in
from portal.jobs.models import RetentionRule
from portal.jobs.retention import services
from portal.jobs.retention.models import MAX_DAYS, MIN_DAYS
from portal.projects.models import Project
from portal.rest import KnownParameters, refusals, validated


class RetentionRequestSerializer(serializers.Serializer[Any]):
    project = serializers.IntegerField(
        min_value=1,
        required=False,
        allow_null=True,
        help_text="Null: all projects without a rule of their own for the part.",
    )
    part = serializers.ChoiceField(RetentionRule.Part.choices)
    ended = serializers.ChoiceField(RetentionRule.Ended.choices, default=RetentionRule.Ended.ANY)
    days = serializers.IntegerField(min_value=MIN_DAYS, max_value=MAX_DAYS, help_text="After the end of the job.")


class RetentionRuleSerializer(serializers.ModelSerializer[RetentionRule]):
    class Meta:
        model = RetentionRule
        fields = ("id", "project", "part", "ended", "days", "created_at", "carried_out_at")
        read_only_fields = fields


class RulePreviewSerializer(serializers.Serializer[services.Preview]):
    jobs = serializers.IntegerField()
    bytes = serializers.IntegerField(help_text="That it would free now.")


class RetentionRules(KnownParameters, mixins.ListModelMixin, GenericViewSet[RetentionRule]):
    """Rules that remove what ended jobs left: those of your projects, and for admins those of the lab."""

    queryset = RetentionRule.objects.none()
    serializer_class = RetentionRuleSerializer

    def get_queryset(self) -> QuerySet[RetentionRule]:
        user = signed_in(self.request)
        visible = Q(project__in=Project.objects.visible_to(user).order_by().values("pk"))
        return RetentionRule.objects.filter(visible | Q(project=None) if user.is_admin else visible)

    def _project(self, number: int | None) -> Project | None:
        rows = Project.objects.visible_to(signed_in(self.request))
        return None if number is None else get_object_or_404(rows, pk=number)

    @extend_schema(
        request=RetentionRequestSerializer, responses={201: RetentionRuleSerializer, **refusals(400, 403, 404, 409)}
    )
    def create(self, request: Request) -> Response:
        """Set a rule. It is carried out every hour, for up to 500 jobs at a time."""
        sent = validated(RetentionRequestSerializer(data=request.data))
        project = self._project(sent.get("project"))
        rule = services.add(signed_in(request), project, sent["part"], sent["ended"], sent["days"])
        return Response(RetentionRuleSerializer(rule).data, status.HTTP_201_CREATED)

    @extend_schema(
        request=RetentionRequestSerializer, responses={200: RulePreviewSerializer, **refusals(400, 403, 404)}
    )
    def preview(self, request: Request) -> Response:
        """Return what a rule would remove now, without setting it."""
        sent = validated(RetentionRequestSerializer(data=request.data))
        project = self._project(sent.get("project"))
        services.require_may_set(signed_in(request), project)
        rule = services.unsaved(project, sent["part"], sent["ended"], sent["days"])
        return Response(RulePreviewSerializer(services.preview(rule)).data)

    @extend_schema(responses={204: None, **refusals(403, 404)})
    def destroy(self, request: Request, pk: int) -> Response:
        """Remove a rule. What it has removed stays removed."""
        services.remove(signed_in(request), self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)
