"""What a user keeps of a list: which columns it shows, and named views of it. ``portal.lists`` declares the lists."""

from django.contrib import messages
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from portal.accounts.models import ListColumns, SavedView, User
from portal.accounts.permissions import signed_in
from portal.lists import COLUMNS, LISTINGS, SORT, Listing, quote, return_url
from portal.names import name_problem

MAX_VIEWS = 30
"""Views of one list for one user: more would not fit above it."""


def _listing(key: str) -> Listing:
    if key not in LISTINGS:
        raise Http404
    return LISTINGS[key]


@require_POST
def choose_columns(request: HttpRequest, key: str) -> HttpResponse:
    """Store which columns a list shows for this user; with ``reset``, show those that it shows by itself."""
    user, listing = signed_in(request), _listing(key)
    names = request.POST.getlist("column")
    unknown = [name for name in names if listing.column(name) is None]
    if "reset" in request.POST:
        ListColumns.objects.filter(user=user, list=key).delete()
    elif unknown:
        messages.error(request, f"This list has no column “{quote(unknown[0])}”. Nothing was changed.")
    else:
        chosen = [column.key for column in listing.columns if column.fixed or column.key in names]
        ListColumns.objects.update_or_create(user=user, list=key, defaults={"columns": chosen})
    return redirect(return_url(request, reverse("home")))


@require_POST
def save_view(request: HttpRequest, key: str) -> HttpResponse:
    """Store the filters, order and columns of a list under a name. A view of the same name is replaced."""
    user, listing = signed_in(request), _listing(key)
    name, query = " ".join(request.POST.get("name", "").split()), request.POST.get("query", "")
    if problem := _name_problem(name) or _query_problem(listing, query):
        messages.error(request, problem)
        return redirect(return_url(request, reverse("home")))
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user.pk)  # two tabs together cannot exceed the limit
        mine = SavedView.objects.filter(user=user, list=key)
        if replaced := mine.filter(name=name).first():
            replaced.query = query
            replaced.save(update_fields=["query"])
            messages.success(request, f"The view “{name}” was replaced.")
        elif mine.count() >= MAX_VIEWS:
            messages.error(request, f"You have {MAX_VIEWS} views of this list already. Delete one first.")
        else:
            SavedView.objects.create(user=user, list=key, name=name, query=query)
            messages.success(request, f"The view “{name}” was saved.")
    return redirect(return_url(request, reverse("home")))


@require_POST
def change_view(request: HttpRequest, pk: int) -> HttpResponse:
    """Rename or delete a view of the user's own; those of others do not exist for them."""
    view = get_object_or_404(SavedView, pk=pk, user=signed_in(request))
    name = " ".join(request.POST.get("name", "").split())
    if request.POST.get("do") == "delete":
        view.delete()
        messages.success(request, f"The view “{view.name}” was deleted.")
    elif request.POST.get("do") != "rename":
        messages.error(request, "A view can be renamed or deleted.")
    elif problem := _name_problem(name):
        messages.error(request, problem)
    elif SavedView.objects.filter(user=view.user, list=view.list, name=name).exclude(pk=pk).exists():
        messages.error(request, f"You have a view “{name}” already. Choose another name.")
    else:
        view.name = name
        view.save(update_fields=["name"])
    return redirect(return_url(request, reverse("home")))


def _name_problem(name: str) -> str:
    if not name:
        return "Type a name for the view."
    if len(name) > SavedView.MAX_NAME_LENGTH:
        return f"The name of a view has at most {SavedView.MAX_NAME_LENGTH} characters."
    return name_problem(name)


def _query_problem(listing: Listing, query: str) -> str:
    if len(query) > SavedView.MAX_QUERY_LENGTH:
        return "This filter is too long to be saved: use fewer words."
    if "\0" in query or "%00" in query:
        return "This filter has characters that cannot be stored."
    if unknown := set(QueryDict(query)) - {*listing.filters, SORT, COLUMNS}:
        return f"This list has no filter “{quote(min(unknown))}”. Nothing was saved."
    return ""
