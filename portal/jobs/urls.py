from django.urls import URLPattern, URLResolver, path, re_path

from portal.jobs import (
    curve_views,
    departure_views,
    downloads,
    gallery_views,
    job_views,
    limit_views,
    output_views,
    views,
)

app_name = "jobs"
urlpatterns: list[URLPattern | URLResolver] = [
    path("jobs/", views.job_list, name="list"),
    path("jobs/new", views.new, name="new"),
    path("gallery/<slug:key>/run", gallery_views.run, name="run-example"),
    path("jobs/new/warnings", views.new_warnings, name="new-warnings"),
    path("jobs/cancel", views.cancel_many, name="cancel-many"),
    path("jobs/compare", curve_views.compare, name="compare"),
    path("jobs/curves.json", curve_views.curve_data, name="curves"),
    path("jobs/<int:pk>/", job_views.overview, name="detail"),
    re_path(r"^jobs/(?P<pk>[0-9]{1,18})/(?P<key>log|files|gpus|details)/$", job_views.other_tab, name="tab"),
    path("jobs/<int:pk>/training", curve_views.training, name="training"),
    path("jobs/<int:pk>/metrics.csv", curve_views.metrics_csv, name="metrics"),
    path("jobs/<int:pk>/live", job_views.live, name="live"),
    re_path(r"^jobs/(?P<pk>[0-9]{1,18})/(?P<what>cancel|hold|release|retry)$", job_views.act, name="act"),
    path("jobs/<int:pk>/log.txt", downloads.log, name="log"),
    path("jobs/<int:pk>/streams/<int:stream_pk>.log", downloads.raw_stream, name="stream"),
    path("jobs/<int:pk>/outputs.zip", downloads.all_outputs, name="outputs"),
    path("jobs/<int:pk>/outputs/<path:path>", downloads.output, name="output"),
    path("jobs/<int:pk>/checkpoints/<path:path>", downloads.checkpoint, name="checkpoint"),
    path("jobs/<int:pk>/view/<path:path>", output_views.view_output, name="view-output"),
    path("jobs/<int:pk>/image/<path:path>", output_views.image, name="image"),
    path("jobs/<int:pk>/media/<path:path>", output_views.media, name="media"),
    path("jobs/<int:pk>/framed/<path:path>", output_views.framed, name="framed"),
    path("admin/users/<int:pk>/deactivate/", departure_views.deactivate, name="deactivate-user"),
    path("admin/limits/", limit_views.limits, name="limits"),
    path("admin/limits/users/<int:pk>/", limit_views.limit_user, name="limit-user"),
    path("admin/limits/groups/<int:pk>/", limit_views.limit_group, name="limit-group"),
]
