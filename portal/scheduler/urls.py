from django.urls import URLPattern, URLResolver, path, re_path

from portal.scheduler import overview, views

app_name = "scheduler"

urlpatterns: list[URLPattern | URLResolver] = [
    path("admin/", overview.overview, name="admin"),
    re_path(r"^admin/hide/(?P<key>processes|mail|site|invitations)$", overview.hide_notice, name="hide-notice"),
    path("admin/policy/", views.policy, name="policy"),
    path("admin/policy/preview/", views.policy_preview, name="policy-preview"),
    path("admin/policy/undo/", views.policy_undo, name="policy-undo"),
    path("admin/policy/keep/", views.policy_keep, name="policy-keep"),
]
