from django.urls import path

from portal.interface import audit_log, views

app_name = "interface"
urlpatterns = [
    path("search/", views.search, name="search"),
    path("glossary/", views.glossary, name="glossary"),
    path("admin/audit/", audit_log.audit_log, name="audit"),
    path("admin/components/", views.components, name="components"),
]
