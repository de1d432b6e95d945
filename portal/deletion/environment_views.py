"""The page that removes an environment."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from portal.accounts.permissions import signed_in
from portal.deletion import environments
from portal.environments import services
from portal.environments.views import visible_environment
from portal.lists import return_url
from portal.refused import Refused


@require_http_methods(["GET", "HEAD", "POST"])
def remove(request: HttpRequest, key: str) -> HttpResponse:
    """Show what needs an environment and what would break, or remove it."""
    user, row = signed_in(request), visible_environment(request, key)
    try:
        services.require_manager(user, row)
        if request.method == "POST":
            environments.remove(user, row)
            messages.success(request, f"“{row.title}” is removed: new jobs cannot choose it.")
            return redirect(return_url(request, reverse("jobs:environment", args=[row.key])))
    except Refused as refusal:
        messages.error(request, refusal.message)
        return redirect(return_url(request, reverse("jobs:environment", args=[row.key])))
    about = {"environment": row, "use": environments.use_of(row), "back": request.GET.get("next", "")}
    return render(request, "deletion/environment.html", about)
