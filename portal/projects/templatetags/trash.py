"""Template tags of the pages of trashes."""

from typing import Any

from django import template
from django.utils import timezone

from portal.projects.deletable import InTrash

register = template.Library()


@register.inclusion_tag("projects/_trash_actions.html")
def trash_actions(row: InTrash, view: str, name: str) -> dict[str, Any]:
    """Draw the buttons that restore a row and erase it now. ``view`` is the name of their URL, ``name`` what is erased, with ``{row}``."""
    is_there = row.erase_at is not None and row.erase_at > timezone.now()
    return {"row": row, "view": view, "name": name.format(row=row), "is_there": is_there}
