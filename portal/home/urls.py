from django.urls import URLPattern, URLResolver, path

from portal.home import views, wall_views

app_name = "home"
urlpatterns: list[URLPattern | URLResolver] = [
    path("home/seen", views.seen, name="seen"),
    path("home/<slug:name>", views.part, name="part"),
    path("banner/dismiss", views.dismiss_banner, name="dismiss-banner"),
    path("wall/<str:secret>/", wall_views.wall, name="wall"),
    path("wall/<str:secret>/now", wall_views.wall_now, name="wall-now"),
    path("admin/walls/", wall_views.links, name="walls"),
    path("admin/walls/<int:pk>/revoke", wall_views.revoke, name="revoke-wall"),
]
