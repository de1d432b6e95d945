from django.urls import URLPattern, URLResolver, path, re_path

from portal.schedules import views

app_name = "schedules"
urlpatterns: list[URLPattern | URLResolver] = [
    path("schedules/", views.own, name="own"),
    path("schedules/new", views.new, name="new"),
    path("schedules/<int:pk>/", views.detail, name="detail"),
    path("schedules/<int:pk>/edit", views.edit, name="edit"),
    re_path(r"^schedules/(?P<pk>[0-9]{1,18})/(?P<what>pause|resume|delete|submit)$", views.act, name="act"),
    path("projects/<int:pk>/schedules", views.of_project, name="project"),
]
