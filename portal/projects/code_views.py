"""The pages of code versions: upload, files, changes, download."""

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_POST, require_safe

from portal.accounts.permissions import signed_in
from portal.downloads import download
from portal.previews import responses
from portal.previews.files import StoredFile
from portal.previews.preview import Links, preview, with_query
from portal.projects import archive, comparison, services, store
from portal.projects.models import CodeVersion, Project
from portal.projects.views import show_project, visible_project
from portal.refused import Refused
from portal.rest import STATUS_OF

MAX_ENTRIES_SHOWN = 1_000
FORM_BYTES = 16 * 1024 * 1024
"""Allowance for the rest of an upload form: names, boundaries, the note."""


# Upload


@csrf_exempt  # the inner view checks the token, once size and user have been checked
@require_POST
def upload(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Check user and size before the body is parsed, which the check of the form's token would cause."""
    visible_project(request, pk)
    length = request.headers.get("Content-Length") or "0"
    if not length.isdecimal() or int(length[:18]) > settings.MAX_UPLOAD_MIB * 1024 * 1024 + FORM_BYTES:
        return JsonResponse(_error(f"It is larger than {settings.MAX_UPLOAD_MIB} MiB. Leave data out."), status=413)
    return _upload(request, pk)


@csrf_protect
def _upload(request: HttpRequest, pk: int) -> HttpResponse:
    """Store an upload. Scripts get JSON, forms a page."""
    project = visible_project(request, pk)
    wants_json = request.headers.get("Accept", "").startswith("application/json")
    try:
        version = services.store_code(
            signed_in(request),
            project,
            _uploaded_files(request),
            request.POST.get("note", ""),
            keep_others=request.POST.get("keep_others") == "1",
            gitignore=request.POST.get("gitignore") == "1",
        )
    except Refused as refusal:
        status = STATUS_OF[refusal.code]
        if wants_json:
            return JsonResponse(_error(refusal.message), status=status)
        return show_project(request, project, status, upload_error=refusal.message)
    if version.is_new:
        for note in version.guess.get("notes", []):
            messages.info(request, note)
    else:
        lost = " ".join(request.POST.get("note", "").split()) not in ("", version.note)
        kept = " Its note stays: yours is not stored." if lost else ""
        messages.info(request, f"These files equal version {version.number}, so no new version was made.{kept}")
    url = reverse("projects:code", args=[project.pk, version.number])
    if not wants_json:
        return redirect(url)
    return JsonResponse({"url": url, "is_new": version.is_new}, status=201 if version.is_new else 200)


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message}}


def _uploaded_files(request: HttpRequest) -> list[archive.Upload]:
    """Return the files with their relative paths, which are sent separately: browsers send only the last part of a name."""
    files = request.FILES.getlist("files")
    names = [file.name or "" for file in files]
    if text := request.POST.get("paths"):
        try:
            names = json.loads(text)
        except (ValueError, RecursionError):
            names = []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(names) != len(files):
            raise Refused("The files do not match their names. Reload the page and try again.")
    return [(name, file) for name, file in zip(names, files, strict=True)]


# Files


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """An entry of a folder: a file, or a folder with its total size and number of files."""

    name: str
    path: str
    size: int
    files: int = 0


def visible_version(request: HttpRequest, pk: int, number: int) -> CodeVersion:
    rows = CodeVersion.objects.visible_to(signed_in(request)).select_related("project", "created_by", "origin")
    return get_object_or_404(rows, project__in=Project.objects.filter(pk=pk), number=number)


def folder_entries(files: list[dict[str, Any]], folder: str) -> list[FolderEntry]:
    """Return the entries of a folder, folders first; none if there is no such folder."""
    prefix = f"{folder}/" if folder else ""
    folders: dict[str, FolderEntry] = {}
    found = []
    for entry in files:
        if entry["path"].startswith(prefix):
            name, slash, _ = entry["path"][len(prefix) :].partition("/")
            if slash:
                so_far = folders.get(name, FolderEntry(name, prefix + name, 0))
                folders[name] = FolderEntry(name, prefix + name, so_far.size + entry["size"], so_far.files + 1)
            else:
                found.append(FolderEntry(name, entry["path"], entry["size"]))
    return [*folders.values(), *found]


@require_safe
def version(request: HttpRequest, pk: int, number: int) -> HttpResponse:
    """Show the folder or file in ``?path=``; by default the top folder and the file that would be run.

    ``?show=`` is one of the views that a kind of file has.
    """
    found = visible_version(request, pk, number)
    path = request.GET.get("path", "")
    paths = {entry["path"] for entry in found.files}
    shown = path or found.guess.get("entry", "")
    if shown not in paths:
        shown = "" if path else next((p for p in ("README.md", "README.txt") if p in paths), "")
    folder = path if path not in paths else path.rpartition("/")[0]
    items = folder_entries(found.files, folder)
    if path and not items:
        raise Http404
    role = services.role_of(signed_in(request), found.project)
    above = [part for part in folder.split("/") if part]
    about = {
        "version": found,
        "project": found.project,
        "may_submit": services.may_submit(role) and found.project.archived_at is None,
        "may_delete": services.may_delete_code(signed_in(request), found, role),
        "items": items[:MAX_ENTRIES_SHOWN],
        "hidden_items": max(0, len(items) - MAX_ENTRIES_SHOWN),
        "above": [("/".join(above[: end + 1]), part) for end, part in enumerate(above)],
        "folder": folder,
        "path": shown,
        "before": _previous_version(found),
        "after": CodeVersion.objects.filter(project=pk, number__gt=number).only("number").order_by("number").first(),
        **(_file_context(request, found, shown) if shown else {}),
    }
    return render(request, "projects/code.html", about)


def _file_context(request: HttpRequest, version: CodeVersion, path: str) -> dict[str, Any]:
    """Return what the viewer shows of a file."""
    file = _file(version, path)
    here = [version.project_id, version.number]
    links = Links(
        page=with_query(reverse("projects:code", args=here), path=path),
        download=with_query(reverse("projects:file", args=here), path=path),
        image=with_query(reverse("projects:image", args=here), path=path),
        media=with_query(reverse("projects:media", args=here), path=path),
        framed=with_query(reverse("projects:framed", args=here), path=path),
    )
    try:
        shown = preview(file, links, request.GET.get("show", ""))
    except FileNotFoundError as error:
        raise Http404 from error
    warnings = [warning for warning in version.guess.get("warnings", []) if warning.get("path") == path]
    return {"preview": shown, "file_size": file.size, "marked": {warning["line"] for warning in warnings}}


def _file(version: CodeVersion, path: str) -> StoredFile:
    try:
        entry = store.entry_of(version, path)
    except store.MissingError as error:
        raise Http404 from error
    tar = partial(store.open_tar_file, version.sha256)
    return StoredFile(path, entry["size"], entry["sha256"], tar, entry["offset"])


def _previous_version(version: CodeVersion) -> CodeVersion | None:
    return CodeVersion.objects.filter(project=version.project_id, number__lt=version.number).first()


@require_safe
def changes(request: HttpRequest, pk: int, number: int) -> HttpResponse:
    """Show the changes since the previous version, or since the version in ``?from=``."""
    found = visible_version(request, pk, number)
    asked = request.GET.get("from", "")
    if asked and not (asked.isascii() and asked.isdecimal() and len(asked) < 10):
        raise Http404
    before = get_object_or_404(CodeVersion, project=pk, number=int(asked)) if asked else _previous_version(found)
    try:
        made = comparison.compare(before, found) if before else []
    except store.MissingError as error:
        raise Http404 from error
    about = {
        "version": found,
        "project": found.project,
        "before": before,
        "changes": made,
        "others": CodeVersion.objects.filter(project=pk).exclude(number=number).only("number")[:200],
    }
    return render(request, "projects/changes.html", about)


# Downloads


@require_safe
def download_all(request: HttpRequest, pk: int, number: int) -> HttpResponseBase:
    found = visible_version(request, pk, number)
    try:
        tar = store.open_tar(found)
    except store.MissingError as error:
        raise Http404 from error
    words = "".join(c if c.isalnum() else "-" for c in found.project.name).strip("-") or "code"
    return download(request, f"{words}-{found.number}.tar.gz", _gzip(tar), content_type="application/gzip")


def _gzip(tar: Iterator[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    for piece in tar:
        if packed := packer.compress(piece):
            yield packed
    yield packer.flush()


@require_safe
def download_file(request: HttpRequest, pk: int, number: int) -> HttpResponseBase:
    found = visible_version(request, pk, number)
    path = request.GET.get("path", "")
    try:
        size = store.entry_of(found, path)["size"]
        return download(request, path, store.open_file(found, path), size)
    except store.MissingError as error:
        raise Http404 from error


# Parts of a file for the page that shows it


def _part(
    request: HttpRequest, pk: int, number: int, respond: Callable[[StoredFile], HttpResponseBase]
) -> HttpResponseBase:
    file = _file(visible_version(request, pk, number), request.GET.get("path", ""))
    try:
        return respond(file)
    except FileNotFoundError as error:
        raise Http404 from error


@require_safe
def image(request: HttpRequest, pk: int, number: int) -> HttpResponseBase:
    return _part(request, pk, number, partial(responses.image_response, request))


@require_safe
def media(request: HttpRequest, pk: int, number: int) -> HttpResponseBase:
    return _part(request, pk, number, partial(responses.media_response, request))


@require_safe
def framed(request: HttpRequest, pk: int, number: int) -> HttpResponseBase:
    return _part(request, pk, number, responses.framed_response)
