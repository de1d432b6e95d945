"""Forms that edit stored values: two people with the same form open do not overwrite each other without knowing it.

A form carries, in a hidden input, the stored values that it showed (``{% shown_values form %}``). When it comes back and the
stored values are others by then, the view answers 409 with the form again: it names what was changed, keeps what the
person typed, and takes the new value of each field that they left alone. It also carries the new values, so that
submitting it again replaces them.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, time
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone

from portal.zones import LOCAL_TIME_FORMAT

SHOWN = "shown_values"
"""The name of the hidden input."""
MAX_QUOTED_LENGTH = 80
"""Characters of a value that a sentence quotes."""


def encode_shown(form: forms.BaseForm) -> str:
    """Return the stored values of a form's fields, for its hidden input."""
    return json.dumps(_stored_values(form))


def is_stale(form: forms.BaseForm, who: Callable[[], str] = str) -> bool:
    """Return whether stored values were changed after a submitted form showed them; if so, add an error that names them.

    ``form.initial`` has the stored values. ``who`` returns who changed them, or "". A form without the hidden input, as a
    script sends it, is never stale. A change to the very value that was typed is none.
    """
    shown = _read_shown(form)
    if not shown:
        return False
    stored, typed = _stored_values(form), _typed_values(form)
    changed = [name for name in stored if name in shown and stored[name] not in (shown[name], typed[name])]
    if not changed:
        return False
    taken = {name: stored[name] for name in changed if typed[name] == shown[name]}
    _take_over(form, taken)
    by = who()

    def quote(name: str, values: Mapping[str, Any]) -> str:
        return _quote(_as_typed(form.fields[name], values[name]))

    changes = "; ".join(
        f"{form[name].label} from {quote(name, shown)} to {quote(name, stored)}"
        if not isinstance(stored[name], str) or max(len(stored[name]), len(str(shown[name]))) <= MAX_QUOTED_LENGTH
        else f"{form[name].label}, now {quote(name, stored)}"
        for name in changed
    )
    below = (
        "The form has the new values beside what you typed: save it again to keep both."
        if len(taken) == len(changed)
        else "What you typed is below: save it again to replace the change."
    )
    form.add_error(
        None,
        f"{f'{by} has' if by else 'Someone has'} changed this since you opened it: {changes}. Nothing is saved yet. {below}",
    )
    return True


def status_of(form: forms.BaseForm, stale: bool) -> int:
    """Return the status of a page that shows a form."""
    return 409 if stale else 400 if form.errors else 200


def _quote(value: object) -> str:
    """Return a stored value as a sentence shows it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = " ".join(str("" if value is None else value).split())
    if not text:
        return "empty"
    return f"“{text[:MAX_QUOTED_LENGTH]}…”" if len(text) > MAX_QUOTED_LENGTH else f"“{text}”"


def _read_shown(form: forms.BaseForm) -> dict[str, Any]:
    try:
        shown = json.loads(form.data.get(SHOWN, "")) if form.is_bound else {}
        json.dumps(shown, ensure_ascii=False).encode()  # half a surrogate pair, which no page can quote
    except (ValueError, RecursionError):
        return {}
    return shown if isinstance(shown, dict) else {}


def _stored_values(form: forms.BaseForm) -> dict[str, Any]:
    return {
        name: _plain(field, field.prepare_value(form.get_initial_for_field(field, name)))
        for name, field in _stored_fields(form).items()
    }


def _typed_values(form: forms.BaseForm) -> dict[str, Any]:
    return {
        name: _plain(field, field.widget.value_from_datadict(form.data, form.files, form.add_prefix(name)))
        for name, field in _stored_fields(form).items()
    }


def _stored_fields(form: forms.BaseForm) -> dict[str, forms.Field]:
    """Return the fields that show what is stored: all but passwords."""
    return {name: field for name, field in form.fields.items() if not isinstance(field.widget, forms.PasswordInput)}


def _plain(field: forms.Field, value: Any) -> Any:
    """Return a value as JSON can carry it, such that equal values compare equal however they were typed."""
    try:
        read = field.to_python(value)
    except ValidationError:
        return value
    if isinstance(read, datetime):
        return read.astimezone(UTC).isoformat(timespec="minutes")
    return f"{read:%H:%M}" if isinstance(read, time) else read


def _as_typed(field: forms.Field, value: Any) -> Any:
    """Return a value of ``_plain`` as the reader would type it: a time by their clock."""
    if isinstance(field, forms.DateTimeField) and isinstance(value, str) and value:
        with suppress(ValueError, OverflowError):
            return f"{timezone.localtime(datetime.fromisoformat(value)):{LOCAL_TIME_FORMAT}}"
    return value


def _take_over(form: forms.BaseForm, values: Mapping[str, Any]) -> None:
    """Show the stored values of fields that the person left alone."""
    data: Any = form.data
    data = data.copy()
    for name, value in values.items():
        key, value = form.add_prefix(name), _as_typed(form.fields[name], value)
        data.pop(f"{key}_zone", None)  # of a time that is by the present clock now
        if value is False or value is None:
            data.pop(key, None)
        elif isinstance(value, list):
            data.setlist(key, value)
        else:
            data[key] = str(value) if not isinstance(value, bool) else "on"
    form.data = data
    form.full_clean()
