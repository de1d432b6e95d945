"""Pages of environments that are images: a new one, and what admins decide about all."""

from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from portal import stale_forms
from portal.accounts.audit import last_actor
from portal.accounts.permissions import admin_required, signed_in
from portal.environments import credentials, images
from portal.environments.forms import choose_place
from portal.environments.image_forms import ImageSettingsForm, NewImageForm, RegistryForm
from portal.environments.models import ImageSettings, Registry
from portal.refused import Refused


@require_http_methods(["GET", "HEAD", "POST"])
def new_image(request: HttpRequest) -> HttpResponse:
    """Make an environment of an image of a registry."""
    user, status = signed_in(request), 200
    form = NewImageForm(user, initial=choose_place(user, request.GET.get("project", "")))
    if request.method == "POST":
        form, status = NewImageForm(user, request.POST), 400
        if form.is_valid():
            try:
                made = images.create(user, form.place(), form.request())
                messages.success(
                    request, f"“{made.title}” is made. A node pulls and checks it now; jobs can choose it already."
                )
                return redirect("jobs:environment", made.key)
            except Refused as refusal:
                form.refuse(refusal)
    about = {"form": form, "allowed": ImageSettings.current().allowed}
    return render(request, "environments/new_image.html", about, status=status)


@admin_required
@require_http_methods(["GET", "HEAD", "POST"])
def admin_images(request: HttpRequest) -> HttpResponse:
    """Show which images are allowed and how nodes sign in; POST changes the first."""
    form, stale = ImageSettingsForm.of(ImageSettings.current()), False
    if request.method == "POST":
        with transaction.atomic():
            row = ImageSettings.objects.select_for_update().filter(pk=ImageSettings.ONLY).first()
            row = row or ImageSettings.current()
            form = ImageSettingsForm.of(row, request.POST)
            present = {"allowed": row.allowed, "archives": row.archives}
            stale = stale_forms.is_stale(form, lambda: last_actor("images.settings", "images", present))
            if form.is_valid():
                data = form.cleaned_data
                images.set_image_settings(signed_in(request), data["allowed"].splitlines(), data["archives"])
                messages.success(request, "Saved. Images that are no longer allowed are not pulled any more.")
                return redirect("environments:admin-images")
    return _show_admin(request, form, RegistryForm(), stale_forms.status_of(form, stale))


def _show_admin(
    request: HttpRequest, form: ImageSettingsForm, registry_form: RegistryForm, status: int
) -> HttpResponse:
    rows = [
        (row, bool(row.sealed_token) and credentials.unseal(row.sealed_token) is None) for row in Registry.objects.all()
    ]
    about: dict[str, Any] = {"form": form, "registry_form": registry_form, "registries": rows}
    return render(request, "environments/admin_images.html", about, status=status)


@admin_required
@sensitive_post_parameters("token")
@require_POST
def set_registry(request: HttpRequest) -> HttpResponse:
    """Store how nodes use a registry, in place of what was stored for it."""
    form = RegistryForm(request.POST)
    if form.is_valid():
        try:
            row = images.set_registry(signed_in(request), form.request())
            messages.success(request, f"Saved. Nodes use {row.host} this way from the next image on.")
            return redirect("environments:admin-images")
        except Refused as refusal:
            form.refuse(refusal)
    return _show_admin(request, ImageSettingsForm.of(ImageSettings.current()), form, 400)


@admin_required
@require_POST
def remove_registry(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(Registry, pk=pk)
    images.remove_registry(signed_in(request), row)
    messages.success(request, f"Nodes no longer sign in at {row.host}.")
    return redirect("environments:admin-images")
