"""The sentences that people read, in one place: reasons, causes, events and notices are stored and sent as data.

A module of this package has a function for each code, whose keyword arguments are the parameters. It knows nothing of the
apps; these keep the classes of their messages (``scheduling.messages.Message``) and store ``data()``.
"""

from collections.abc import Mapping
from typing import Any

from portal.sentences import (
    agents,
    alarms,
    causes,
    changes,
    container_ends,
    datasets,
    events,
    failures,
    forecasts,
    reasons,
    schedules,
)
from portal.sentences.causes import explain_cause
from portal.sentences.registry import SENTENCES
from scheduling.messages import Message

__all__ = [
    "SENTENCES",
    "agents",
    "alarms",
    "causes",
    "changes",
    "container_ends",
    "datasets",
    "events",
    "explain_cause",
    "failures",
    "forecasts",
    "reasons",
    "schedules",
    "sentence_of",
]


def sentence_of(content: Message | Mapping[str, Any] | str | None) -> str:
    """Return the sentence for a message, or for one as it is stored: data, or the text of an earlier release; empty for nothing.

    A message of another release that is not known here is shown as its code and parameters.
    """
    if not content:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Message):
        content = content.data()
    if not isinstance(content, Mapping) or not isinstance(content.get("code"), str):
        return str(content)  # of a hostile node
    values = {name: value for name, value in content.items() if name != "code"}
    sentence = SENTENCES.get(content["code"])
    try:
        return sentence(**values) if sentence else _unknown(content["code"], values)
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError):  # other parameters than ours
        return _unknown(content["code"], values)


def _unknown(code: str, values: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{name} {value}" for name, value in values.items() if value not in ("", None))
    return f"{code.replace('_', ' ').capitalize()}{f' ({shown})' if shown else ''}."
