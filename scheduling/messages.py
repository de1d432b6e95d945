"""What people read, as data: a code with parameters. ``portal/sentences`` turns it into a sentence for its reader.

Only data is stored and sent, so that a text can be corrected, translated and adapted to its reader later. Parameters are
rounded to what the sentence shows: one that differs only in what is not shown would be stored again in every cycle.
"""

from dataclasses import dataclass, fields
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

    def data(self) -> dict[str, Any]:
        """Return the message as JSON, which ``message_from`` reads."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"code": self.code} | {
            name: value.data() if isinstance(value, Message) else value for name, value in values.items()
        }


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
    if kind is None or {field.name for field in fields(kind)} != set(values):  # type: ignore[arg-type]
        return Unknown(dict(content))
    return kind(**values)


@dataclass(frozen=True)
class Unknown(Message):
    """A message of another release, kept as it is."""

    code: ClassVar[str] = "unknown"
    content: dict[str, Any]

    def data(self) -> dict[str, Any]:
        return dict(self.content)
