"""The pages of one's own account: signing in and out, password, profile, API tokens."""

from typing import Any

from axes.utils import reset as lift_lockout
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import login, views
from django.contrib.auth.decorators import login_not_required
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Lower
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse, reverse_lazy
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST

from portal import stale_forms
from portal.accounts import guessing, services
from portal.accounts.clients import client_ip, counted_name_of
from portal.accounts.forms import (
    ChangePasswordForm,
    JoinForm,
    NewPasswordForm,
    PasswordResetForm,
    ProfileForm,
    SignInForm,
    TokenForm,
)
from portal.accounts.limits import limits_for
from portal.accounts.models import ApiToken, User
from portal.accounts.permissions import signed_in
from portal.generics import UpdateView
from portal.lists import Column, Listing, read_table
from portal.refused import Refused
from portal.ui import counted

BACKEND = "django.contrib.auth.backends.ModelBackend"


class SignIn(views.LoginView):
    template_name = "accounts/sign_in.html"
    form_class = SignInForm
    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **named: Any) -> HttpResponse:
        if guessing.is_blocked(client_ip(request)):
            return _try_again_later(request, 429, guessing.WINDOW_SECONDS, blocked=True)
        try:
            with guessing.slots.hold():
                return super().post(request, *args, **named)
        except guessing.BusyError:
            return _try_again_later(request, 503, 5, blocked=False)

    def form_invalid(self, form: Any) -> HttpResponse:
        guessing.record_failure(client_ip(self.request))
        return super().form_invalid(form)


def _try_again_later(request: HttpRequest, status: int, seconds: int, *, blocked: bool) -> HttpResponse:
    answer = render(request, "accounts/sign_in_later.html", {"blocked": blocked}, status=status)
    answer["Retry-After"] = str(seconds)
    return answer


class SignOut(views.LogoutView):
    """Signs out. POST only, so that a link or image cannot do it."""


@method_decorator(never_cache, name="dispatch")
class ChangePassword(views.PasswordChangeView):
    """Changes the password. This session stays; all others end, because their hash includes the password."""

    template_name = "accounts/password_change.html"
    form_class = ChangePasswordForm
    success_url = reverse_lazy("accounts:profile")

    def form_valid(self, form: Any) -> HttpResponse:
        messages.success(self.request, "Your password is changed. You are signed out everywhere else.")
        _revoke_or_mention_tokens(self.request, signed_in(self.request), revoke=form.cleaned_data["revoke_tokens"])
        return super().form_valid(form)


def _revoke_or_mention_tokens(request: HttpRequest, user: User, *, revoke: bool) -> None:
    """Revoke API tokens, or remind a user of them: a new password ends sessions, but scripts keep their access."""
    if revoke:
        if revoked := services.revoke_tokens(user):
            messages.success(request, f"{counted(revoked, 'API token,API tokens')} revoked.")
        return
    if tokens := services.live_tokens(user).count():
        text = f"You have {counted(tokens, 'valid API token')}. Revoke those that others may know, under Your account."
        messages.warning(request, text)


@method_decorator(login_not_required, name="dispatch")
class ResetPassword(views.PasswordResetView):
    """Sends a reset mail. The response is the same whether the address is known or not."""

    template_name = "accounts/password_reset.html"
    form_class = PasswordResetForm
    success_url = reverse_lazy("accounts:password-reset-sent")


@method_decorator(login_not_required, name="dispatch")
class ResetPasswordSent(views.PasswordResetDoneView):
    template_name = "accounts/password_reset_sent.html"


@method_decorator(login_not_required, name="dispatch")
class ResetPasswordConfirm(views.PasswordResetConfirmView):
    template_name = "accounts/password_reset_confirm.html"
    form_class = NewPasswordForm
    success_url = reverse_lazy("accounts:sign-in")

    def form_valid(self, form: Any) -> HttpResponse:
        messages.success(self.request, "Your new password is set. Sign in with it.")
        lift_lockout(username=counted_name_of(form.user))
        _revoke_or_mention_tokens(self.request, form.user, revoke=form.cleaned_data["revoke_tokens"])
        return super().form_valid(form)


@login_not_required
@never_cache
@sensitive_post_parameters("password")
def invite(request: HttpRequest, token: str) -> HttpResponse:
    """The page of an invitation or the set-up link: choose a name and a password, and be signed in."""
    found = services.find_invite(token)
    if found is None:
        return render(request, "accounts/invite_invalid.html", {"has_admin": services.has_admin()}, status=404)
    form = JoinForm(request.POST if request.method == "POST" else None, initial={"email": found.email})
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            user = services.accept_invite(
                token, username=data["username"], password=data["password"], email=data["email"]
            )
            login(request, user, backend=BACKEND)
            messages.success(request, f"Welcome, {user}.")
            return redirect("home")
        except Refused as refusal:
            if refusal.code == "conflict":
                return render(request, "accounts/invite_invalid.html", {"has_admin": services.has_admin()}, status=404)
            form.add_error(refusal.field or None, refusal.message)
    return render(request, "accounts/invite.html", {"form": form, "first": found.created_by is None})


class Profile(UpdateView[User, ProfileForm]):
    form_class = ProfileForm
    template_name = "accounts/profile.html"
    success_url = reverse_lazy("accounts:profile")

    def get_object(self, queryset: Any = None) -> User:
        # a copy: values that the form rejects must not appear in the page header
        users: QuerySet[User] = User.objects.all()
        if self.request.method == "POST":
            users = users.select_for_update(no_key=True)
        return users.get(pk=signed_in(self.request).pk)

    def post(self, request: HttpRequest, *args: Any, **named: Any) -> HttpResponse:
        with transaction.atomic():
            self.object = self.get_object()
            form = self.get_form()
            stale = stale_forms.is_stale(form)
            if form.is_valid():
                return self.form_valid(form)
            return self.render_to_response(self.get_context_data(form=form), status=stale_forms.status_of(form, stale))

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        user = signed_in(self.request)
        limits = limits_for(user)
        own = any(limit.max_queued is not None for limit in limits)
        return super().get_context_data(
            groups=user.groups.order_by("name"),
            limits=limits,
            usual_waiting=None if own else settings.MAX_WAITING_JOBS,
            **context,
        )

    def form_valid(self, form: Any) -> HttpResponse:
        messages.success(self.request, "Saved.")
        return super().form_valid(form)


@require_POST
def sign_out_everywhere(request: HttpRequest) -> HttpResponse:
    """End all sessions but this one."""
    user = signed_in(request)
    services.end_sessions(user)
    login(request, user, backend=BACKEND)
    messages.success(request, "You are signed out everywhere else.")
    return redirect("accounts:profile")


TOKENS = Listing(
    "tokens",
    (
        Column("name", "Name", (Lower("name"),), fixed=True),
        Column("access", "Access", ("scope",), fixed=True),
        Column("created", "Created", ("created_at",), falls=True, fixed=True),
        Column("valid", "Valid until", ("expires_at",), nulls=True, fixed=True),
        Column("used", "Last used", ("last_used_at",), falls=True, nulls=True, fixed=True),
    ),
    "-created",
)


@never_cache
def tokens(request: HttpRequest) -> HttpResponse:
    """List and create tokens. A new token is in this one response only, neither in the session nor in the database."""
    user, new = signed_in(request), None
    form = TokenForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            _, new = services.create_token(user, data["name"], scope=data["scope"], expires_at=form.expires_at())
            form = TokenForm()
        except Refused as refusal:
            form.add_error(None, str(refusal))
    table = read_table(request, TOKENS, user)
    about = {"form": form, "new": new, "table": table, "tokens": user.api_tokens.order_by(*table.ordering)}
    return render(request, "accounts/tokens.html", about)


@require_POST
def revoke_token(request: HttpRequest, pk: int) -> HttpResponse:
    token = get_object_or_404(ApiToken, pk=pk, user=signed_in(request))
    services.revoke_token(token)
    messages.success(request, f"“{token.name}” is revoked.")
    return redirect(reverse("accounts:tokens"))
