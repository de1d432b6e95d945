from django.urls import URLPattern, URLResolver, path

from portal.agents import (
    build_views,
    checkpoint_views,
    dataset_views,
    erasure_views,
    git_views,
    identity_views,
    input_views,
    network_views,
    rank_group_views,
    secret_views,
    views,
)

app_name = "agents"

urlpatterns: list[URLPattern | URLResolver] = [
    path("agent/v1/join", views.join, name="join"),
    path("agent/v1/sync", views.sync, name="sync"),
    path("agent/v1/token", views.new_token, name="token"),
    path("agent/v1/wait", views.wait, name="wait"),
    path("agent/v1/erased-jobs", erasure_views.erased_jobs, name="erased-jobs"),
    path("agent/v1/code/<str:sha256>", views.code, name="code"),
    path("agent/v1/environments/<slug:key>/claim", build_views.claim, name="claim"),
    path("agent/v1/builds/<int:pk>/progress", build_views.progress, name="build-progress"),
    path("agent/v1/builds/<int:pk>/archive", build_views.archive, name="build-archive"),
    path("agent/v1/builds/<int:pk>/end", build_views.end, name="build-end"),
    path("agent/v1/git/claim", git_views.claim, name="git-claim"),
    path("agent/v1/git/<int:pk>/progress", git_views.progress, name="git-progress"),
    path("agent/v1/git/<int:pk>/archive", git_views.archive, name="git-archive"),
    path("agent/v1/git/<int:pk>/end", git_views.end, name="git-end"),
    path("agent/v1/layers/<str:digest>", build_views.layer, name="layer"),
    path("agent/v1/images/<str:digest>/source", build_views.image_source, name="image-source"),
    path("agent/v1/containers/<str:name>/logs/<str:stream>", views.append_log, name="log"),
    path("agent/v1/containers/<str:name>/outputs/<path:path>", views.output, name="output"),
    path("agent/v1/containers/<str:name>/identity", identity_views.identity, name="identity"),
    path("agent/v1/containers/<str:name>/inputs", input_views.input_list, name="inputs"),
    path("agent/v1/containers/<str:name>/inputs/<str:sha256>", input_views.input_file, name="input"),
    path("agent/v1/containers/<str:name>/secrets", secret_views.secret_list, name="secrets"),
    path("agent/v1/containers/<str:name>/datasets/<str:sha256>/manifest", dataset_views.manifest, name="manifest"),
    path("agent/v1/containers/<str:name>/datasets/<str:sha256>/contents", dataset_views.contents, name="contents"),
    path("agent/v1/containers/<str:name>/network", network_views.report, name="network"),
    path("agent/v1/containers/<str:name>/rings", rank_group_views.report, name="rings"),
    path("agent/v1/containers/<str:name>/checkpoints", checkpoint_views.checkpoint_set, name="checkpoints"),
    path(
        "agent/v1/containers/<str:name>/checkpoints/<str:sha256>", checkpoint_views.checkpoint_piece, name="checkpoint"
    ),
]
