from django.urls import URLPattern, URLResolver, path

from portal.monitoring import views

app_name = "monitoring"
urlpatterns: list[URLPattern | URLResolver] = [
    path("gpus/", views.gpus, name="gpus"),
    path("gpus/nodes/<int:pk>/", views.node, name="node"),
    path("gpus/timeline/", views.timeline, name="timeline"),
    path("jobs/<int:pk>/gpus", views.of_job, name="job"),
]
