"""The site of Django's admin, with the portal's sign-in and rules of access, and the admin of every model."""

from datetime import MAXYEAR, MINYEAR, datetime
from typing import Any

from django import forms
from django.apps import apps
from django.contrib import messages
from django.contrib.admin import AdminSite, ShowFacets
from django.contrib.admin.views.main import ERROR_FLAG
from django.db import models
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, URLResolver, include, path, re_path

from portal import stale_forms
from portal.accounts.permissions import View, admin_required, is_admin, signed_in
from portal.generics import ModelAdmin, ModelForm
from portal.ops.data_admin.columns import (
    NAMES,
    Column,
    fields_in_list,
    list_columns,
    page_columns,
    row_label,
    table_title,
)
from portal.ops.data_admin.edits import EDITS
from portal.ops.data_admin.hidden import HIDDEN, shown_fields, shown_models
from portal.ops.data_admin.places import place_of
from portal.refused import Refused
from portal.scheduler.models import SchedulerConfig

ROWS_PER_PAGE = 50
COMPARISONS = frozenset({"", "exact", "gte", "lt", "isnull"})
"""How the addresses of filters and of links between rows compare. Others would reach into the other table."""


MAX_SEARCH_WORDS = 20
"""Words of a search; each is looked for in every text of the table."""


class RowForm(ModelForm[Any]):
    """The form of a row: it stores no value that is older than that of someone else, and shows refusals of services."""

    refusal: Refused | None = None
    _is_compared = False

    def clean(self) -> dict[str, Any]:
        if not self._is_compared:  # is_stale may clean the form once more
            self._is_compared = True
            stale_forms.is_stale(self)
        if self.refusal is not None:
            self.add_error(self.refusal.field if self.refusal.field in self.fields else None, self.refusal.message)
        return self.cleaned_data


class DataSite(AdminSite):
    site_header = "Rows of the database"
    site_title = "Schedulearn"
    index_title = "Tables"
    index_template = "ops/data_index.html"

    def has_permission(self, request: HttpRequest) -> bool:
        return is_admin(request.user)

    def admin_view(self, view: View, cacheable: bool = False) -> View:  # type: ignore[override]
        """Let admins in; anonymous visitors get to the portal's sign-in, others get 404, as on all pages for admins."""
        return admin_required(super().admin_view(view, cacheable))

    def _build_app_dict(self, request: HttpRequest, label: Any = None) -> dict[str, Any]:
        tables: dict[str, Any] = super()._build_app_dict(request, label)
        for app in tables.values():
            for table in app["models"]:
                table["name"] = table_title(table["model"])
        return tables

    def app_index(self, request: HttpRequest, app_label: str, extra_context: Any = None) -> TemplateResponse:
        return super().app_index(request, app_label, {"title": apps.get_app_config(app_label).verbose_name})

    def get_urls(self) -> list[URLPattern | URLResolver]:
        """Return the routes for reading: without a second sign-in, and without those that write or look up rows."""
        labels = sorted({model._meta.app_label for model in self._registry})
        return [
            path("", self.admin_view(self.index), name="index"),
            path("jsi18n/", self.admin_view(self.i18n_javascript, cacheable=True), name="jsi18n"),
            *(
                path(f"{model._meta.app_label}/{model._meta.model_name}/", include(admin.urls))
                for model, admin in self._registry.items()
            ),
            re_path(rf"^(?P<app_label>{'|'.join(labels)})/$", self.admin_view(self.app_index), name="app_list"),
        ]


class DataAdmin(ModelAdmin[Any]):
    """The rows of a model: listed by fifty, found by words and filters, and linked with those of other tables."""

    actions = None
    list_per_page = list_max_show_all = ROWS_PER_PAGE
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    ordering = ("-pk",)
    form = RowForm
    change_list_template = "ops/data_list.html"
    change_form_template = "ops/data_row.html"

    def __init__(self, model: type[models.Model], admin_site: AdminSite) -> None:
        fields = list(shown_fields(model))
        self.editable: tuple[str, ...] = EDITS[model][0] if model in EDITS else ()
        self.list_display = list_columns(model)
        self.filters = filter_fields(fields)
        self.searched = search_fields(model)
        self.joined = [each.name for each in fields_in_list(model) if each.related_model in NAMES]
        self.page_fields: list[Column] = page_columns(model)
        self.comparable = {each.name for each in fields if isinstance(each, models.ForeignKey)} | set(self.filters)
        super().__init__(model, admin_site)

    # Who may do what

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return is_admin(request.user)

    has_module_permission = has_view_permission

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(self.editable) and is_admin(request.user)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_urls(self) -> list[URLPattern]:
        opts, guard = self.opts, self.admin_site.admin_view
        name = f"{opts.app_label}_{opts.model_name}"
        return [
            path("", guard(self.changelist_view), name=f"{name}_changelist"),
            path("<path:object_id>/change/", guard(self.change_view), name=f"{name}_change"),
        ]

    # What is shown and compared

    def get_list_select_related(self, request: HttpRequest) -> list[str] | bool:
        return self.joined or False

    def get_list_filter(self, request: HttpRequest) -> list[str]:  # type: ignore[override]
        return self.filters

    def get_search_fields(self, request: HttpRequest) -> list[str]:
        return self.searched

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Column]:  # type: ignore[override]
        return self.page_fields

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[Column]:  # type: ignore[override]
        return [field for field in self.page_fields if field not in self.editable]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows without what is never shown, and lists without what they do not show."""
        rows = super().get_queryset(request)
        unread = set(HIDDEN.get(self.opts.label_lower, ()))
        if request.resolver_match and request.resolver_match.view_name.endswith("_changelist"):
            shown = {field.name for field in fields_in_list(self.model)}
            unread |= {field.name for field in self.opts.concrete_fields if field.name not in shown}
        return rows.defer(
            *(each.name for each in self.opts.concrete_fields if each.name in unread and not each.primary_key)
        )

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """Allow comparisons of a filter's own column only: others reveal a hidden column letter by letter."""
        name, _, comparison = lookup.partition("__")
        return name in self.comparable and comparison in COMPARISONS

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        words = search_term.split()
        if len(words) > MAX_SEARCH_WORDS:
            messages.warning(request, f"Only the first {MAX_SEARCH_WORDS} words are looked for.")
        return super().get_search_results(request, queryset, " ".join(words[:MAX_SEARCH_WORDS]))

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        try:
            return super().get_object(request, object_id, from_field)
        except OverflowError:  # a number that the database has no room for
            return None

    def to_field_allowed(self, request: HttpRequest, to_field: str) -> bool:
        return to_field == self.opts.pk.name

    def view_on_site(self, row: models.Model) -> str | None:
        return place_of(row)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        about = {"title": table_title(self.model), "policy": self.model is SchedulerConfig}
        beyond = redirect(f"{request.path}?{ERROR_FLAG}=1")
        if any(_is_beyond_every_date(value) for values in request.GET.lists() for value in values[1]):
            return beyond
        try:
            return super().changelist_view(request, about)
        except OverflowError:  # a number in the address that the database has no room for
            return beyond

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **named: Any
    ) -> HttpResponse:
        titles = {"title": row_label(context["original"]), "table": table_title(self.model)}
        context |= {**titles, "policy": self.model is SchedulerConfig}
        return super().render_change_form(request, context, *args, **named)

    # Changes

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        try:
            return super().changeform_view(request, object_id, form_url, extra_context)
        except Refused as refusal:
            request.refusal = refusal  # type: ignore[attr-defined]  # for the form, which then has what was typed
            return super().changeform_view(request, object_id, form_url, extra_context)

    def get_form(self, request: HttpRequest, *args: Any, **options: Any) -> "type[forms.ModelForm[Any]]":
        form = super().get_form(request, *args, **options)
        return type(form.__name__, (form,), {"refusal": getattr(request, "refusal", None)})

    def response_change(self, request: HttpRequest, obj: Any) -> HttpResponseRedirect:
        """Return to the list, or to the row for "Save and continue"; Django also has buttons for what no one may do here."""
        messages.success(request, f"{row_label(obj)} is saved.")
        if "_continue" in request.POST:
            return HttpResponseRedirect(request.path)
        return self.response_post_save_change(request, obj)

    def save_model(self, request: HttpRequest, obj: Any, form: "forms.ModelForm[Any]", change: bool) -> None:
        edit = EDITS[self.model][1]
        edit(signed_in(request), obj, {name: form.cleaned_data[name] for name in self.editable})

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> None:  # type: ignore[override]
        """Do nothing: the audit log has what was changed."""

    def _get_obj_does_not_exist_redirect(self, request: HttpRequest, opts: Any, object_id: str) -> HttpResponse:
        raise Http404


def _is_beyond_every_date(value: str) -> bool:
    """Return whether a text is a time that a zone would move out of the years that Python and the databases know."""
    try:
        return datetime.fromisoformat(value).year in (MINYEAR, MAXYEAR)
    except ValueError:
        return False


def filter_fields(fields: "list[models.Field[Any, Any]]") -> list[str]:
    """Return what a list is filtered by: the fields with choices, a state before all, those for yes or no, and two times."""
    choices = sorted((each.name for each in fields if each.choices), key=lambda name: name not in ("state", "status"))
    yes_or_no = [each.name for each in fields if isinstance(each, models.BooleanField)]
    return [*choices, *yes_or_no, *[each.name for each in fields if isinstance(each, models.DateField)][:2]]


def search_fields(model: type[models.Model]) -> list[str]:
    """Return what a search looks into: the number, short texts, and names of people, groups, projects and nodes."""
    found = ["pk__exact"]
    for field in shown_fields(model):
        if isinstance(field, models.ForeignKey) and field.related_model in NAMES:
            found.append(f"{field.name}__{NAMES[field.related_model]}")
        elif isinstance(field, models.CharField) and not field.choices:
            found.append(field.name)
    return found


site = DataSite(name="data")
for each in shown_models():
    site.register(each, DataAdmin)
