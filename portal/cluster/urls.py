from django.urls import URLPattern, URLResolver

app_name = "cluster"
urlpatterns: list[URLPattern | URLResolver] = []
