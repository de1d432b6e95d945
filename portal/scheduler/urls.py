from django.urls import URLPattern, URLResolver, path

from portal.scheduler import views

app_name = "scheduler"

urlpatterns: list[URLPattern | URLResolver] = [
    path("admin/", views.admin, name="admin"),
    path("admin/policy/", views.policy, name="policy"),
    path("admin/policy/preview/", views.policy_preview, name="policy-preview"),
    path("admin/policy/undo/", views.policy_undo, name="policy-undo"),
    path("admin/policy/keep/", views.policy_keep, name="policy-keep"),
]
