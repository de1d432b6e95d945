"""Template tags of lists (``portal.lists``), which every page can use without loading them.

docs/development/design.md shows each.
"""

from dataclasses import dataclass
from typing import Any

from django import template
from django.http import HttpRequest
from django.template.context import RequestContext

from portal.accounts.models import SavedView
from portal.lists import Column, Table

register = template.Library()


@dataclass(frozen=True, slots=True)
class Heading:
    """The header of a column."""

    column: Column
    href: str
    direction: str
    """``ascending`` or ``descending`` when the list is sorted by this column, for aria-sort; otherwise empty."""


@register.inclusion_tag("components/list_head.html")
def list_head(table: Table) -> dict[str, Any]:
    """Draw the header cells of the shown columns."""
    return {"headings": [_heading(table, column) for column in table.columns]}


def _heading(table: Table, column: Column) -> Heading:
    current = table.sorted_by == column.key
    falls = not table.falls if current else column.falls
    href = table.address(sort=f"{'-' * falls}{column.key}") if column.order else ""
    return Heading(column, href, ("descending" if table.falls else "ascending") if current else "")


@register.inclusion_tag("components/list_sort.html")
def list_sort(table: Table, always: bool = False) -> dict[str, Any]:
    """Draw the choice of the order as a select, part of the form of the filters: for phones, where a table has no header.

    ``always`` is for lists that are no tables.
    """
    columns = [column for column in table.all_columns if column.order]
    options = [
        (f"{'-' * falls}{column.key}", f"{column.title}, {'descending' if falls else 'ascending'}")
        for column in columns
        for falls in (column.falls, not column.falls)
    ]
    return {"table": table, "options": options, "always": always}


@register.inclusion_tag("components/list_columns.html", takes_context=True)
def list_columns(context: RequestContext, table: Table) -> dict[str, Any]:
    """Draw the menu of columns, a form of its own."""
    return {"table": table, "next": _here(context, table, columns="")}


@register.inclusion_tag("components/list_views.html", takes_context=True)
def list_views(context: RequestContext, table: Table, views: list[SavedView]) -> dict[str, Any]:
    """Draw the saved views of a list as links; nothing without any."""
    here = table.view_query
    return {"views": [(view, view.query == here) for view in views], "path": context["request"].path}


@register.inclusion_tag("components/list_save.html", takes_context=True)
def list_save(context: RequestContext, table: Table, views: list[SavedView]) -> dict[str, Any]:
    """Draw the menu that saves what is shown as a view, or renames or deletes the view that is shown."""
    query = table.view_query
    current = next((view for view in views if view.query == query), None)
    return {"table": table, "current": current, "next": _here(context, table), "query": query}


@register.inclusion_tag("components/list_problems.html")
def list_problems(table: Table) -> dict[str, Any]:
    """Draw what of the query string could not be followed."""
    return {"table": table}


def _here(context: RequestContext, table: Table, **changes: str) -> str:
    request: HttpRequest = context["request"]
    return request.path + table.address(**changes)
