from django.urls import URLPattern, URLResolver, path, re_path

from portal.deletion import code_views, environment_views, project_views
from portal.deletion.people import views as person_views

app_name = "deletion"
urlpatterns: list[URLPattern | URLResolver] = [
    path("projects/<int:pk>/code/delete", code_views.delete, name="code"),
    path("accounts/export/", person_views.export_own, name="export-own"),
    path("admin/users/<int:pk>/export", person_views.export, name="export-person"),
    path("admin/users/<int:pk>/erase", person_views.erase, name="erase-person"),
    path("environments/<slug:key>/remove", environment_views.remove, name="environment"),
    path("projects/<int:pk>/delete", project_views.delete, name="project"),
    path("trash/projects/", project_views.trash, name="project-trash"),
    re_path(
        r"^trash/projects/(?P<pk>[0-9]{1,18})/(?P<what>restore|erase)$", project_views.act, name="project-in-trash"
    ),
    path("trash/code/", code_views.trash, name="code-trash"),
    re_path(r"^trash/code/(?P<pk>[0-9]{1,18})/(?P<what>restore|erase)$", code_views.act, name="code-in-trash"),
]
