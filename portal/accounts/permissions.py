"""Access to the admin pages. For all other users they do not exist."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponseBase
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from portal.accounts.models import User

View = Callable[..., HttpResponseBase]


def admin_required(view: View) -> View:
    """Restrict a function view to admins; for class-based views use ``AdminOnly``.

    Anonymous visitors are asked to sign in, members get 404.
    """

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not is_admin(request.user):
            raise Http404
        return view(request, *args, **kwargs)

    return login_required(guarded)


class AdminOnly:
    """Restricts a class-based view to admins: ``class Users(AdminOnly, ListView)``."""

    @classmethod
    def as_view(cls, **initkwargs: Any) -> View:
        return admin_required(super().as_view(**initkwargs))  # type: ignore[misc]  # the view class comes after us


class IsAdmin(BasePermission):
    """Restricts an endpoint of the API to admins. Other users get 404, as from the pages."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        if request.user.is_authenticated and not is_admin(request.user):
            raise Http404
        return bool(request.user.is_authenticated)


def is_admin(user: object) -> bool:
    return isinstance(user, User) and user.is_admin


def signed_in(request: HttpRequest) -> User:
    """Return the user of a request that has passed LoginRequiredMiddleware."""
    if not isinstance(request.user, User):
        raise Http404
    return request.user
