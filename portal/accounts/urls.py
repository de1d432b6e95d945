from django.urls import path, re_path

from portal.accounts import admin_views, list_views, views

app_name = "accounts"
urlpatterns = [
    path("accounts/sign-in/", views.SignIn.as_view(), name="sign-in"),
    path("accounts/sign-out/", views.SignOut.as_view(), name="sign-out"),
    path("accounts/sign-out-everywhere/", views.sign_out_everywhere, name="sign-out-everywhere"),
    path("accounts/password/", views.ChangePassword.as_view(), name="password-change"),
    path("accounts/password/reset/", views.ResetPassword.as_view(), name="password-reset"),
    path("accounts/password/reset/sent/", views.ResetPasswordSent.as_view(), name="password-reset-sent"),
    path(
        "accounts/password/reset/<uidb64>/<token>/",
        views.ResetPasswordConfirm.as_view(),
        name="password-reset-confirm",
    ),
    path("accounts/invite/<str:token>/", views.invite, name="invite"),
    path("accounts/profile/", views.Profile.as_view(), name="profile"),
    path("accounts/tokens/", views.tokens, name="tokens"),
    path("accounts/tokens/<int:pk>/revoke/", views.revoke_token, name="token-revoke"),
    path("lists/<slug:key>/columns", list_views.choose_columns, name="list-columns"),
    path("lists/<slug:key>/views", list_views.save_view, name="save-view"),
    path("lists/views/<int:pk>", list_views.change_view, name="change-view"),
    path("admin/users/", admin_views.Users.as_view(), name="users"),
    re_path(
        r"^admin/users/(?P<pk>[0-9]{1,18})/(?P<act>make-admin|make-member|activate)/$",
        admin_views.change_user,
        name="user-act",
    ),
    path("admin/users/<int:pk>/reset-link/", admin_views.user_reset_link, name="user-reset-link"),
    path("admin/groups/", admin_views.Groups.as_view(), name="groups"),
    path("admin/groups/<int:pk>/", admin_views.group, name="group"),
    path("admin/groups/<int:pk>/delete/", admin_views.delete_group, name="group-delete"),
    path("admin/invites/", admin_views.invites, name="invites"),
    path("admin/invites/<int:pk>/revoke/", admin_views.revoke_invite, name="invite-revoke"),
    path("admin/lab/", admin_views.lab_settings, name="lab-settings"),
]
