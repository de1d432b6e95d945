from django.urls import path, re_path

from portal.notifications import admin_views, views, webhook_views

app_name = "notifications"
urlpatterns = [
    path("notices/", views.notices, name="list"),
    path("notices/unread", views.unread, name="unread"),
    path("notices/read", views.mark_read, name="mark-read"),
    path("notices/<int:pk>/open", views.open_notice, name="open"),
    path("accounts/notifications/", views.preferences, name="preferences"),
    path("accounts/notifications/test-mail", views.test_mail, name="test-mail"),
    path("accounts/notifications/unmute/<int:pk>", views.unmute, name="unmute"),
    path("accounts/notifications/channels/new/<slug:type>", views.new_channel, name="new-channel"),
    re_path(
        r"^accounts/notifications/channels/(?P<pk>[0-9]{1,18})/(?P<act>test|remove|pause|resume)$",
        views.change_channel,
        name="change-channel",
    ),
    path("notifications/unsubscribe/<str:token>/", views.unsubscribe_by_link, name="unsubscribe"),
    path("projects/<int:pk>/notifications", webhook_views.project, name="project"),
    path("projects/<int:pk>/notifications/mute", views.mute, name="mute"),
    path("projects/<int:pk>/notifications/privacy", webhook_views.set_privacy, name="privacy"),
    path("webhooks/<int:pk>/", webhook_views.webhook, name="webhook"),
    re_path(
        r"^webhooks/(?P<pk>[0-9]{1,18})/(?P<act>test|remove|resume)$",
        webhook_views.change_webhook,
        name="change-webhook",
    ),
    path("webhooks/deliveries/<int:pk>/again", webhook_views.deliver_again, name="deliver-again"),
    path("admin/notifications/", admin_views.overview, name="admin"),
    path("admin/notifications/deliveries/<int:pk>/retry", admin_views.retry, name="retry"),
    path("admin/notifications/settings", admin_views.change_settings, name="settings"),
    path("admin/notifications/templates", admin_views.mail_templates, name="templates"),
    path("admin/notifications/templates/<slug:kind>", admin_views.mail_template, name="template"),
    path("admin/notifications/webhooks", webhook_views.lab, name="lab-webhooks"),
]
