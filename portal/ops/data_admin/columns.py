"""What stands in the lists and on the pages of rows: columns made from the fields of a model, with links between rows."""

import json
from collections.abc import Callable, Iterable
from typing import Any

from django.contrib.admin.utils import quote
from django.contrib.auth.models import Group
from django.db import models
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst

from portal.accounts.models import User
from portal.cluster.models import Node
from portal.environments.models import Environment
from portal.message_field import MessageField
from portal.ops.data_admin.hidden import shown_fields, shown_models
from portal.projects.models import Project

Column = str | Callable[[Any], Any]
MAX_COLUMNS = 9
NOTHING = "–"
NOTHING = "–"
TITLES = {
    "accounts.apitoken": "API tokens",
    "accounts.auditentry": "Audit entries",
    "accounts.labsettings": "Lab settings",
    "accounts.listcolumns": "Columns of lists",
    "cluster.gpu": "GPUs",
    "home.seenfailures": "Seen failures",
    "jobs.progress": "Progress",
    "control.chosenbatch": "Chosen batch sizes",
}
"""Names of tables whose plural is not that of English."""
NAMES: dict[type[models.Model], str] = {
    User: "username",
    Group: "name",
    Project: "name",
    Node: "name",
    Environment: "key",
}
"""Models whose rows are known by a name; all others by their number."""
LISTED: dict[str, tuple[str, ...]] = {
    "accounts.user": ("username", "email", "first_name", "last_name", "is_staff", "is_active", "last_login"),
    "cluster.node": ("name", "runtime", "approved_at", "cordoned", "draining", "removed_at", "last_seen_at", "ready"),
    "jobs.attempt": ("job", "number", "created_at", "started_at", "ended_at", "outcome", "stop_reason", "policy"),
    "jobs.container": ("attempt", "node", "role", "name", "state", "assigned_at", "exited_at", "exit_code"),
    "jobs.job": ("name", "state", "submitted_by", "project", "max_gpus", "submitted_at", "started_at", "finished_at"),
}
"""By model, the fields of its list, where the first ones are not the most useful."""
LONG = (models.TextField, models.JSONField, models.BinaryField, models.ManyToManyField, models.UUIDField)


def row_url(model: type[models.Model], pk: Any) -> str:
    return reverse(f"data:{model._meta.app_label}_{model._meta.model_name}_change", args=[quote(pk)])


def table_title(model: type[models.Model]) -> str:
    return TITLES.get(model._meta.label_lower) or capfirst(str(model._meta.verbose_name_plural))


def row_label(row: models.Model) -> str:
    """Return how a row is called in links and headings: ``ada``, ``Job 7``."""
    if name := NAMES.get(type(row)):
        return str(getattr(row, name))
    return f"{capfirst(row._meta.verbose_name)} {row.pk}"


def fields_in_list(model: type[models.Model]) -> "list[models.Field[Any, Any]]":
    chosen = LISTED.get(model._meta.label_lower)
    fields = [field for field in shown_fields(model) if not field.primary_key or field.is_relation]
    if chosen:
        return sorted((field for field in fields if field.name in chosen), key=lambda field: chosen.index(field.name))
    return [field for field in fields if not isinstance(field, LONG)][: MAX_COLUMNS - 1]


def list_columns(model: type[models.Model]) -> list[Column]:
    return [row_number, *(column_of(field) for field in fields_in_list(model))]


def page_columns(model: type[models.Model]) -> list[Column]:
    return [*(column_of(field) for field in shown_fields(model)), *([references] if references_to(model) else [])]


def row_number(row: models.Model) -> str:
    return str(row.pk)


row_number.short_description = "Row"  # type: ignore[attr-defined]
row_number.admin_order_field = "pk"  # type: ignore[attr-defined]


def column_of(field: "models.Field[Any, Any]") -> Column:
    """Return the column of a field: links for relations, indented JSON for structures, otherwise the field itself."""
    if isinstance(field, models.ManyToManyField):
        return _named(field, lambda row: _links(getattr(row, field.name).all()))
    if isinstance(field, models.ForeignKey):
        return _named(field, lambda row: _link_of(field, row))
    if isinstance(field, models.JSONField | MessageField):
        return _named(field, lambda row: _structure(getattr(row, field.name)))
    return field.name


def _named(field: "models.Field[Any, Any]", show: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def column(row: models.Model) -> Any:
        shown = show(row)
        return NOTHING if shown is None else shown

    column.__name__ = f"show_{field.name}"
    column.short_description = field.verbose_name  # type: ignore[attr-defined]
    if isinstance(field, models.ForeignKey):
        column.admin_order_field = field.attname  # type: ignore[attr-defined]  # not by the order of the other table
    return column


def _link_of(field: models.ForeignKey[Any, Any], row: models.Model) -> str:
    model, pk = field.related_model, getattr(row, field.attname)
    if pk is None:
        return NOTHING
    text = getattr(getattr(row, field.name), NAMES[model]) if model in NAMES else f"{model._meta.verbose_name} {pk}"
    return format_html('<a href="{}">{}</a>', row_url(model, pk), text)


def _links(rows: Iterable[models.Model]) -> str:
    links = ((row_url(type(row), row.pk), row_label(row)) for row in rows)
    return format_html_join(", ", '<a href="{}">{}</a>', links) or NOTHING


def _structure(value: Any) -> str:
    if value in (None, "", [], {}):
        return NOTHING
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return format_html("<pre>{}</pre>", text)


def references_to(model: type[models.Model]) -> list[models.ForeignKey[Any, Any]]:
    """Return the relations of other tables to this one."""
    return [
        field
        for other in shown_models()
        for field in shown_fields(other)
        if isinstance(field, models.ForeignKey) and field.related_model is model
    ]


def references(row: models.Model) -> SafeString:
    """Return links to the rows of other tables that refer to a row."""
    found = []
    for field in references_to(type(row)):
        opts = field.model._meta
        address = reverse(f"data:{opts.app_label}_{opts.model_name}_changelist")
        found.append((f"{address}?{field.name}__exact={row.pk}", table_title(field.model), field.verbose_name))
    return format_html_join("", '<div><a href="{}">{}</a> by {}</div>', found)


references.short_description = "Rows that refer to it"  # type: ignore[attr-defined]
