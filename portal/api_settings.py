"""Settings of the REST API and of its schema, which no environment variable changes; ``portal.settings`` takes them."""

from typing import Any

from runners import __version__ as VERSION  # noqa: N812  # as in portal.settings


def rest_framework(*, proxies: int) -> dict[str, Any]:
    """Return the settings of Django REST framework behind so many proxies that set X-Forwarded-For."""
    return {
        "DEFAULT_AUTHENTICATION_CLASSES": [
            "portal.accounts.authentication.TokenAuthentication",
            "rest_framework.authentication.SessionAuthentication",
        ],
        "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
        "DEFAULT_PAGINATION_CLASS": "portal.rest.Pages",
        "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
        "DEFAULT_SCHEMA_CLASS": "portal.schema.Operations",
        "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
        "DEFAULT_PARSER_CLASSES": ["portal.rest.Json"],
        "DEFAULT_THROTTLE_CLASSES": ["rest_framework.throttling.UserRateThrottle"],
        "DEFAULT_THROTTLE_RATES": {"user": "3000/min", "anon": "300/min"},
        "NUM_PROXIES": proxies,
        "EXCEPTION_HANDLER": "portal.rest.exception_handler",
        "PAGE_SIZE": 50,
    }


SPECTACULAR_SETTINGS = {
    "TITLE": "Schedulearn",
    "DESCRIPTION": "Share a lab's GPU machines: projects, code, jobs, logs, outputs, nodes, policy.",
    "VERSION": VERSION,
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.IsAuthenticated"],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "COMPONENT_SPLIT_REQUEST": True,  # so that generated clients neither ask for read-only fields nor send files as text
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "portal.schema.document_refusals",
        "portal.schema.allow_empty_addresses",
        "portal.schema.name_falling_orders",
        "portal.schema.name_path_parameters",
    ],
    "SERVERS": [{"url": "/", "description": "This portal"}],
    "ENUM_SUFFIX": "",
    "ENUM_ADD_EXPLICIT_BLANK_NULL_CHOICE": False,
    "ENUM_NAME_OVERRIDES": {
        "JobState": "portal.jobs.models.JobState",
        "ContainerState": "portal.jobs.models.ContainerState",
        "ContainerRole": "portal.jobs.models.Container.Role",
        "MemberRole": "portal.projects.models.Membership.Role",
        "GpuKind": "portal.cluster.models.Gpu.Kind",
        "GpuCondition": "portal.monitoring.board.CONDITIONS",
        "NodeRuntime": "portal.cluster.models.Node.Runtime",
        "JobIntent": "portal.jobs.models.Job.Intent",
        "SyncMode": "portal.jobs.models.Job.Mode",
        "FetchCause": "portal.projects.git.models.GitFetch.Cause",
        "FetchState": "portal.projects.git.models.GitFetch.State",
        "GitSoftware": "portal.projects.git.models.GitHost.Kind",
        "SecretKind": "portal.secrets.models.Secret.Kind",
        "TokenScope": "portal.accounts.models.ApiToken.Scope",
        "SimulationStatus": "portal.whatif.models.Simulation.State",
        "DeliveryStatus": "portal.notifications.models.Delivery.Status",
        "WebhookEvent": "portal.notifications.serializers.EVENT_NAMES",
        "UsageGrouping": "portal.usage.api.GROUPINGS",
        "LedgerLineKind": "portal.usage.api.LINE_KINDS",
        "PolicyKnowledge": "portal.scheduler.serializers.KNOWLEDGE",
    },
}
