from django.urls import path

from portal.interface import audit_log, documentation, views

app_name = "interface"
urlpatterns = [
    path("search/", views.search, name="search"),
    path("help/", documentation.documentation, name="help"),
    path("help/<path:path>", documentation.documentation, name="help"),
    path("glossary/", views.glossary, name="glossary"),
    path("admin/audit/", audit_log.audit_log, name="audit"),
    path("admin/components/", views.components, name="components"),
]
