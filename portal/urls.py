"""The URL map. A new route needs a row in tests/laws/route_matrix.py."""

from django.urls import include, path

from portal.home.views import home
from portal.ops.data_admin.site import site as data_site

urlpatterns = [
    path("", home, name="home"),
    path("", include("portal.accounts.urls")),
    path("api/", include("portal.api")),
    path("", include("portal.projects.urls")),
    path("", include("portal.environments.urls")),
    path("", include("portal.jobs.urls")),
    path("", include("portal.cluster.urls")),
    path("", include("portal.usage.urls")),
    path("", include("portal.monitoring.urls")),
    path("", include("portal.notifications.urls")),
    path("", include("portal.schedules.urls")),
    path("", include("portal.agents.urls")),
    path("", include("portal.scheduler.urls")),
    path("", include("portal.forecast.urls")),
    path("", include("portal.whatif.urls")),
    path("", include("portal.deletion.urls")),
    path("", include("portal.interface.urls")),
    path("", include("portal.home.urls")),
    path("admin/data/", data_site.urls),
]

handler400 = "portal.errors.bad_request"
handler403 = "portal.errors.forbidden"
handler404 = "portal.errors.not_found"
handler500 = "portal.errors.server_error"
