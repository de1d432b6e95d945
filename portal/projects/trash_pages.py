"""What the pages of all trashes share: the buttons that restore a row, or erase it now."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from portal.accounts.models import User
from portal.accounts.permissions import signed_in
from portal.refused import Refused

Row = TypeVar("Row")
Actions = Mapping[str, tuple[Callable[[User, Row], Row], str]]
"""By the last part of the address: what is done, and what the page shows then, with ``{row}``."""


def act_in_trash(request: HttpRequest, row: Row, actions: Actions[Row], what: str, back: str) -> HttpResponse:
    """Do what a button asks for, and lead back to the trash, a name of a URL."""
    do, message = actions[what]
    try:
        messages.success(request, message.format(row=do(signed_in(request), row)))
    except Refused as refusal:
        messages.error(request, refusal.message)
    return redirect(back)
