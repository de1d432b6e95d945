"""Lists that a reader sorts, and whose columns a reader chooses: declared once, read from the query string.

A view calls ``read_table(request, JOBS)`` and orders its rows by ``table.ordering``. Templates draw the header by
``{% list_head table %}`` and ask ``table.shows.<key>`` which cells a row has. Only declared names reach the database.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from django.core.paginator import Page
from django.db.models import F, Model, QuerySet
from django.db.models.expressions import Combinable, OrderBy
from django.http import HttpRequest, QueryDict
from django.utils.functional import cached_property
from django.utils.http import url_has_allowed_host_and_scheme

from portal.accounts.models import ListColumns, SavedView, User
from portal.generics import Paginator

SORT, COLUMNS, PAGE = "sort", "columns", "page"
"""Parameters that every list has."""
MAX_QUOTED = 40
MAX_COUNTED = 1_000_000
Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a list; its place in the declaration is its place on the page."""

    key: str
    title: str
    order: tuple[str | Combinable, ...] = ()
    """What it is sorted by; without it the header is no link."""
    numeric: bool = False
    falls: bool = False
    """A first click on its header shows the largest or newest value first."""
    nulls: bool = False
    """Some rows have no value; they come last in both directions."""
    shown: bool = True
    fixed: bool = False
    """It cannot be hidden."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The declaration of a list."""

    key: str
    columns: tuple[Column, ...]
    default_sort: str
    filters: tuple[str, ...] = ()
    """The parameters by which the page filters: those that a saved view keeps."""

    def column(self, key: str) -> Column | None:
        return next((column for column in self.columns if column.key == key), None)

    @property
    def sort_names(self) -> tuple[str, ...]:
        """The names that ``sort`` accepts; each may have a minus in front."""
        return tuple(column.key for column in self.columns if column.order)

    def ordering(self, sort: str) -> tuple[str | OrderBy, ...]:
        """Return the order for a valid ``sort``. Equal rows are in the order of their numbers, so that no page repeats one."""
        column, falling = self.column(sort.lstrip("-")), sort.startswith("-")
        parts: list[str | OrderBy] = []
        for part in column.order if column else ():
            expression: Any = F(part) if isinstance(part, str) else part
            last = {"nulls_last": True} if column and column.nulls else {}
            parts.append(expression.desc(**last) if falling else expression.asc(**last))
        return (*parts, "-pk" if falling else "pk")

    def is_sort(self, text: str) -> bool:
        return text.removeprefix("-") in self.sort_names

    @property
    def default_columns(self) -> tuple[str, ...]:
        return tuple(column.key for column in self.columns if column.shown or column.fixed)


LISTINGS: dict[str, Listing] = {}
"""The lists whose columns and views are stored, by their key. ``declare`` adds to it when the apps are loaded."""


def declare(listing: Listing) -> Listing:
    LISTINGS[listing.key] = listing
    return listing


@dataclass(frozen=True, slots=True)
class Choice:
    """A column in the menu of columns."""

    column: Column
    shown: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A list as one request asks for it."""

    listing: Listing
    sort: str
    keys: frozenset[str]
    """The columns that are shown."""
    query: QueryDict
    problems: tuple[str, ...] = ()
    """What of the query string could not be followed, as sentences."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """Titles other than the declared ones, by the key of the column."""

    @property
    def all_columns(self) -> list[Column]:
        """Every column, with its title in this lab."""
        return [replace(each, title=self.titles.get(each.key, each.title)) for each in self.listing.columns]

    @property
    def columns(self) -> list[Column]:
        return [column for column in self.all_columns if column.key in self.keys]

    @property
    def shows(self) -> dict[str, bool]:
        """For templates: ``{% if table.shows.project %}``."""
        return dict.fromkeys(self.keys, True)

    @property
    def ordering(self) -> tuple[str | OrderBy, ...]:
        return self.listing.ordering(self.sort)

    @property
    def sorted_by(self) -> str:
        return self.sort.lstrip("-")

    @property
    def falls(self) -> bool:
        return self.sort.startswith("-")

    @property
    def choices(self) -> list[Choice]:
        return [Choice(column, column.key in self.keys) for column in self.all_columns]

    @property
    def is_default_sort(self) -> bool:
        return self.sort == self.listing.default_sort

    def address(self, **changes: str) -> str:
        """Return the query string with other values; the page starts at the first again, an empty value goes."""
        query = self.query.copy()
        query.pop(PAGE, None)
        for name, value in changes.items():
            if value:
                query[name] = value
            else:
                query.pop(name, None)
        return f"?{query.urlencode()}"

    @property
    def view_query(self) -> str:
        """The query string that a saved view of this page keeps: its filters, its order and its columns."""
        kept = QueryDict(mutable=True)
        for name in self.listing.filters:
            kept.setlist(name, [value for value in self.query.getlist(name) if value])
        kept[SORT] = self.sort
        kept[COLUMNS] = ",".join(column.key for column in self.columns)
        return kept.urlencode(safe=",")


def read_table(
    request: HttpRequest,
    listing: Listing,
    user: User,
    problems: Iterable[str] = (),
    titles: Mapping[str, str] | None = None,
) -> Table:
    """Return what the query string and the stored choice of columns ask for. One query, if there is a choice."""
    found = list(problems)
    sort = request.GET.get(SORT, "").strip() or listing.default_sort
    if not listing.is_sort(sort):
        names = ", ".join(listing.sort_names)
        found.append(f"This list cannot be sorted by “{quote(sort)}”. Choose one of: {names}.")
        sort = listing.default_sort
    keys = _shown_columns(request, listing, user, found)
    return Table(listing, sort, keys, request.GET, tuple(found), titles or {})


def _shown_columns(request: HttpRequest, listing: Listing, user: User, problems: list[str]) -> frozenset[str]:
    known = {column.key for column in listing.columns}
    if asked := request.GET.get(COLUMNS, "").strip():
        names = [name for name in asked.split(",") if name]
        if unknown := [name for name in names if name not in known]:
            problems.append(f"This list has no column “{quote(unknown[0])}”.")
        chosen = known.intersection(names)
    elif all(column.fixed for column in listing.columns):
        chosen = known
    else:
        stored = ListColumns.objects.filter(user=user, list=listing.key).values_list("columns", flat=True).first()
        chosen = known.intersection(stored if stored is not None else listing.default_columns)
    return frozenset(chosen | {column.key for column in listing.columns if column.fixed})


def saved_views(user: User, listing: Listing) -> list[SavedView]:
    return list(SavedView.objects.filter(user=user, list=listing.key).order_by("name", "pk"))


def return_url(request: HttpRequest, default: str) -> str:
    """Return the page that a form names as ``next``, if it is one of this portal."""
    target = request.POST.get("next", "")
    return target if url_has_allowed_host_and_scheme(target, None) and target.startswith("/") else default


def quote(text: str) -> str:
    """Return a part of what was sent, short enough for a sentence."""
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…"


def unknown_choice(chosen: str, choices: Container[str], instead: str) -> list[str]:
    """Return a sentence about a choice of a filter that there is not; ``instead`` is what the list does."""
    return [f"There is no choice “{quote(chosen)}”: {instead}."] if chosen and chosen not in choices else []


# --- pages -------------------------------------------------------------------------------------------------------


class CappedPaginator(Paginator[Any]):
    """Counts up to ``max_rows``: a search that every row matches need not count them all."""

    def __init__(self, rows: QuerySet[Any, Any], size: int, max_rows: int) -> None:
        super().__init__(rows, size)
        self.max_rows = max_rows

    @cached_property
    def _counted(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by()[: self.max_rows + 1].count())

    @cached_property
    def count(self) -> int:
        return min(self._counted, self.max_rows)

    @property
    def is_capped(self) -> bool:
        """Whether there are more rows than are counted."""
        return self._counted > self.max_rows


def page_of_rows(
    rows: QuerySet[Row],
    ordering: Sequence[str | OrderBy],
    size: int,
    number: str | None,
    load: Callable[[QuerySet[Row]], QuerySet[Row]],
    max_rows: int = MAX_COUNTED,
) -> "Page[Row]":
    """Return a page: the numbers of its rows first, so that nothing wide is sorted, then these rows. Three queries."""
    page = CappedPaginator(rows.order_by(*ordering).values_list("pk", flat=True), size, max_rows).get_page(number)
    numbers = list(page.object_list)
    found = {row.pk: row for row in load(rows.model._default_manager.filter(pk__in=numbers))}
    page.object_list = [found[pk] for pk in numbers if pk in found]
    return page
