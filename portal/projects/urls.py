from django.urls import URLPattern, URLResolver, path

from portal.projects import code_views, views

app_name = "projects"
urlpatterns: list[URLPattern | URLResolver] = [
    path("projects/", views.project_list, name="list"),
    path("projects/new", views.new, name="new"),
    path("projects/<int:pk>/", views.detail, name="detail"),
    path("projects/<int:pk>/edit", views.edit, name="edit"),
    path("projects/<int:pk>/archive", views.archive, name="archive"),
    path("projects/<int:pk>/empty-caches", views.empty_caches, name="empty-caches"),
    path("projects/<int:pk>/unarchive", views.unarchive, name="unarchive"),
    path("projects/<int:pk>/members", views.share, name="share"),
    path("projects/<int:pk>/members/<int:member>/role", views.change_role, name="change-role"),
    path("projects/<int:pk>/members/<int:member>/remove", views.remove_member, name="remove-member"),
    path("projects/<int:pk>/code", code_views.upload, name="upload"),
    path("projects/<int:pk>/code/<int:number>/", code_views.version, name="code"),
    path("projects/<int:pk>/code/<int:number>/changes", code_views.changes, name="changes"),
    path("projects/<int:pk>/code/<int:number>/download", code_views.download_all, name="download"),
    path("projects/<int:pk>/code/<int:number>/file", code_views.download_file, name="file"),
    path("projects/<int:pk>/code/<int:number>/image", code_views.image, name="image"),
    path("projects/<int:pk>/code/<int:number>/media", code_views.media, name="media"),
    path("projects/<int:pk>/code/<int:number>/framed", code_views.framed, name="framed"),
    path("gallery/", views.gallery, name="gallery"),
    path("gallery/<slug:key>/", views.example, name="example"),
    path("gallery/<slug:key>/copy", views.copy_example, name="copy-example"),
]
