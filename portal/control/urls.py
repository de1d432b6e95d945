from django.urls import URLPattern, URLResolver, path

from portal.control import agent_checkpoints, agent_identity, agent_rings, agents, views

app_name = "control"

agent_routes: list[URLPattern | URLResolver] = [
    path("agent/v1/join", agents.join, name="agent-join"),
    path("agent/v1/sync", agents.sync, name="agent-sync"),
    path("agent/v1/token", agents.new_token, name="agent-token"),
    path("agent/v1/wait", agents.wait, name="agent-wait"),
    path("agent/v1/code/<str:sha256>", agents.code, name="agent-code"),
    path("agent/v1/containers/<str:name>/logs/<str:stream>", agents.append_log, name="agent-log"),
    path("agent/v1/containers/<str:name>/outputs/<path:path>", agents.output, name="agent-output"),
    path("agent/v1/containers/<str:name>/identity", agent_identity.identity, name="agent-identity"),
    path("agent/v1/containers/<str:name>/rings", agent_rings.tell, name="agent-rings"),
    path("agent/v1/containers/<str:name>/checkpoints", agent_checkpoints.whole, name="agent-checkpoints"),
    path("agent/v1/containers/<str:name>/checkpoints/<str:sha256>", agent_checkpoints.piece, name="agent-checkpoint"),
]

urlpatterns: list[URLPattern | URLResolver] = [
    *agent_routes,
    path("admin/", views.admin, name="admin"),
    path("admin/policy/", views.policy, name="policy"),
    path("admin/policy/preview/", views.policy_preview, name="policy-preview"),
    path("admin/policy/undo/", views.policy_undo, name="policy-undo"),
    path("admin/policy/keep/", views.policy_keep, name="policy-keep"),
]
