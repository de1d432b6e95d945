"""Admin pages about accounts: users, groups, invitations, the settings of the lab."""

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import Group
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import Count, QuerySet
from django.db.models.functions import Lower
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.functional import cached_property
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from portal import stale_forms
from portal.accounts import services
from portal.accounts.audit import last_actor
from portal.accounts.forms import GroupForm, InviteForm, LabSettingsForm, MembersForm
from portal.accounts.models import Invite, LabSettings, User
from portal.accounts.permissions import AdminOnly, admin_required, signed_in
from portal.generics import ListView
from portal.lists import Column, Listing, Table, declare, read_table, unknown_choice
from portal.refused import Refused
from portal.search import any_contains

PAGE_SIZE = 50


class PagedList(ListView[Any]):
    """A list that shows its last page for a number beyond it, and the first for no number, as all lists do."""

    paginate_by = PAGE_SIZE

    def paginate_queryset(self, queryset: Any, page_size: int) -> Any:
        paginator = Paginator(queryset, page_size)
        page = paginator.get_page(self.request.GET.get("page"))
        return paginator, page, page.object_list, page.has_other_pages()


class SortedList(PagedList):
    """A list that the reader sorts by its headers."""

    listing: Listing

    @cached_property
    def table(self) -> Table:
        return read_table(self.request, self.listing, signed_in(self.request), self.problems())

    def problems(self) -> list[str]:
        """Return what else of the query string could not be followed, as sentences."""
        return []

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(table=self.table, **context)


USERS = declare(
    Listing(
        "users",
        (
            Column("name", "Name", (Lower("username"),), fixed=True),
            Column("role", "Role", ("is_staff",), falls=True),
            Column("groups", "Groups"),
            Column("seen", "Last signed in", ("last_login",), falls=True, nulls=True),
            Column("joined", "Joined", ("date_joined",), falls=True, shown=False),
            Column("access", "Access", ("is_active",), falls=True),
        ),
        "name",
    )
)
GROUPS = Listing(
    "groups",
    (
        Column("name", "Name", (Lower("name"),), fixed=True),
        Column("members", "Members", ("members",), falls=True, fixed=True),
    ),
    "name",
)

INVITES = Listing(
    "invites",
    (
        Column("email", "For", (Lower("email"),), fixed=True),
        Column("created", "Created", ("created_at",), falls=True, fixed=True),
        Column("state", "State", ("used_at", "expires_at"), falls=True, fixed=True),
    ),
    "-created",
)
USER_KINDS: dict[str, tuple[str, dict[str, bool]]] = {
    "active": ("active", {"is_active": True}),
    "admins": ("admins", {"is_staff": True}),
    "off": ("deactivated", {"is_active": False}),
}


class Users(AdminOnly, SortedList):
    template_name = "accounts/admin_users.html"
    listing = USERS

    def problems(self) -> list[str]:
        return unknown_choice(self.request.GET.get("show", ""), USER_KINDS, "all users are shown")

    def get_queryset(self) -> QuerySet[User]:
        users = services.people().order_by(*self.table.ordering).prefetch_related("groups")
        if words := self.request.GET.get("q", "").strip():
            users = users.filter(any_contains(words, "username", "email", "first_name", "last_name"))
        _, condition = USER_KINDS.get(self.request.GET.get("show", ""), ("", {}))
        return users.filter(**condition)

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(
            q=self.request.GET.get("q", ""),
            show=self.request.GET.get("show", ""),
            choices=[(key, text) for key, (text, _) in USER_KINDS.items()],
            **context,
        )


ROLE_ACTIONS = {
    "make-admin": (services.set_admin, True, "{} is an admin now."),
    "make-member": (services.set_admin, False, "{} is no longer an admin."),
    "activate": (
        services.set_active,
        True,
        "{} may sign in again, with the same password, groups and roles in projects. Revoked API tokens, cancelled jobs, "
        "ended reservations and projects that were handed over do not come back.",
    ),
}


@admin_required
@require_POST
def change_user(request: HttpRequest, pk: int, act: str) -> HttpResponse:
    user = get_object_or_404(services.people(), pk=pk)
    do, value, done = ROLE_ACTIONS[act]
    try:
        do(signed_in(request), user, value)
        messages.success(request, done.format(user))
    except Refused as refusal:
        messages.error(request, str(refusal))
    return redirect("accounts:users")


@admin_required
@require_POST
@never_cache
def user_reset_link(request: HttpRequest, pk: int) -> HttpResponse:
    user = get_object_or_404(services.active_people(), pk=pk)
    link = services.reset_link(signed_in(request), user, settings.SITE_URL)
    return render(request, "accounts/admin_reset_link.html", {"person": user, "link": link})


class Groups(AdminOnly, SortedList):
    template_name = "accounts/admin_groups.html"
    listing = GROUPS

    def get_queryset(self) -> QuerySet[Group]:
        return Group.objects.annotate(members=Count("user")).order_by(*self.table.ordering)

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(**{"form": GroupForm(), **context})

    def post(self, request: HttpRequest) -> HttpResponse:
        form = GroupForm(request.POST)
        if form.is_valid():
            try:
                group = services.create_group(signed_in(request), form.cleaned_data["name"])
                return redirect("accounts:group", group.pk)
            except Refused as refusal:
                form.add_error("name", refusal.message)
        self.object_list = self.get_queryset()
        return self.render_to_response(self.get_context_data(form=form), status=400)


@admin_required
def group(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(Group, pk=pk)
    form, stale = MembersForm.of(row), False
    if request.method == "POST":
        with transaction.atomic():
            form = MembersForm.of(get_object_or_404(Group.objects.select_for_update(), pk=pk), request.POST)
            stale = stale_forms.is_stale(form, lambda: services.last_to_set_members(row))
            if form.is_valid():
                try:
                    services.set_members(signed_in(request), row, form.cleaned_data["names"])
                    messages.success(request, f"The members of {row.name} are saved.")
                except Refused as refusal:
                    messages.error(request, str(refusal))
                return redirect("accounts:groups")
    status = stale_forms.status_of(form, stale)
    return render(request, "accounts/admin_group.html", {"group": row, "form": form}, status=status)


@admin_required
@require_POST
def delete_group(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(Group, pk=pk)
    services.delete_group(signed_in(request), row)
    messages.success(request, f"The group {row.name} was deleted; its members keep their accounts.")
    return redirect("accounts:groups")


@admin_required
@never_cache
def invites(request: HttpRequest) -> HttpResponse:
    """List and create invitations. A link is shown only once, when it is created; the database keeps its digest."""
    form, link, mailed_to = InviteForm(request.POST if request.method == "POST" else None), "", ""
    if request.method == "POST" and form.is_valid():
        try:
            _, token = services.create_invite(signed_in(request), **form.cleaned_data)
        except Refused as refusal:
            form.add_error(None, refusal.message)
        else:
            link = settings.SITE_URL + reverse("accounts:invite", args=[token])
            mailed_to, form = form.cleaned_data["email"], InviteForm()
    show = request.GET.get("show", "")
    problems = unknown_choice(show, services.INVITE_STATES, "all invitations are shown")
    table = read_table(request, INVITES, signed_in(request), problems)
    found = Invite.objects.select_related("created_by", "used_by").prefetch_related("groups")
    rows = Paginator(services.invites_in_state(found, show).order_by(*table.ordering), PAGE_SIZE)
    context = {
        "form": form,
        "link": link,
        "mailed_to": mailed_to,
        "page_obj": rows.get_page(request.GET.get("page")),
        "table": table,
    }
    context |= {"show": show, "choices": services.INVITE_STATES.items()}
    context["refusal"] = services.invite_refusal()
    return render(request, "accounts/admin_invites.html", context, status=400 if form.errors else 200)


@admin_required
@require_POST
def revoke_invite(request: HttpRequest, pk: int) -> HttpResponse:
    services.revoke_invite(signed_in(request), get_object_or_404(Invite, pk=pk))
    messages.success(request, "The invitation no longer works.")
    return redirect("accounts:invites")


@admin_required
def lab_settings(request: HttpRequest) -> HttpResponse:
    form, stale = LabSettingsForm.of(LabSettings.current()), False
    if request.method == "POST":
        with transaction.atomic():
            LabSettings.objects.select_for_update().get_or_create(pk=LabSettings.ONLY)
            form = LabSettingsForm.of(LabSettings.current(), request.POST)
            stale = stale_forms.is_stale(form, lambda: last_actor("lab.settings_changed", "the lab", form.initial))
            if form.is_valid():
                services.set_lab_settings(signed_in(request), **form.cleaned_data)
                messages.success(request, "The settings of the lab are saved.")
                return redirect("accounts:lab-settings")
    return render(request, "accounts/lab_settings.html", {"form": form}, status=stale_forms.status_of(form, stale))
