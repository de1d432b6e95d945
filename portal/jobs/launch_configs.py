"""Configuration files of ``accelerate launch`` in an upload, which a separate program reads, as they are hostile."""

import tempfile
import threading
from collections.abc import Mapping
from typing import Any

from portal import sandbox
from portal.projects import store
from portal.projects.inspecting.launch_lines import UntranslatableError
from portal.projects.models import CodeVersion

MAX_BYTES = 64 * 1024
LIMITS = sandbox.Limits(10, 512 * 1024 * 1024, 1024 * 1024, threading.BoundedSemaphore(2), wait_seconds=10)


def read_config(version: CodeVersion, path: str) -> Mapping[str, Any]:
    """Return the values of a file of the upload, as text or in groups; those without a value are left out.

    Raises UntranslatableError for a file that is not there or has more than names, values and groups of them.
    """
    try:
        content = store.read_file(version, path.removeprefix("./"), MAX_BYTES + 1)
    except (store.MissingError, OSError) as error:
        raise UntranslatableError(f"The upload has no file {path[:200]!r}. Add it, or correct its path.") from error
    if len(content) > MAX_BYTES:
        raise UntranslatableError(f"{path} is larger than {MAX_BYTES // 1024} KiB, and is not read. Shorten it.")
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        try:
            answer = sandbox.run("projects.inspecting.launch_config", [], file, limits=LIMITS)
        except sandbox.NoAnswerError as error:
            raise UntranslatableError(f"{path} cannot be read as YAML. Correct it.") from error
    if "problem" in answer:
        raise UntranslatableError(f"{path} {answer['problem']}")
    values: Mapping[str, Any] = answer["values"]
    return values
