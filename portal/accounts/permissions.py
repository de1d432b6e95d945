"""Who may enter the admin pages. For everybody else they do not exist."""

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
    """Anonymous visitors are asked to sign in, members get 404. Set on function views; for classes use ``AdminOnly``."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not is_admin(request.user):
            raise Http404
        return view(request, *args, **kwargs)

    return login_required(guarded)


class AdminOnly:
    """The same for class-based views: ``class Users(AdminOnly, ListView)``."""

    @classmethod
    def as_view(cls, **initkwargs: Any) -> View:
        return admin_required(super().as_view(**initkwargs))  # type: ignore[misc]  # the view class comes after us


class IsAdmin(BasePermission):
    """For the REST API: what only admins may do answers 404 to others, as the pages do."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        if request.user.is_authenticated and not is_admin(request.user):
            raise Http404
        return bool(request.user.is_authenticated)


def is_admin(user: object) -> bool:
    return isinstance(user, User) and user.is_admin


def signed_in(request: HttpRequest) -> User:
    """The user of a request that LoginRequiredMiddleware has let through."""
    if not isinstance(request.user, User):
        raise Http404
    return request.user
