from django.urls import URLPattern, URLResolver, path, re_path

from portal.monitoring import node_views, views

app_name = "monitoring"
urlpatterns: list[URLPattern | URLResolver] = [
    path("gpus/", views.gpus, name="gpus"),
    path("gpus/nodes/<int:pk>/", views.node, name="node"),
    path("gpus/timeline/", views.timeline, name="timeline"),
    path("jobs/<int:pk>/gpus", views.job_readings, name="job"),
    path("nodes/", node_views.nodes, name="nodes"),
    path("admin/nodes/", node_views.admin_nodes, name="admin-nodes"),
    re_path(r"^admin/nodes/(?P<pk>[0-9]{1,18})/$", node_views.admin_node, name="admin-node"),
]
