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

from portal.accounts.admin_api import Audit, Groups, Invitations
from portal.accounts.api import Me, Tokens
from portal.cluster.api import Reservations
from portal.deletion.code_api import Code, CodeTrash
from portal.deletion.environment_api import Environments
from portal.deletion.people.api import Erasures, OwnExport
from portal.deletion.project_api import ProjectDeletion, ProjectTrash
from portal.environments.api import Builds, Locks
from portal.environments.host_api import AllowedHosts
from portal.environments.image_api import Images, Registries
from portal.forecast.api import Forecasts
from portal.forecast.extension_api import AllTimeExtensions, TimeExtensions
from portal.forecast.queue_api import Queue
from portal.jobs.api import Attempts, Events, Jobs
from portal.jobs.departure_api import Users
from portal.jobs.limits_api import Limits
from portal.jobs.log_api import Checkpoints, Log, Outputs, Streams
from portal.jobs.metric_api import Metrics, TrainingProgress
from portal.jobs.network_api import JobNetwork
from portal.jobs.resize_timeline.api import ResizeTimelines
from portal.jobs.retention.api import RetentionRules
from portal.jobs.space_api import Space
from portal.jobs.trash_api import Trash
from portal.monitoring.api import Gauges
from portal.monitoring.board_api import Occupancy
from portal.monitoring.node_api import Nodes
from portal.notifications.api import LabWebhooks, Notices, WebhookDeliveries, Webhooks
from portal.projects.api import Gallery, Members, Projects
from portal.projects.git.api import Fetches, Git, GitHosts
from portal.scheduler.api import Cycles, Policies, Policy, PolicyHistory, PolicyPreview, PolicyUndo
from portal.schedules.api import ScheduleRuns, Schedules
from portal.secrets.api import ProjectSecrets, Secrets
from portal.storage.api import Datasets, DatasetVersions
from portal.storage.upload_api import Uploads, VersionUploads
from portal.usage.api import LedgerReport, UsageReport
from portal.whatif.api import Simulations


def route(address: str, viewset: type[ViewSetMixin], *, pages: bool = True, **methods: str) -> URLPattern:
    """Return a route: ``route("jobs/", Jobs, get="list")``. Without ``pages``, the response has no paging and no filters."""
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
WEBHOOK = f"{PROJECT}webhooks/<int:pk>/"
CODE = f"{PROJECT}code/<int:number>/"
JOB = "jobs/<int:job_pk>/"
DATASET_VERSION = "datasets/<int:dataset_pk>/versions/<int:number>/"
ENVIRONMENT = "environments/<slug:environment_key>/"

v1 = [
    path("me/", Me.as_view(), name="me"),
    route("me/export/", OwnExport, pages=False, get="export"),
    route("tokens/", Tokens, get="list", post="create"),
    route("tokens/<int:pk>/", Tokens, get="retrieve", delete="destroy"),
    route("secrets/", Secrets, get="list", post="create"),
    route("secrets/<str:name>/", Secrets, put="replace", delete="destroy"),
    route("limits/", Limits, get="list"),
    route("limits/users/<str:username>/", Limits, get="of_user", put="set_user"),
    route("limits/groups/<path:name>/", Limits, get="of_group", put="set_group"),
    route("users/", Users, get="list"),
    route("users/<int:pk>/", Users, get="retrieve"),
    route("users/<int:pk>/activate/", Users, post="activate"),
    route("users/<int:pk>/deactivate/", Users, post="deactivate"),
    route("users/<int:pk>/make-admin/", Users, post="make_admin"),
    route("users/<int:pk>/make-member/", Users, post="make_member"),
    route("users/<int:pk>/erasure/", Erasures, pages=False, get="what_breaks", post="erase"),
    route("users/<int:pk>/export/", Erasures, pages=False, post="export"),
    route("groups/", Groups, get="list", post="create"),
    route("groups/<int:pk>/", Groups, get="retrieve", delete="destroy"),
    route("groups/<int:pk>/members/", Groups, put="set_members"),
    route("invitations/", Invitations, get="list", post="create"),
    route("invitations/<int:pk>/", Invitations, get="retrieve", delete="destroy"),
    route("audit/", Audit, get="list"),
    route("projects/", Projects, get="list", post="create"),
    route("projects/<int:pk>/", Projects, get="retrieve", patch="partial_update", delete="destroy"),
    route("projects/<int:pk>/restore/", Projects, post="restore"),
    route("projects/<int:pk>/deletion/", ProjectDeletion, pages=False, get="what_breaks", post="delete_project"),
    route("projects/<int:pk>/empty-caches/", Projects, post="empty_caches"),
    route(f"{PROJECT}members/", Members, get="list", post="create"),
    route(f"{PROJECT}members/<str:username>/", Members, patch="partial_update", delete="destroy"),
    route(f"{PROJECT}secrets/", ProjectSecrets, get="list", post="create"),
    route(f"{PROJECT}secrets/<str:name>/", ProjectSecrets, put="replace", delete="destroy"),
    route(f"{PROJECT}webhooks/", Webhooks, get="list", post="create"),
    route(WEBHOOK, Webhooks, get="retrieve", patch="partial_update", delete="destroy"),
    route(f"{WEBHOOK}test/", Webhooks, post="test"),
    route(f"{WEBHOOK}resume/", Webhooks, post="resume"),
    route(f"{WEBHOOK}deliveries/", WebhookDeliveries, get="list"),
    route(f"{WEBHOOK}deliveries/<int:delivery_pk>/again/", WebhookDeliveries, post="again"),
    route("webhooks/", LabWebhooks, get="list", post="create"),
    route("webhooks/<int:pk>/", LabWebhooks, get="retrieve", patch="partial_update", delete="destroy"),
    route("schedules/", Schedules, get="list", post="create"),
    route("schedules/<int:pk>/", Schedules, get="retrieve", patch="partial_update", delete="destroy"),
    route("schedules/<int:pk>/pause/", Schedules, post="pause"),
    route("schedules/<int:pk>/resume/", Schedules, post="resume"),
    route("schedules/<int:pk>/submit/", Schedules, post="submit"),
    route("schedules/<int:schedule_pk>/runs/", ScheduleRuns, get="list"),
    route("notices/", Notices, get="list"),
    route("notices/read/", Notices, post="read"),
    route(f"{PROJECT}code/", Code, get="list", post="create"),
    route(CODE, Code, get="retrieve", delete="destroy"),
    route(f"{CODE}deletion/", Code, pages=False, get="what_breaks"),
    route(f"{PROJECT}code/deletion/", Code, post="delete_some"),
    route(f"{CODE}files/", Code, pages=False, get="files"),
    route(f"{CODE}files/<path:path>", Code, pages=False, get="file"),
    route(f"{CODE}diff/", Code, pages=False, get="diff"),
    route(f"{CODE}download/", Code, pages=False, get="download"),
    route(f"{PROJECT}git/", Git, get="current", put="bind", delete="unbind"),
    route(f"{PROJECT}git/fetch/", Git, post="fetch"),
    route(f"{PROJECT}git/confirm-host-key/", Git, post="confirm_host_key"),
    route(f"{PROJECT}git/new-key/", Git, post="new_key"),
    route(f"{PROJECT}git/webhook/", Git, post="new_webhook", delete="remove_webhook"),
    route(f"{PROJECT}git/fetches/", Fetches, get="list"),
    route(f"{PROJECT}git/fetches/<int:pk>/", Fetches, get="retrieve"),
    route(f"{PROJECT}git/fetches/<int:pk>/log/", Fetches, pages=False, get="log"),
    route(f"{PROJECT}git/fetches/<int:pk>/cancel/", Fetches, post="cancel"),
    route("git-hosts/", GitHosts, get="list", post="create"),
    route("git-hosts/<int:pk>/", GitHosts, get="retrieve", delete="destroy"),
    route("gallery/", Gallery, get="list"),
    route("gallery/<slug:key>/use/", Gallery, post="use"),
    route("jobs/", Jobs, get="list", post="create"),
    route("jobs/<int:pk>/", Jobs, get="retrieve", patch="partial_update", delete="destroy"),
    route("jobs/<int:pk>/cancel/", Jobs, post="cancel"),
    route("jobs/<int:pk>/hold/", Jobs, post="hold"),
    route("jobs/<int:pk>/release/", Jobs, post="release"),
    route("jobs/<int:pk>/retry/", Jobs, post="retry"),
    route("jobs/<int:pk>/keep/", Jobs, post="keep"),
    route("jobs/<int:pk>/stop-keeping/", Jobs, post="stop_keeping"),
    route("space/projects/", Space, get="list"),
    route("space/projects/<int:pk>/", Space, get="retrieve", put="set_project"),
    route("space/people/", Space, get="list_people"),
    route("retention-rules/", RetentionRules, get="list", post="create"),
    route("retention-rules/preview/", RetentionRules, post="preview"),
    route("retention-rules/<int:pk>/", RetentionRules, delete="destroy"),
    route("trash/", Trash, get="list"),
    route("trash/<int:pk>/", Trash, delete="destroy"),
    route("trash/<int:pk>/restore/", Trash, post="restore"),
    route("trash/projects/", ProjectTrash, get="list"),
    route("trash/projects/<int:pk>/", ProjectTrash, delete="destroy"),
    route("trash/projects/<int:pk>/restore/", ProjectTrash, post="restore"),
    route("trash/code/", CodeTrash, get="list"),
    route("trash/code/<int:pk>/", CodeTrash, delete="destroy"),
    route("trash/code/<int:pk>/restore/", CodeTrash, post="restore"),
    route(f"{JOB}forecast/", Forecasts, pages=False, get="retrieve"),
    route(f"{JOB}forecast/changes/", Forecasts, pages=False, get="changes", post="change"),
    route(f"{JOB}time-extensions/", TimeExtensions, get="list", post="create"),
    route(f"{JOB}time-extensions/compare/", TimeExtensions, post="compare"),
    route(f"{JOB}time-extensions/<int:pk>/withdraw/", TimeExtensions, post="withdraw"),
    route("time-extensions/", AllTimeExtensions, get="list"),
    route("time-extensions/<int:pk>/grant/", AllTimeExtensions, post="grant"),
    route("time-extensions/<int:pk>/refuse/", AllTimeExtensions, post="refuse"),
    route(f"{JOB}events/", Events, get="list"),
    route(f"{JOB}attempts/", Attempts, get="list"),
    route(f"{JOB}attempts/<int:number>/", Attempts, get="retrieve"),
    route(f"{JOB}streams/", Streams, get="list"),
    route(f"{JOB}log/", Log, pages=False, get="text"),
    route(f"{JOB}log/follow/", Log, pages=False, get="follow"),
    route(f"{JOB}metrics/", Metrics, get="list"),
    route(f"{JOB}progress/", TrainingProgress, pages=False, get="last"),
    route(f"{JOB}network/", JobNetwork, pages=False, get="whole"),
    route(f"{JOB}checkpoints/", Checkpoints, pages=False, get="whole"),
    route(f"{JOB}checkpoints/<path:path>", Checkpoints, pages=False, get="file"),
    route(f"{JOB}outputs/", Outputs, get="list"),
    route(f"{JOB}outputs/<path:path>", Outputs, pages=False, get="file"),
    route(f"{JOB}readings/", Gauges, get="job_readings"),
    route(f"{JOB}band/", ResizeTimelines, get="retrieve"),
    route("queue/", Queue, get="whole"),
    route("environments/", Environments, get="list", post="create"),
    route("environments/<slug:key>/", Environments, get="retrieve", delete="destroy"),
    route("environments/<slug:key>/deletion/", Environments, pages=False, get="what_breaks"),
    route("environments/<slug:key>/build/", Environments, post="build"),
    route("images/", Images, get="current", post="create", put="change"),
    route("registries/", Registries, get="list", post="create"),
    route("registries/<int:pk>/", Registries, delete="destroy"),
    route(f"{ENVIRONMENT}locks/<slug:digest>/", Locks, pages=False, get="file"),
    route(f"{ENVIRONMENT}builds/", Builds, get="list"),
    route(f"{ENVIRONMENT}builds/<int:pk>/", Builds, get="retrieve"),
    route(f"{ENVIRONMENT}builds/<int:pk>/log/", Builds, pages=False, get="log"),
    route(f"{ENVIRONMENT}builds/<int:pk>/cancel/", Builds, post="cancel"),
    route("allowed-hosts/", AllowedHosts, get="list", post="create"),
    route("allowed-hosts/<int:pk>/", AllowedHosts, get="retrieve", delete="destroy"),
    route("datasets/", Datasets, get="list", post="create"),
    route("datasets/<int:pk>/", Datasets, get="retrieve", patch="partial_update", delete="destroy"),
    route("datasets/<int:pk>/restore/", Datasets, post="restore"),
    route("datasets/<int:dataset_pk>/versions/", DatasetVersions, get="list", post="create"),
    route(DATASET_VERSION, DatasetVersions, get="retrieve", delete="destroy"),
    route(f"{DATASET_VERSION}finish/", DatasetVersions, post="finish"),
    route(f"{DATASET_VERSION}files/", DatasetVersions, pages=False, get="files"),
    route(f"{DATASET_VERSION}files/<path:path>", DatasetVersions, pages=False, get="file"),
    route(f"{DATASET_VERSION}manifest/", DatasetVersions, pages=False, get="manifest"),
    route(f"{DATASET_VERSION}uploads/", VersionUploads, get="list", post="create"),
    route("uploads/<uuid:pk>/", Uploads, pages=False, get="retrieve", patch="append", delete="destroy"),
    route("nodes/", Nodes, get="list"),
    route("nodes/join-token/", Nodes, post="join_token"),
    route("nodes/<int:pk>/", Nodes, get="retrieve", delete="destroy"),
    route("nodes/<int:pk>/approve/", Nodes, post="approve"),
    route("nodes/<int:pk>/cordon/", Nodes, post="cordon"),
    route("nodes/<int:pk>/drain/", Nodes, post="drain"),
    route("nodes/<int:pk>/resume/", Nodes, post="resume"),
    route("nodes/<int:pk>/rotate-token/", Nodes, post="rotate_token"),
    route("nodes/<int:pk>/revoke-token/", Nodes, post="revoke_token"),
    route("nodes/<int:pk>/rejoin-token/", Nodes, post="rejoin_token"),
    route("nodes/<int:pk>/gpus/<int:index>/quarantine/", Nodes, post="quarantine_gpu"),
    route("nodes/<int:pk>/gpus/<int:index>/release/", Nodes, post="release_gpu"),
    route("gpus/", Gauges, get="list"),
    route("gpus/<int:pk>/readings/", Gauges, get="readings"),
    route("occupancy/", Occupancy, get="now"),
    route("timeline/", Gauges, get="timeline"),
    route("reservations/", Reservations, get="list", post="create"),
    route("reservations/<int:pk>/", Reservations, delete="destroy"),
    route("usage/", UsageReport, get="report"),
    route("ledger/", LedgerReport, get="report"),
    path("policy/", Policy.as_view(), name="policy"),
    path("policy/preview/", PolicyPreview.as_view(), name="policy-preview"),
    path("policy/undo/", PolicyUndo.as_view(), name="policy-undo"),
    route("policy/history/", PolicyHistory, get="list"),
    route("cycles/", Cycles, get="list"),
    route("simulations/", Simulations, get="list", post="create"),
    route("simulations/<int:pk>/", Simulations, get="retrieve"),
    route("simulations/<int:pk>/cancel/", Simulations, post="cancel"),
    path("policies/", Policies.as_view(), name="policies"),
]

app_name = "api"
urlpatterns = [
    path("v1/", include(v1)),
    path("schema/", SpectacularJSONAPIView.as_view(), name="schema"),
    path("docs/", docs, name="docs"),
    re_path(r"^(?P<rest>.*)$", UnknownPath.as_view(), name="nothing"),
]
