from django.urls import URLPattern, URLResolver, path, re_path

from portal.cluster import reservation_views, views

app_name = "cluster"
urlpatterns: list[URLPattern | URLResolver] = [
    path("reservations/", reservation_views.reservations_page, name="reservations"),
    path("reservations/new", reservation_views.new_reservation, name="new-reservation"),
    re_path(r"^reservations/(?P<pk>[0-9]{1,18})/$", reservation_views.reservation, name="reservation"),
    re_path(
        r"^reservations/(?P<pk>[0-9]{1,18})/cancel$", reservation_views.cancel_reservation, name="cancel-reservation"
    ),
    path("agent/install.sh", views.install_script, name="agent-install"),
    path("agent/schedulearn-agent-<str:sha256>.tar.gz", views.agent_archive, name="agent-archive"),
    path("admin/nodes/add", views.add_node, name="add-node"),
    re_path(r"^admin/nodes/added/(?P<pk>[0-9]{1,18})$", views.added_node, name="added-node"),
    re_path(r"^admin/nodes/(?P<pk>[0-9]{1,18})/rejoin$", views.rejoin_node, name="rejoin-node"),
    re_path(
        r"^admin/nodes/(?P<pk>[0-9]{1,18})/gpus/(?P<gpu>[0-9]{1,18})/(?P<what>quarantine|release)$",
        views.change_gpu,
        name="gpu-act",
    ),
    re_path(
        r"^admin/nodes/(?P<pk>[0-9]{1,18})/(?P<what>approve|cordon|drain|resume|rotate|revoke|remove)$",
        views.change_node,
        name="node-act",
    ),
]
