from django.urls import URLPattern, URLResolver, path

from portal.whatif import views

app_name = "whatif"
urlpatterns: list[URLPattern | URLResolver] = [
    path("admin/simulations/", views.simulations, name="list"),
    path("admin/simulations/new", views.new, name="new"),
    path("admin/simulations/<int:pk>/", views.detail, name="detail"),
    path("admin/simulations/<int:pk>/cancel", views.cancel, name="cancel"),
]
