"""What people read, as data: a code with parameters. ``portal/sentences`` turns it into a sentence for its reader.

Only data is stored and sent, so that a text can be corrected, translated and adapted to its reader later. Parameters are
rounded to what the sentence shows: one that differs only in what is not shown would be stored again in every cycle.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from math import isfinite
from numbers import Integral, Real
from typing import Any, ClassVar


class Message:
    """The base class of all messages: frozen dataclasses with a ``code`` that is never changed, since it is stored.

    Fields are numbers, strings, lists of them, or other messages.
    """

    code: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if other := CLASSES.get(cls.code):
            raise TypeError(f"{cls.__qualname__} has the code {cls.code!r} of {other.__qualname__}")
        CLASSES[cls.code] = cls

    @classmethod
    @cache
    def field_names(cls) -> tuple[str, ...]:
        """Return the names of its fields; a reason is made for each waiting job in each cycle."""
        return tuple(field.name for field in fields(cls)) if is_dataclass(cls) else ()

    def data(self) -> dict[str, Any]:
        """Return the message as JSON, which ``message_from`` reads."""
        content: dict[str, Any] = {"code": self.code}
        for name in self.field_names():
            content[name] = _to_json(getattr(self, name))
        return content


def _to_json(value: Any) -> Any:
    """Return a parameter as a JSON value. A lab's own policies may give NumPy numbers, tuples, or anything else."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() else value.encode(errors="replace").decode()
    if kind in (int, bool) or value is None:
        return value
    if isinstance(value, Message):
        return value.data()
    if isinstance(value, list | tuple):
        return [_to_json(each) for each in value]
    if isinstance(value, Mapping):
        return {str(name): _to_json(each) for name, each in value.items()}
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and isfinite(value):
        return float(value)
    return str(value)


CLASSES: dict[str, type[Message]] = {}
"""The classes of messages that are loaded, by code."""


@dataclass(frozen=True)
class Text(Message):
    """A sentence that exists only as text: of an earlier release, or of a lab's own policy."""

    code: ClassVar[str] = "text"
    text: str


def message_from(content: Any) -> Any:
    """Return the message that ``data`` returned as JSON, or the sentence that an earlier release stored.

    A code without a class here (of another release, or of a module that is not loaded) gives an ``Unknown``.
    """
    if isinstance(content, str):
        return Text(content)
    values = {
        name: message_from(value) if isinstance(value, dict) and "code" in value else value
        for name, value in content.items()
        if name != "code"
    }
    kind = CLASSES.get(content["code"])
    if kind is None or set(kind.field_names()) != set(values):
        return Unknown(dict(content))
    return kind(**values)


@dataclass(frozen=True)
class Unknown(Message):
    """A message of another release, kept as it is."""

    code: ClassVar[str] = "unknown"
    content: dict[str, Any]

    def data(self) -> dict[str, Any]:
        return dict(self.content)
