from django.urls import URLPattern, URLResolver, path

from portal.projects import code_views, views
from portal.projects.git import views as git_views
from portal.projects.git import webhooks

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
    path("projects/<int:pk>/git", git_views.source, name="git"),
    path("projects/<int:pk>/git/unbind", git_views.unbind, name="git-unbind"),
    path("projects/<int:pk>/git/confirm-host-key", git_views.confirm_host_key, name="git-confirm"),
    path("projects/<int:pk>/git/new-key", git_views.new_key, name="git-new-key"),
    path("projects/<int:pk>/git/new-secret", git_views.new_secret, name="git-new-secret"),
    path("projects/<int:pk>/git/remove-webhook", git_views.remove_hook, name="git-remove-hook"),
    path("projects/<int:pk>/git/fetch", git_views.fetch_now, name="git-fetch-now"),
    path("projects/<int:pk>/git/fetches/<int:number>/", git_views.fetch, name="git-fetch"),
    path("projects/<int:pk>/git/fetches/<int:number>/log", git_views.fetch_log_from, name="git-log-from"),
    path("projects/<int:pk>/git/fetches/<int:number>/log.txt", git_views.fetch_log, name="git-log"),
    path("projects/<int:pk>/git/fetches/<int:number>/cancel", git_views.cancel, name="git-cancel"),
    path("admin/git-hosts/", git_views.git_hosts, name="git-hosts"),
    path("admin/git-hosts/<int:pk>/remove", git_views.forbid_host, name="git-forbid-host"),
    path("hooks/git/<slug:hook>", webhooks.hook, name="git-hook"),
    path("gallery/", views.gallery, name="gallery"),
    path("gallery/<slug:key>/", views.example, name="example"),
    path("gallery/<slug:key>/copy", views.copy_example, name="copy-example"),
]
