"""Recognises which launcher a line calls, and has it translated."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from .accelerate_lines import accelerate
from .deepspeed_lines import deepspeed
from .mpi_lines import PYTHON, horovodrun, mpirun, srun
from .shell_words import ASSIGNMENT, MARK, Command, read_command
from .torch_lines import torch_launch, torchrun
from .translation import ReadConfig, Translation, UntranslatableError, no_config

MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate launch",
    "accelerate.commands.accelerate_cli": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
    "horovod.runner.launch": "horovodrun",
    "horovod.runner": "horovodrun",
}
"""The launchers that are called as modules of Python."""
COMMANDS = {
    "torchrun": "torchrun",
    "accelerate": "accelerate",
    "accelerate-launch": "accelerate launch",
    "deepspeed": "deepspeed",
    "deepspeed.pt": "deepspeed",
    "horovodrun": "horovodrun",
    "mpirun": "mpirun",
    "mpiexec": "mpirun",
    "srun": "srun",
}
TOOLS = ("torchrun", "torch.distributed.launch", "accelerate launch", "deepspeed", "horovodrun", "mpirun", "srun")
"""The launchers that are translated, as notes name them."""
PREFIXES = (("exec",), ("nohup",), ("time",), ("uv", "run"), ("poetry", "run"), ("pipenv", "run"))
"""What people write before a command, and no job needs."""
MAX_OUTER = 2
SET_HERE = re.compile(
    r"(CUDA|NVIDIA|HIP|ROCR)_VISIBLE_DEVICES|MASTER_(ADDR|PORT)|((LOCAL|GROUP|ROLE)_)?(RANK|WORLD_SIZE)|NODE_RANK"
    r"|(GLOO|NCCL|TP)_SOCKET_IFNAME|NCCL_(COMM_ID|HOSTID)|(PET|TORCHELASTIC)_\w+"
)
"""Variables for the placement of ranks and for the way to each other."""


def tool_of(line: str) -> str | None:
    """Return the launcher that a line calls first, one of ``TOOLS``, also where it is not translated; None for another program."""
    words = line.split()
    while words and ASSIGNMENT.fullmatch(words[0]):
        del words[0]
    return _tool(_without_prefixes(words))[0]


def translate(line: str, written_for: str = "", read_config: ReadConfig = no_config) -> Translation | None:
    """Return what a job needs to do what a line of another launcher does; None if the line calls none.

    ``written_for`` is the launcher that the code is written for, for lines that leave it open. Raises UntranslatableError.
    """
    command = read_command(line)
    found = _translate(_without_prefixes(command.words), written_for, read_config)
    return None if found is None else _with_surroundings(found, command)


def _translate(words: Sequence[str], written_for: str, read_config: ReadConfig, outer: int = 0) -> Translation | None:
    """Translate a command; ``outer`` is the number of launchers that start it."""
    tool, rest = _tool(words)
    if outer > MAX_OUTER:
        raise UntranslatableError("The line has launchers within launchers. Write the innermost one alone.")

    def inner(words: Sequence[str]) -> Translation | None:
        return _translate(words, written_for, read_config, outer + 1)

    match tool:
        case "torchrun":
            return torchrun(tool, rest)
        case "torch.distributed.launch":
            return torch_launch(tool, rest)
        case "accelerate launch":
            return accelerate(tool, rest, read_config)
        case "deepspeed":
            return deepspeed(tool, rest)
        case "horovodrun":
            return horovodrun(tool, rest)
        case "mpirun":
            return mpirun(tool, rest, written_for, inner)
        case "srun":
            return srun(tool, rest, written_for, inner)
        case _:
            return None


def _tool(words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Return the launcher that the words call, and those behind its name."""
    if not words:
        return None, words
    tool, rest = COMMANDS.get(PurePosixPath(words[0]).name), words[1:]
    if PYTHON.fullmatch(words[0]):
        at = 1
        while at < len(words) and words[at] == "-u":
            at += 1
        if len(words) > at + 1 and words[at] == "-m":
            tool, rest = MODULES.get(words[at + 1]), words[at + 2 :]
    if tool == "accelerate":  # it has other commands, too
        return ("accelerate launch", rest[1:]) if rest[:1] == ["launch"] else (None, words)
    return tool, rest


def _without_prefixes(words: Sequence[str]) -> Sequence[str]:
    at = 0
    while length := next((len(each) for each in PREFIXES if tuple(words[at : at + len(each)]) == each), 0):
        at += length
    return words[at:]


def _with_surroundings(found: Translation, command: Command) -> Translation:
    """Return a translation with the variables before its line, and a note on what was behind it."""
    notes = []
    given = {**command.variables, **found.env_vars}
    if placed := [name for name in given if SET_HERE.fullmatch(name)]:
        verb = "was" if len(placed) == 1 else "were"
        notes.append(f"{', '.join(placed)} {verb} left out: Schedulearn sets such variables for each rank.")
    if command.tail:
        notes.append(
            f"“{command.tail[:100]}” was left out: the log keeps all output, and Files has what the code writes."
        )
    env_vars = {name: text for name, text in given.items() if name not in placed}
    for text in (found.entry, *found.arguments, *env_vars.values()):
        if MARK in text:
            raise UntranslatableError(
                f"{text.replace(MARK, '')[:200]!r} has a variable of the shell, and only a plain command has a shell. Write its value."
            )
    return replace(found, env_vars=env_vars, notes=tuple(note.replace(MARK, "") for note in (*found.notes, *notes)))
