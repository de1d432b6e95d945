"""Reads one command of a shell line: variables that are set before it, its words, and what becomes of its output."""

import re
import shlex
from dataclasses import dataclass

from .translation import UntranslatableError

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,99})=(.*)", re.S)
OPERATORS = frozenset("|&;<>()\n")
PATTERN = frozenset("*?[")
MARK = "\ue000"
"""Stands before the name of a shell variable among the words, for which only the shell knows the value."""
OUTPUT_ONLY = re.compile(
    r"(?:\s*(?:[12]?>{1,2}\s*&?[^\s|&;<>()]++|&>{1,2}\s*[^\s|&;<>()]++|\|&?\s*tee(?:\s+-a)?\s+[^\s|&;<>()]++|&\s*$))*\s*"
)
"""What may follow a command without changing what it does: its output goes into files, or the shell does not wait."""
COMMENT = re.compile(r"(?:^|\s)#")
CONTINUED = "\\\n"


@dataclass(frozen=True, slots=True)
class Command:
    variables: dict[str, str]
    words: list[str]
    tail: str
    """Where its output goes, as it was written; empty if nothing was."""


def read_command(line: str) -> Command:
    """Return the only command of a line. ``MARK`` stands before each variable of the shell in its words.

    Raises UntranslatableError for a line whose meaning depends on a shell otherwise, and for several commands.
    """
    text = line.replace("\r\n", "\n").replace(MARK, "").lstrip()
    command, tail = _split_tail(text)
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UntranslatableError(f"The line cannot be read: {error}. Check the quotes.") from error
    variables: dict[str, str] = {}
    while words and (found := ASSIGNMENT.fullmatch(words[0])):
        variables[found[1]] = found[2]
        del words[0]
    return Command(variables, words, tail)


def _split_tail(text: str) -> tuple[str, str]:
    """Return the command with marks, and what follows it about its output."""
    quote, at, parts = "", 0, list[str]()
    while at < len(text):
        char = text[at]
        if char == "\\" and quote != "'":
            pair = text[at : at + 2]
            parts.append(" " if pair == CONTINUED else pair)
            at += 2
            continue
        if char in "'\"" and quote in ("", char):
            quote = "" if quote else char
        elif char == "`" and quote != "'" or text.startswith("$(", at) and quote != "'":
            raise UntranslatableError(
                "The line has the output of another command in it, which only a shell can put there. Write it."
            )
        elif char == "$" and quote != "'":
            parts.append(MARK)
        elif not quote and char in PATTERN:
            raise UntranslatableError(
                f"The line has a pattern ({char}), which only a shell can replace. Write the names of the files."
            )
        elif not quote and (char in OPERATORS or (char == "#" and text[at - 1 : at].isspace())):
            return "".join(parts), _tail(text[at:])
        if not quote and char in "12" and text[at + 1 : at + 2] == ">" and text[at - 1 : at].isspace():
            return "".join(parts), _tail(text[at:])
        parts.append(char)
        at += 1
    return "".join(parts), ""


def _tail(text: str) -> str:
    tail, *lines = text.split("\n")
    while lines and tail.endswith("\\") and not COMMENT.search(tail):
        tail = f"{tail[:-1]} {lines.pop(0)}"
    tail = COMMENT.split(tail, maxsplit=1)[0]
    if not OUTPUT_ONLY.fullmatch(tail) or any(each.split("#")[0].strip() for each in lines):
        raise UntranslatableError(
            "The line has several commands, or reads from another one. Ranks run one Python file: let it do what the other "
            "commands do, or keep the plain command, which runs on one node."
        )
    return tail.strip()
