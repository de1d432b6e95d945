"""The URL map. A new route needs a row in the stranger's tour (tests/laws)."""

from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="accounts:profile"), name="home"),
    path("", include("portal.accounts.urls")),
    path("projects/", include("portal.projects.urls")),
    path("", include("portal.jobs.urls")),
    path("", include("portal.cluster.urls")),
    path("", include("portal.control.urls")),
]
