from django.urls import URLPattern, URLResolver

app_name = "control"
urlpatterns: list[URLPattern | URLResolver] = []
