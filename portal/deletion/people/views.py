"""The pages that export and erase a person."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from django.conf import settings
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.accounts.permissions import admin_required, signed_in
from portal.accounts.services import people
from portal.deletion.models import Erasure
from portal.deletion.people import erasing, exporting
from portal.disks import require_room
from portal.downloads import download
from portal.refused import Refused
from portal.user_slots import BusyError, UserSlots

PIECE_BYTES = 256 * 1024
_exports = UserSlots(2)
BUSY = Refused("Another export is being made. Wait until it has finished.", "limit")


def export_of(request: HttpRequest, reader: User, person: User) -> HttpResponseBase:
    """Return the zip of a person. It is made in a file first, because a response may not use the database. Raises Refused."""
    require_room(Path(settings.HOME))
    file = tempfile.TemporaryFile(dir=settings.HOME)  # noqa: SIM115  _pieces closes it
    try:
        with _exports.hold(reader.pk):
            exporting.write(person, file)
    except BusyError:
        file.close()
        raise BUSY from None
    if reader.pk != person.pk:
        with transaction.atomic():
            audit(reader, "user.export", f"user {person}")
    size = file.tell()
    file.seek(0)
    return download(request, f"{person.username}.zip", _pieces(file), size, content_type="application/zip")


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while piece := file.read(PIECE_BYTES):
            yield piece


@require_safe
def export_own(request: HttpRequest) -> HttpResponseBase:
    """Send a user all that the portal stores about them."""
    user = signed_in(request)
    try:
        return export_of(request, user, user)
    except Refused as refusal:
        messages.error(request, refusal.message)
        return redirect("accounts:profile")


@admin_required
@require_POST
def export(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Send an admin all that the portal stores about a person, which the audit log records."""
    person = get_object_or_404(people(), pk=pk)
    try:
        return export_of(request, signed_in(request), person)
    except Refused as refusal:
        messages.error(request, refusal.message)
        return redirect("accounts:users")


@admin_required
@require_http_methods(["GET", "HEAD", "POST"])
def erase(request: HttpRequest, pk: int) -> HttpResponse:
    """Show what must be settled, what goes and what stays, or erase a person. Afterwards it shows how far that is."""
    actor, person = signed_in(request), get_object_or_404(people(), pk=pk)
    erasure = Erasure.objects.filter(user=person).select_related("by").first()
    problem = ""
    try:
        erasing.require_may_erase(actor, person)
        if request.method == "POST" and erasure is None:
            choice = request.POST.get("jobs")
            if choice not in ("keep", "delete"):
                raise Refused("Choose what happens to the jobs.", field="jobs")
            erasing.start(actor, person, request.POST.get("name", ""), delete_jobs=choice == "delete")
            return redirect("deletion:erase-person", person.pk)
    except Refused as refusal:
        problem = refusal.message
    about = {
        "person": person,
        "erasure": erasure,
        "found": None if erasure else erasing.preview_of(person),
        "problem": problem,
    }
    return render(request, "deletion/person.html", about, status=400 if problem and request.method == "POST" else 200)
