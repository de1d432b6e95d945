from django.urls import URLPattern, URLResolver, path, re_path

from portal.environments import host_views, image_views, views

app_name = "environments"
BUILD = r"^environments/(?P<key>[-\w]{1,50})/builds/(?P<pk>[0-9]{1,18})/"
urlpatterns: list[URLPattern | URLResolver] = [
    path("environments/new/", views.new, name="new"),
    path("projects/<int:pk>/network", host_views.of_project, name="network-of-project"),
    path("admin/network/", host_views.network, name="network"),
    path("admin/network/<int:pk>/remove", host_views.forbid, name="forbid-host"),
    path("environments/new-image/", image_views.new_image, name="new-image"),
    path("admin/images/", image_views.admin_images, name="admin-images"),
    path("admin/images/registries", image_views.set_registry, name="set-registry"),
    path("admin/images/registries/<int:pk>/remove", image_views.remove_registry, name="remove-registry"),
    path("environments/<slug:key>/build-again", views.build_again, name="build-again"),
    path("environments/<slug:key>/locks/<slug:digest>/", views.lock, name="lock"),
    re_path(rf"{BUILD}$", views.build, name="build"),
    re_path(rf"{BUILD}log$", views.build_log_from, name="log-from"),
    re_path(rf"{BUILD}log.txt$", views.whole_log, name="log"),
    re_path(rf"{BUILD}cancel$", views.cancel_build, name="cancel-build"),
]
