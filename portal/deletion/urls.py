from django.urls import URLPattern, URLResolver, path, re_path

from portal.deletion import code_views

app_name = "deletion"
urlpatterns: list[URLPattern | URLResolver] = [
    path("projects/<int:pk>/code/delete", code_views.delete, name="code"),
    path("trash/code/", code_views.trash, name="code-trash"),
    re_path(r"^trash/code/(?P<pk>[0-9]{1,18})/(?P<what>restore|erase)$", code_views.act, name="code-in-trash"),
]
