from django.urls import URLPattern, URLResolver, path

from portal.forecast import views

app_name = "forecast"
urlpatterns: list[URLPattern | URLResolver] = [
    path("jobs/<int:pk>/help", views.what_helps, name="help"),
    path("jobs/<int:pk>/change", views.change, name="change"),
]
