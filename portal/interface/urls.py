from django.urls import path

from portal.interface import views

app_name = "interface"
urlpatterns = [
    path("search/", views.search, name="search"),
    path("glossary/", views.glossary, name="glossary"),
    path("admin/components/", views.components, name="components"),
]
