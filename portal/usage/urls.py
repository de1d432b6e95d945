from django.urls import URLPattern, URLResolver, path

from portal.usage import views

app_name = "usage"
urlpatterns: list[URLPattern | URLResolver] = [
    path("usage/", views.usage, name="usage"),
    path("usage/usage.csv", views.usage_csv, name="usage-csv"),
    path("usage/ledger/", views.ledger, name="ledger"),
    path("usage/ledger.csv", views.ledger_csv, name="ledger-csv"),
]
