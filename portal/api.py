"""The routes of the REST API: a path below /api/v1/, and the view and action for each method."""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.shortcuts import render
from django.urls import URLPattern, include, path, re_path
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularJSONAPIView
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSetMixin

from portal.accounts.api import Me, Tokens
from portal.cluster.api import Environments, Reservations
from portal.forecast.api import Forecasts
from portal.jobs.api import Attempts, Events, Jobs
from portal.jobs.limits_api import Limits
from portal.jobs.log_api import Checkpoints, Log, Outputs, Streams
from portal.jobs.metric_api import Metrics, TrainingProgress
from portal.jobs.resize_timeline.api import ResizeTimelines
from portal.monitoring.api import Gauges
from portal.monitoring.node_api import Nodes
from portal.projects.api import Code, Gallery, Members, Projects
from portal.scheduler.api import Cycles, Policies, Policy, PolicyHistory, PolicyPreview, PolicyUndo
from portal.usage.api import LedgerReport, UsageReport
from portal.whatif.api import Simulations


def at(address: str, viewset: type[ViewSetMixin], *, pages: bool = True, **methods: str) -> URLPattern:
    """Return a route: ``at("jobs/", Jobs, get="list")``. Without ``pages``, the response has no paging and no filters."""
    actions: dict[str, Any] = dict(methods)
    options: dict[str, Any] = {} if pages else {"pagination_class": None, "filter_backends": []}
    name = f"{viewset.__name__.lower()}-{'-'.join(dict.fromkeys(methods.values()))}"
    return path(address, viewset.as_view(actions, **options), name=name)


def docs(request: HttpRequest) -> HttpResponse:
    """Show the interactive reference, from files that ship with the portal. Its writes need the CSRF cookie."""
    get_token(request)
    return render(request, "accounts/api_docs.html")


@extend_schema(exclude=True)
class UnknownPath(APIView):
    """Answers unknown paths with 404, in the same format as other errors."""

    permission_classes = [AllowAny]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        raise Http404

    def get(self, request: Request, rest: str) -> Response:
        raise Http404


PROJECT = "projects/<int:project_pk>/"
CODE = f"{PROJECT}code/<int:number>/"
JOB = "jobs/<int:job_pk>/"

v1 = [
    path("me/", Me.as_view(), name="me"),
    at("tokens/", Tokens, get="list", post="create"),
    at("tokens/<int:pk>/", Tokens, get="retrieve", delete="destroy"),
    at("limits/", Limits, get="list"),
    at("limits/users/<str:username>/", Limits, get="of_user", put="set_user"),
    at("limits/groups/<path:name>/", Limits, get="of_group", put="set_group"),
    at("projects/", Projects, get="list", post="create"),
    at("projects/<int:pk>/", Projects, get="retrieve", patch="partial_update", delete="destroy"),
    at("projects/<int:pk>/restore/", Projects, post="restore"),
    at(f"{PROJECT}members/", Members, get="list", post="create"),
    at(f"{PROJECT}members/<str:username>/", Members, patch="partial_update", delete="destroy"),
    at(f"{PROJECT}code/", Code, get="list", post="create"),
    at(CODE, Code, get="retrieve"),
    at(f"{CODE}files/", Code, pages=False, get="files"),
    at(f"{CODE}files/<path:path>", Code, pages=False, get="file"),
    at(f"{CODE}diff/", Code, pages=False, get="diff"),
    at(f"{CODE}download/", Code, pages=False, get="download"),
    at("gallery/", Gallery, get="list"),
    at("gallery/<slug:key>/use/", Gallery, post="use"),
    at("jobs/", Jobs, get="list", post="create"),
    at("jobs/<int:pk>/", Jobs, get="retrieve"),
    at("jobs/<int:pk>/cancel/", Jobs, post="cancel"),
    at("jobs/<int:pk>/hold/", Jobs, post="hold"),
    at("jobs/<int:pk>/release/", Jobs, post="release"),
    at("jobs/<int:pk>/retry/", Jobs, post="retry"),
    at(f"{JOB}forecast/", Forecasts, pages=False, get="retrieve"),
    at(f"{JOB}forecast/changes/", Forecasts, pages=False, get="changes", post="change"),
    at(f"{JOB}events/", Events, get="list"),
    at(f"{JOB}attempts/", Attempts, get="list"),
    at(f"{JOB}attempts/<int:number>/", Attempts, get="retrieve"),
    at(f"{JOB}streams/", Streams, get="list"),
    at(f"{JOB}log/", Log, pages=False, get="text"),
    at(f"{JOB}log/follow/", Log, pages=False, get="follow"),
    at(f"{JOB}metrics/", Metrics, get="list"),
    at(f"{JOB}progress/", TrainingProgress, pages=False, get="last"),
    at(f"{JOB}checkpoints/", Checkpoints, pages=False, get="whole"),
    at(f"{JOB}checkpoints/<path:path>", Checkpoints, pages=False, get="file"),
    at(f"{JOB}outputs/", Outputs, get="list"),
    at(f"{JOB}outputs/<path:path>", Outputs, pages=False, get="file"),
    at(f"{JOB}readings/", Gauges, get="job_readings"),
    at(f"{JOB}band/", ResizeTimelines, get="retrieve"),
    at("environments/", Environments, get="list"),
    at("environments/<slug:key>/", Environments, get="retrieve"),
    at("nodes/", Nodes, get="list"),
    at("nodes/join-token/", Nodes, post="join_token"),
    at("nodes/<int:pk>/", Nodes, get="retrieve", delete="destroy"),
    at("nodes/<int:pk>/approve/", Nodes, post="approve"),
    at("nodes/<int:pk>/cordon/", Nodes, post="cordon"),
    at("nodes/<int:pk>/drain/", Nodes, post="drain"),
    at("nodes/<int:pk>/resume/", Nodes, post="resume"),
    at("nodes/<int:pk>/rotate-token/", Nodes, post="rotate_token"),
    at("nodes/<int:pk>/revoke-token/", Nodes, post="revoke_token"),
    at("nodes/<int:pk>/rejoin-token/", Nodes, post="rejoin_token"),
    at("nodes/<int:pk>/gpus/<int:index>/quarantine/", Nodes, post="quarantine_gpu"),
    at("nodes/<int:pk>/gpus/<int:index>/release/", Nodes, post="release_gpu"),
    at("gpus/", Gauges, get="list"),
    at("gpus/<int:pk>/readings/", Gauges, get="readings"),
    at("timeline/", Gauges, get="timeline"),
    at("reservations/", Reservations, get="list", post="create"),
    at("reservations/<int:pk>/", Reservations, delete="destroy"),
    at("usage/", UsageReport, get="report"),
    at("ledger/", LedgerReport, get="report"),
    path("policy/", Policy.as_view(), name="policy"),
    path("policy/preview/", PolicyPreview.as_view(), name="policy-preview"),
    path("policy/undo/", PolicyUndo.as_view(), name="policy-undo"),
    at("policy/history/", PolicyHistory, get="list"),
    at("cycles/", Cycles, get="list"),
    at("simulations/", Simulations, get="list", post="create"),
    at("simulations/<int:pk>/", Simulations, get="retrieve"),
    at("simulations/<int:pk>/cancel/", Simulations, post="cancel"),
    path("policies/", Policies.as_view(), name="policies"),
]

app_name = "api"
urlpatterns = [
    path("v1/", include(v1)),
    path("schema/", SpectacularJSONAPIView.as_view(), name="schema"),
    path("docs/", docs, name="docs"),
    re_path(r"^(?P<rest>.*)$", UnknownPath.as_view(), name="nothing"),
]
