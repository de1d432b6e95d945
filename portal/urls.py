"""The URL map. A new route needs a row in the stranger's tour (tests/laws)."""

from django.urls import include, path

urlpatterns = [
    path("accounts/", include("portal.accounts.urls")),
    path("projects/", include("portal.projects.urls")),
    path("", include("portal.jobs.urls")),
    path("", include("portal.cluster.urls")),
    path("", include("portal.control.urls")),
]
