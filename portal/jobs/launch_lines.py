"""Command lines of other launchers, such as ``accelerate launch train.py``, in a job.

Where a launcher is chosen that runs a file, its line is replaced by what it means (``with_line_read``). In a plain command it
runs as it is typed, on one node; ``advice`` names the values that would do the same.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from portal.cluster.slots import counted, in_cpu_slots, lab_noun
from portal.jobs.events import Event, LineAdvised, LineTranslated
from portal.jobs.launch_configs import read_config
from portal.jobs.models import Job
from portal.jobs.spec import Submission
from portal.projects.inspecting import entries
from portal.projects.inspecting.launch_lines import Translation, UntranslatableError, tool_of, translate
from portal.projects.models import CodeVersion
from portal.refused import Refused

NOT_HERE = ("mpirun", "srun")
"""Launchers that no environment has."""
LAUNCHER_NAMES = {Job.Launcher.HOROVOD: "Horovod", Job.Launcher.TORCHRUN: "torchrun"}


@dataclass(frozen=True, slots=True)
class Advice:
    """What is wrong with a line in a plain command, or would be better."""

    text: str
    translation: Translation | None = None
    """The values to use in its place."""
    is_hint: bool = False
    """The line runs as it is."""


def translation_for(code: CodeVersion, line: str) -> Translation | None:
    """Return what a job needs to do what a line does; None if it calls no other launcher. Raises UntranslatableError."""
    written_for = str(code.guess.get("launcher") or "")
    found = translate(line, written_for, partial(read_config, code))
    if found is not None and entries.file_of(found.entry, {file["path"] for file in code.files}) is None:
        raise UntranslatableError(f"There is no {found.entry!r} in this code version. Correct its path.")
    return found


def with_line_read(asked: Submission) -> tuple[Submission, list[Event]]:
    """Return a submission in which an entry that is a line of a launcher is replaced, and what to record about it.

    A plain command is not changed: it runs as it is. Raises Refused for a line that means something else.
    """
    if asked.launcher not in Job.Launcher.values:
        return asked, []
    if asked.launcher == Job.Launcher.COMMAND:
        found = advice(asked.code, asked.launcher, asked.entry, asked.max_gpus)
        return asked, [] if found is None or found.is_hint else [LineAdvised(found.text)]
    try:
        translation = translation_for(asked.code, asked.entry)
    except UntranslatableError as error:
        if tool_of(asked.entry) is None:
            return asked, []
        raise Refused(f"This line cannot be translated. {error}", field="entry") from error
    if translation is None:
        return asked, []
    if translation.launcher != asked.launcher:
        name = LAUNCHER_NAMES[Job.Launcher(translation.launcher)]
        raise Refused(f"This line starts ranks as {name} does. Choose the launcher {name}.", field="launcher")
    changed = replace(
        asked,
        entry=translation.entry,
        arguments=(*translation.arguments, *asked.arguments),
        env_vars={**translation.env_vars, **asked.env_vars},
    )
    names = ", ".join(translation.env_vars)
    notes = [f"It sets the environment variables {names}."] if names else []
    notes += [*translation.notes, *_rank_notes(translation, asked.min_gpus, asked.max_gpus)]
    in_lab = notes if lab_noun() == "GPU" else [in_cpu_slots(note) for note in notes]
    return changed, [LineTranslated(translation.tool, translation.entry, in_lab)]


def _rank_notes(found: Translation, min_gpus: int, max_gpus: int) -> list[str]:
    """Return a note where the job asks for other numbers of GPUs than the line starts processes."""
    if (
        found.max_ranks is None
        or found.min_ranks is None
        or (found.min_ranks <= max_gpus and found.max_ranks >= min_gpus)
    ):
        return []
    asks = f"the job asks for {counted(max_gpus, 'GPU') if max_gpus == min_gpus else f'{min_gpus} to {max_gpus} GPUs'}"
    return [
        f"The line starts {_processes(found)}, and {asks}: one rank runs on each GPU. Ask for {_gpus(found)} to have as many."
    ]


def _processes(found: Translation) -> str:
    count = _numbers(found)
    return f"{count} process{'' if count == '1' else 'es'}"


def _gpus(found: Translation) -> str:
    count = _numbers(found)
    return f"{count} GPU{'' if count == '1' else 's'}"


def _numbers(found: Translation) -> str:
    return str(found.max_ranks) if found.min_ranks == found.max_ranks else f"{found.min_ranks} to {found.max_ranks}"


def advice(code: CodeVersion, launcher: str, line: str, gpus: int) -> Advice | None:
    """Return what to know about a line of another launcher in a plain command of a job with at most so many GPUs."""
    if launcher != Job.Launcher.COMMAND or (tool := tool_of(line)) is None:
        return None
    try:
        found = translation_for(code, line)
    except UntranslatableError as error:
        if tool in NOT_HERE:
            return _in_lab(Advice(f"No environment has {tool}. {error}"))
        return (
            None if gpus < 2 else _in_lab(Advice(f"{_alone(tool)} It cannot be translated for several nodes: {error}"))
        )
    if found is None:
        return None
    ranks = found.max_ranks
    if tool in NOT_HERE:
        start = f"No environment has {tool}, since Schedulearn starts the ranks itself."
    elif found.nodes > 1:
        start = f"The line waits for {found.nodes} nodes, and a plain command runs on one."
    elif ranks is not None and ranks != gpus:
        start = (
            f"The line starts {_processes(found)}, and the job asks for {counted(gpus, 'GPU')} at most: "
            f"{'several processes share a GPU, or the line fails' if ranks > gpus else 'the others are idle'}."
        )
    elif gpus > 1:
        start = _alone(tool)
    else:
        start = f"{tool} in a plain command runs as you type it, on one node."
    is_hint = tool not in NOT_HERE and found.nodes == 1 and gpus < 2 and ranks in (None, gpus)
    return _in_lab(Advice(f"{start} {instead(found)}", found, is_hint))


def _alone(tool: str) -> str:
    return (
        f"{tool} in a plain command starts its processes on one node, so the job waits until one node has all its GPUs."
    )


def instead(found: Translation) -> str:
    """Return the values to enter in place of a line, as sentences."""
    name = LAUNCHER_NAMES[Job.Launcher(found.launcher)]
    values = [f"the launcher {name}", f"{'the module' if found.entry.startswith('-m ') else 'the file'} {found.entry}"]
    form = form_values(found)
    values += [f"the arguments {form['arguments']}"] if form["arguments"] else []
    values += [f"the environment variables {', '.join(form['env_vars'].splitlines())}"] if form["env_vars"] else []
    values += [_gpus(found)] if found.max_ranks else []
    notes = "".join(f" {note}" for note in found.notes)
    return f"To run on one or several nodes, with a log of each rank, enter {', '.join(values[:-1])} and {values[-1]}.{notes}"


def form_values(found: Translation) -> dict[str, Any]:
    """Return the values of the form's fields that do what a line does."""
    values: dict[str, Any] = {
        "launcher": found.launcher,
        "entry": found.entry,
        "arguments": shlex.join(found.arguments),
        "env_vars": "\n".join(f"{name}={text}" for name, text in found.env_vars.items()),
    }
    if found.min_ranks and found.max_ranks:
        values |= {"min_gpus": str(found.min_ranks), "max_gpus": str(found.max_ranks)}
    if found.retries:
        values["retries"] = str(found.retries)
    return values | ({"elastic": "on"} if found.elastic else {})


def too_large_note(found: Translation, lab_gpus: int) -> str:
    """Return a note about a line that starts more processes than the lab has GPUs; empty for another, or without nodes."""
    if not lab_gpus or not found.max_ranks or found.max_ranks <= lab_gpus:
        return ""
    has = counted(lab_gpus, lab_noun())
    return f"The line asks for {_numbers(found)}, and the lab has {has}: the form asks for no more than that."


def _in_lab(found: Advice) -> Advice:
    return found if lab_noun() == "GPU" else replace(found, text=in_cpu_slots(found.text))


def with_values(data: Mapping[str, Any], found: Translation, lab_gpus: int = 0) -> dict[str, Any]:
    """Return what was sent with a form, with the values in place of its line; variables that were typed stay.

    GPUs are at most ``lab_gpus``, those of the lab, unless that is 0.
    """
    values = form_values(found)
    if lab_gpus:
        values |= {name: str(min(int(values[name]), lab_gpus)) for name in ("min_gpus", "max_gpus") if name in values}
    typed = [line for line in str(data.get("env_vars", "")).splitlines() if line.strip()]
    names = {line.partition("=")[0].strip() for line in typed}
    new = [line for line in values["env_vars"].splitlines() if line.partition("=")[0] not in names]
    arguments = " ".join(filter(None, (values["arguments"], str(data.get("arguments", "")).strip())))
    return {**data, **values, "arguments": arguments, "env_vars": "\n".join([*typed, *new])}
