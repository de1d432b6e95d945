"""Template tags that every page can use without loading them: icons, badges, times, sizes, fields, pagers.

They give the same fact the same look and wording on all pages; docs/development/design.md shows each.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django import template
from django.conf import settings
from django.core.paginator import Page
from django.forms import BaseForm, BoundField, CheckboxInput, FileInput, Widget
from django.templatetags.static import static
from django.utils import timezone
from django.utils.dateformat import format as date_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from portal import stale_forms

register = template.Library()

VENDORED = ("vendor/", "drf_spectacular_sidecar/")
"""Where scripts lie that are no modules."""

BADGES: dict[str, tuple[str, str]] = {
    # jobs
    "queued": ("amber", "clock"),
    "running": ("blue", "play"),
    "held": ("violet", "pause"),
    "succeeded": ("green", "check"),
    "failed": ("red", "cross"),
    "cancelled": ("grey", "slash"),
    # attempts
    "preempted": ("violet", "again"),
    "timed_out": ("red", "clock"),
    "lost": ("red", "plug"),
    "error": ("red", "alert"),
    # containers
    "assigned": ("amber", "clock"),
    "preparing": ("teal", "gear"),
    "stopping": ("amber", "stop"),
    "exited": ("grey", "dot"),
    # nodes, environments and everything else that is up, waiting or gone
    "ready": ("green", "check"),
    "waiting": ("amber", "clock"),
    "not_built": ("grey", "dot"),
    "draining": ("violet", "drain"),
    "removed": ("grey", "slash"),
    "active": ("green", "check"),
    "free": ("grey", "dot"),
    "busy": ("blue", "play"),
    "expired": ("grey", "clock"),
    "revoked": ("grey", "slash"),
    "paused": ("violet", "pause"),
    "new": ("blue", "dot"),
    "changed": ("teal", "pen"),
    "admin": ("teal", "key"),
    "owner": ("teal", "key"),
    "member": ("grey", "user"),
    "viewer": ("grey", "eye"),
}
MAX_REASON_WORDS = 12
"""A reason that is longer is shown in short, with the rest on demand."""
LIVE = {"running", "preparing", "stopping"}


@register.simple_tag
def assets(*paths: str) -> SafeString:
    """Load the stylesheets and scripts of a page, in this order: ``{% assets "jobs/jobs.css" "jobs/new.js" %}``."""
    return format_html_join("\n", "{}", ((_asset(path),) for path in paths))


def _asset(path: str) -> SafeString:
    if path.endswith(".css"):
        return format_html('<link rel="stylesheet" href="{}">', static(path))
    if path.startswith(VENDORED):
        return format_html('<script defer src="{}"></script>', static(path))
    return format_html('<script type="module" src="{}"></script>', static(path))


@register.simple_tag
def live(*topics: str, number: int | None = None, load: bool = False) -> SafeString:
    """Let a part with ``id`` and ``hx-get`` fetch itself when the page's connection hints at a topic, of a row's number.

    ``{% live "lab" %}`` or ``{% live "job" number=job.pk %}``; with ``load`` also when the page is loaded.
    """
    names = [topic if number is None else f"{topic}-{number}" for topic in topics]
    triggers = ["load"] * load + [f"live-{name} from:document" for name in names]
    return format_html('data-live="{}" hx-trigger="{}"', " ".join(names), ", ".join(triggers))


@register.simple_tag
def icon(name: str, css: str = "") -> SafeString:
    """Draw a decorative icon, hidden from screen readers: the word beside it has the meaning."""
    return format_html(
        '<svg class="icon {}" aria-hidden="true" focusable="false"><use href="{}#{}"></use></svg>',
        css,
        static("img/icons.svg"),
        name,
    )


@register.simple_tag
def badge(state: str, text: str = "", css: str = "") -> SafeString:
    key = str(state).lower()
    tone, symbol = BADGES.get(key, ("grey", "dot"))
    live = "live" if key in LIVE else ""
    return format_html(
        '<span class="badge {} {} {}">{}{}</span>', tone, live, css, icon(symbol), text or key.replace("_", " ")
    )


@register.inclusion_tag("components/copyable.html")
def copyable(id: str, text: str) -> dict[str, str]:
    """Show a text, such as a link or a command, with a button that copies it; ``id`` is its only one on the page."""
    return {"id": id, "text": text}


@register.inclusion_tag("components/term.html", takes_context=True)
def term(context: dict[str, Any], key: str) -> dict[str, Any]:
    """Explain a term behind a question mark: ``4 ranks {% term "rank" %}``. Once on a page, where it first stands.

    A lab without GPUs reads about CPU slots.
    """
    from portal.sentences.glossary import TERMS  # noqa: PLC0415  # the package uses the filters below
    from portal.sentences.words import in_cpu_slots  # noqa: PLC0415

    explained = TERMS[key]
    text = (
        explained.text
        if key == "cpu-slot" or context.get("slot_noun", "GPU") == "GPU"
        else in_cpu_slots(explained.text)
    )
    return {"key": key, "title": explained.title, "text": text}


@register.simple_tag
def version() -> str:
    """Return the release of Schedulearn that runs here."""
    return settings.VERSION


def _local(moment: datetime) -> datetime:
    """Return a moment in the reader's zone. On the first and last days of all, which hostile code reports, some zones have none."""
    try:
        return timezone.localtime(moment)
    except OverflowError:
        return moment


@register.simple_tag
def when(moment: datetime | None, never: str = "never") -> SafeString:
    """Show a moment as "5 minutes ago", with the exact time as title; times.js converts both to the user's time zone."""
    if moment is None:
        return format_html('<span class="soft">{}</span>', never)
    exact = _local(moment)
    return format_html(
        '<time datetime="{}" title="{}" data-when>{}</time>',
        moment.isoformat(timespec="seconds"),
        exact.strftime("%d %b %Y, %H:%M:%S %Z"),
        ago((timezone.now() - moment).total_seconds()),
    )


@register.simple_tag
def exact(moment: datetime | None, never: str = "never", relative: bool = True) -> SafeString:
    """Show a moment as "4 Dec 2026, 09:00 CET", followed by "in 4 days": where a person plans or proves something."""
    if moment is None:
        return format_html('<span class="soft">{}</span>', never)
    shown = format_html(
        '<time class="nowrap" datetime="{}" data-exact>{}</time>',
        moment.isoformat(timespec="seconds"),
        date_format(_local(moment), "j M Y, H:i T"),
    )
    return (
        format_html('<span>{} <span class="soft small nowrap">{}</span></span>', shown, when(moment))
        if relative
        else shown
    )


@register.simple_tag
def since(moment: datetime | None, until: datetime | None = None) -> SafeString:
    """Show how long something took or, without ``until``, has taken so far; the browser keeps counting the latter."""
    if moment is None:
        return format_html('<span class="soft">{}</span>', "not yet")
    if until is not None:
        return format_html('<span class="nowrap">{}</span>', duration((until - moment).total_seconds()))
    seconds = (timezone.now() - moment).total_seconds()
    return format_html(
        '<time class="nowrap" datetime="PT{}S" data-since="{}">{}</time>',
        int(seconds),
        moment.isoformat(),
        duration(seconds),
    )


@register.filter
def duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    whole = max(0, round(seconds))
    days, hours, minutes = whole // 86_400, whole // 3_600 % 24, whole // 60 % 60
    if days:
        return _two_units(days, "d", hours, "h")
    if hours:
        return _two_units(hours, "h", minutes, "min")
    return _two_units(minutes, "min", whole % 60, "s") if minutes else f"{whole} s"


@register.filter
def roughly(seconds: float) -> str:
    """Return an estimated duration with no more digits than it deserves: ``2 h 10 min``, ``13 min``, ``40 s``."""
    for limit, step in ((60, 5), (3_600, 60), (36_000, 600), (86_400, 3_600)):
        if seconds < limit:
            return duration(max(step, step * round(seconds / step)))
    return duration(seconds)


def _two_units(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit}" + (f" {small} {small_unit}" if small else "")


def ago(seconds: float) -> str:
    if abs(seconds) < 10:
        return "just now"
    for unit, length in (
        ("year", 31_536_000),
        ("month", 2_592_000),
        ("day", 86_400),
        ("hour", 3_600),
        ("minute", 60),
        ("second", 1),
    ):
        if abs(seconds) >= length:
            count = round(abs(seconds) / length)
            text = f"{count} {unit}{'' if count == 1 else 's'}"
            return f"{text} ago" if seconds > 0 else f"in {text}"
    return "just now"


@register.filter
def size(count: float | None) -> str:
    """Format a number of bytes in binary units (KiB, MiB), as most file managers do."""
    if count is None:
        return ""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


@register.filter
def gib(mebibytes: float | None) -> str:
    """Convert MiB, the unit of devices' memory, to GiB without the unit."""
    if mebibytes is None:
        return ""
    value = mebibytes / 1024
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


@register.filter
def counted(number: int, words: str) -> str:
    """``3|counted:"job,jobs"`` gives "3 jobs"; one word alone takes an s."""
    one, _, many = words.partition(",")
    return f"{number:,} {one if number == 1 else many or one + 's'}"


@register.filter
def sentence(content: Any) -> Any:
    """Return the sentence for a message as it is stored; a text of an earlier release and other values as they are."""
    from portal.sentences import sentence_of  # noqa: PLC0415  # its modules use the filters above

    return sentence_of(content) if isinstance(content, dict) and "code" in content else content


@register.filter
def short_reason(content: Any) -> str:
    """Return why a job waits in about ten words: for rows of lists that are links to all of it."""
    from portal.sentences.short_reasons import short_reason as shorten  # noqa: PLC0415  # as above

    return shorten(content)


@register.filter
def failure_reason(content: Any) -> str:
    """Return why something failed, without what would fix it: for rows of lists that lead to all of it."""
    from portal.sentences import agents  # noqa: PLC0415  # as above

    try:
        message = agents.message_from(content)
        if isinstance(message, agents.environment_failures.Failure):
            return message.reason
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError):  # of another release
        pass
    return str(sentence(content) or "")


@register.inclusion_tag("components/reason.html")
def reason(content: Any) -> dict[str, str]:
    """Show why a job waits in about ten words, with the whole sentence on demand: ``{% reason job.waiting_reason %}``."""
    full = str(sentence(content) or "")
    return {"short": full if len(full.split()) <= MAX_REASON_WORDS else short_reason(content), "full": full}


@register.filter
def gpu_hours(amount: float | None) -> str:
    """Format GPU-microseconds, the unit of ``portal.usage``, as GPU-hours."""
    if amount is None:
        return ""
    hours = amount / 3.6e9
    text = f"{hours:,.1f}" if abs(hours) >= 10 else f"{hours:.2f}"
    if float(text.replace(",", "")):
        return text.replace("-", "−")
    return "< 0.01" if hours > 0 else "0"


@register.inclusion_tag("components/field.html", takes_context=True)
def field(context: dict[str, Any], bound: BoundField, optional: bool = True, term: str = "") -> dict[str, Any]:
    """Draw a form field with its label, help and errors, linked for screen readers.

    ``optional=False`` omits the word "optional", for fields of which at least one must be filled. ``term`` is the key of
    the glossary's term that the label needs.
    """
    is_check = isinstance(bound.field.widget, CheckboxInput)
    noun = {"slot_noun": context["slot_noun"]} if "slot_noun" in context else {}  # for the term
    return {"field": bound, "optional": optional, "is_check": is_check, "explained": term, **noun}


@register.filter
def emptied_fields(form: BaseForm) -> list[str]:
    """Return the labels of the fields that a refused form shows empty although something was entered: passwords and files."""
    return [str(bound.label) for bound in form if bound.data and not _keeps_value(bound.field.widget)]


def _keeps_value(widget: Widget) -> bool:
    return not isinstance(widget, FileInput) and bool(getattr(widget, "render_value", True))


@register.simple_tag
def shown_values(form: BaseForm) -> SafeString:
    """Carry the stored values that a form shows, so that ``portal.stale_forms`` notices when they were changed since."""
    return format_html('<input type="hidden" name="{}" value="{}">', stale_forms.SHOWN, stale_forms.encode_shown(form))


@register.inclusion_tag("components/chart.html", name="chart")
def draw_chart(chart: Any) -> dict[str, Any]:
    """Draw a figure with legend, picture and the numbers as a table; the page must link css/charts.css."""
    return {"chart": chart}


@register.simple_tag
def sparkline(values: Sequence[float | None] | None, name: str = "Main curve") -> SafeString:
    """Draw the values of a curve in a cell of a list; nothing if there are fewer than two."""
    from portal import charts  # noqa: PLC0415  # it uses the filters above

    known = [value for value in values or () if value is not None]
    if len(known) < 2:
        return SafeString()
    text = f"{name}: from {charts.format_value(known[0])} to {charts.format_value(known[-1])}"
    return charts.sparkline(known, text, from_zero=False)


@register.inclusion_tag("components/pager.html", takes_context=True)
def pager(context: dict[str, Any], page: "Page[Any]", word: str = "entry,entries") -> dict[str, Any]:
    """Draw links to the previous and next page, which keep the rest of the query string."""
    query = context["request"].GET.copy()
    query.pop("page", None)
    return {"page": page, "query": query.urlencode(), "word": word}
