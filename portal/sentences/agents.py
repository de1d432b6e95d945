"""What agents report in words. Its sentences are those of ``runners.messages``, which nodes print and log themselves."""

from functools import partial
from typing import Any

from portal.sentences.registry import SENTENCES
from runners.messages import (
    CLASSES,
    MAX_TEXT_CHARACTERS,
    Message,
    Quotation,
    builds,
    confinement,
    containers,
    datasets,
    engine,
    environment_failures,
    environments,
    git,
    git_failures,
    gpus,
    image_failures,
    images,
    launch,
    layer_failures,
    message_from,
    outputs,
    portal,
    problems,
    secrets,
)

__all__ = [
    "MAX_TEXT_CHARACTERS",
    "Message",
    "Quotation",
    "builds",
    "confinement",
    "containers",
    "datasets",
    "engine",
    "environment_failures",
    "environments",
    "git",
    "git_failures",
    "gpus",
    "image_failures",
    "images",
    "launch",
    "layer_failures",
    "message_from",
    "outputs",
    "portal",
    "problems",
    "secrets",
]


def _text(kind: type[Message], **values: Any) -> str:
    return kind.of(values).text


SENTENCES.update({code: partial(_text, kind) for code, kind in CLASSES.items()})
