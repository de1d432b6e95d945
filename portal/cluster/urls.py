from django.urls import URLPattern, URLResolver, path, re_path

from portal.cluster import views

app_name = "cluster"
urlpatterns: list[URLPattern | URLResolver] = [
    path("nodes/", views.nodes, name="nodes"),
    path("reservations/", views.reservations, name="reservations"),
    re_path(r"^reservations/(?P<pk>[0-9]{1,18})/cancel$", views.cancel_reservation, name="cancel-reservation"),
    path("admin/nodes/", views.admin_nodes, name="admin-nodes"),
    path("admin/nodes/add", views.add_node, name="add-node"),
    re_path(
        r"^admin/nodes/(?P<pk>[0-9]{1,18})/(?P<what>approve|cordon|drain|resume|remove)$",
        views.node_act,
        name="node-act",
    ),
]
