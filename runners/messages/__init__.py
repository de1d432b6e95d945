"""What an agent reports in words, as data: a code with parameters, a frozen dataclass each, with its sentence.

A report has the data, the portal stores it, and ``portal/sentences`` shows it to its readers. The sentences stand here and
not there because a node needs them too: ``python -m runners.agent.enrol`` prints what is unfit before there is a portal,
and the agent logs what fails. So there is one place for each sentence. This package imports nothing else of ours.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

MAX_TEXT_CHARACTERS = 1000
"""The maximum length of a parameter; longer ones are cut."""

M = TypeVar("M", bound="Message")
"""Jobs may have Python 3.10, which has no ``Self``."""


class Message(ABC):
    """The base class of all messages. A ``code`` is stored and sent, so it is never changed.

    Fields are numbers, strings, other messages, or tuples of strings or of messages.
    """

    code: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "code" not in vars(cls):
            return  # a base class of some messages
        if other := CLASSES.get(cls.code):
            raise TypeError(f"{cls.__qualname__} has the code {cls.code!r} of {other.__qualname__}")
        CLASSES[cls.code] = cls

    @property
    @abstractmethod
    def text(self) -> str:
        """The sentence, or the phrase for a step."""

    def data(self) -> dict[str, Any]:
        """Return the message as JSON, which ``message_from`` reads."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"code": self.code} | {name: _as_json(value) for name, value in values.items()}

    @classmethod
    def of(cls: type[M], values: Mapping[str, Any]) -> M:
        """Return the message with these parameters; others are ignored. Raises TypeError when they do not fit."""
        kinds = get_type_hints(cls)
        read = {}
        for field in fields(cls):  # type: ignore[arg-type]
            if field.name in values:
                read[field.name] = _read(values[field.name], kinds[field.name])
            elif field.default is MISSING:
                raise TypeError(f"{cls.code} needs {field.name}")
        return cls(**read)


CLASSES: dict[str, type[Message]] = {}
"""The classes of messages that are loaded, by code."""


@dataclass(frozen=True)
class Quotation(Message):
    """What another program printed or returned, or a sentence of an earlier release: it is shown as it is."""

    code = "agent.quotation"
    quoted: str

    @property
    def text(self) -> str:
        return self.quoted


class MessageError(Exception):
    """The base class of errors whose reason users or admins read: a message, or words of another program."""

    def __init__(self, message: Message | str) -> None:
        self.message = message if isinstance(message, Message) else Quotation(message)
        super().__init__(self.message.text)


def message_from(content: Any) -> Message:
    """Return the message that ``data`` returned as JSON; a text of an earlier release as a quotation.

    Raises TypeError for anything else, such as a message of a later release.
    """
    if isinstance(content, str):
        return Quotation(content)
    code = content.get("code") if isinstance(content, dict) else None
    kind = CLASSES.get(code) if isinstance(code, str) else None
    if kind is None:
        raise TypeError(f"{code!r} is not the code of a message")
    return kind.of(content)


def _as_json(value: Any) -> Any:
    if isinstance(value, Message):
        return value.data()
    if isinstance(value, tuple):
        return [_as_json(each) for each in value]
    return value[:MAX_TEXT_CHARACTERS] if isinstance(value, str) else value


def _read(value: Any, kind: Any) -> Any:
    """Return a parameter of JSON as a value of this kind, which may be optional."""
    if type(None) in get_args(kind):
        if value is None:
            return None
        kind = next(each for each in get_args(kind) if each is not type(None))
    if kind == tuple[str, ...] and isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(value)
    if kind == tuple[Message, ...] and isinstance(value, list):
        return tuple(message_from(each) for each in value)
    if isinstance(kind, type) and issubclass(kind, Message):
        message = message_from(value)
        if isinstance(message, kind):
            return message
    if kind is float and type(value) is int:
        return float(value)
    if get_origin(kind) is None and type(value) is kind:
        return value
    raise TypeError(f"{value!r} is not a {kind}")
