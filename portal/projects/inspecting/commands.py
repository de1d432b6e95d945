"""The command line that starts code which is more than one Python file, as far as the upload shows it.

It is proposed only where running one Python file from the top of the upload would be wrong.
"""

import posixpath
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from ..unpacking.installs import packages_of
from .launch_lines import Translation, UntranslatableError, tool_of, translate
from .source import Source

MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
NOT_STARTED = re.compile(
    r"(?:build|clean|deploy|docker|download|fetch|format|get|install|kill|lint|push|setup|stop|submit|sync|tests?|upload)(?![a-z])"
)
"""Beginnings of the names of scripts that do something else than run the program."""
COMMENT = re.compile(r"^[^\S\n]*#.*", re.M)
LIKELY_SCRIPTS = ("run_all", "run", "main", "pipeline", "all", "train", "start")
FOR_ANOTHER_SCHEDULER = re.compile(
    r"^#(?:SBATCH|PBS|BSUB|\$)|\b(?:srun|sbatch|qsub|mpirun|torchrun|horovodrun)\b", re.M
)
PYTHON_NAME = re.compile(r"(?<![\w.-])[\w.-]{1,255}\.py\b")
"""The name of a Python file; a match begins only where a name does, so that data in a script takes no time."""
SCRIPT_FOLDERS = ("scripts", "bin", "examples", "launch")
README = re.compile(r"readme(?:\.\w{2,3})?", re.I)
QUOTED = re.compile(r"`([^`\n]{5,1000})`")
MAX_LINES = 5000
MAX_LINE_CHARACTERS = 2000
MAX_LINES_OF_COMMAND = 100
RUN_TARGET = re.compile(r"^run\s*:(?!=)", re.M)
ACTIVATION = re.compile(
    r"\s*(?P<line>(?:source|\.)\s+\S*\bactivate\b.*|(?:conda|mamba|micromamba)\s+activate\b.*|module\s+load\b.*)"
)
MAX_PATH_CHARACTERS = 300


def is_read(path: str) -> bool:
    """Return whether the text of a file is needed here: a shell script, a Makefile or a README at the top of the upload, or a
    shell script in a folder of scripts."""
    folder, _, name = path.rpartition("/")
    if folder:
        return folder in SCRIPT_FOLDERS and name.endswith(".sh")
    return name.endswith(".sh") or name in MAKEFILES or bool(README.fullmatch(name))


def shell_script(texts: Mapping[str, str], python_files: Collection[str], entry: str = "") -> str | None:
    """Return the script that runs the parts of a program, one after the other: its entry and others, or all without Python."""
    names = {PurePosixPath(path).name for path in python_files}

    def runs_the_program(path: str, text: str) -> bool:
        named = names & set(PYTHON_NAME.findall(COMMENT.sub("", text)))
        is_likely = PurePosixPath(path).stem in LIKELY_SCRIPTS or PurePosixPath(entry).name in named
        return not names or (len(named) > 1 and is_likely)

    found = [
        path
        for path, text in sorted(texts.items())
        if path.endswith(".sh")
        and "/" not in path
        and not NOT_STARTED.match(path)
        and not FOR_ANOTHER_SCHEDULER.search(text)
        and runs_the_program(path, text)
    ]
    likely = [f"{stem}.sh" for stem in LIKELY_SCRIPTS if f"{stem}.sh" in found]
    return likely[0] if likely else found[0] if len(found) == 1 else None


class LaunchLine(NamedTuple):
    """A line of a script or README that starts a program with another launcher."""

    path: str
    number: int
    translation: Translation


def launch_lines(texts: Mapping[str, str], launcher: str) -> Iterator[LaunchLine]:
    """Yield the lines that start a program with another launcher, scripts first. One that contradicts ``launcher``, the one that the
    code is written for, does not count."""
    for path, text in sorted(texts.items(), key=lambda item: (not item[0].endswith(".sh"), item[0])):
        for number, line in _lines(text):
            for each in (line, *QUOTED.findall(line)):
                try:
                    found = translate(each, launcher) if tool_of(each) else None
                except UntranslatableError:
                    continue
                if found is not None and launcher in ("command", found.launcher):
                    yield LaunchLine(path, number, found)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with the number at which each begins, joined where a backslash continues them, without a prompt."""
    parts: list[str] = []
    first = 1
    for number, line in enumerate(text.split("\n")[:MAX_LINES], 1):
        parts.append(line[:MAX_LINE_CHARACTERS].rstrip("\r"))
        if line.rstrip("\r").endswith("\\") and len(parts) < MAX_LINES_OF_COMMAND:
            continue
        whole = "\n".join(parts).strip()
        yield first, whole.removeprefix("$ ").removeprefix("> ")
        parts, first = [], number + 1


def make_command(texts: Mapping[str, str]) -> str:
    """Return the command that builds and runs a program with a Makefile; empty without one."""
    text = next((texts[name] for name in MAKEFILES if name in texts), None)
    return "" if text is None else "make run" if RUN_TARGET.search(text) else "make"


def starts_in_its_folder(entry: Source, running: Sequence[Source], paths: Collection[str]) -> bool:
    """Return whether the code names files of the upload by paths that begin in the entry's folder, and not at the top."""
    folder = posixpath.dirname(entry.path)
    if not folder or any({"chdir", "__file__"} & source.names for source in running):
        return False
    known = set(paths)
    folders = {str(parent) for path in known for parent in PurePosixPath(path).parents} - {"."}

    def exists(base: str, text: str) -> bool:
        path = posixpath.normpath(posixpath.join(base, text))
        return path in known or ("/" in text and path in folders)

    texts = {text for source in running for text, _ in source.strings if _may_be_path(text)}
    from_folder = any(exists(folder, text) and not exists("", text) for text in texts)
    return from_folder and not any(exists("", text) and not exists(folder, text) for text in texts)


def _may_be_path(text: str) -> bool:
    return 0 < len(text) <= MAX_PATH_CHARACTERS and not text.startswith("/") and ("." in text or "/" in text)


def of_script(path: str) -> str:
    """Return the command that runs a shell script, whatever its name."""
    return f"bash {shlex.quote(f'./{path}' if path.startswith('-') else path)}"


def in_folder(path: str) -> str:
    """Return the command that runs a Python file from its own folder."""
    folder, name = posixpath.split(path)
    return f"cd {shlex.quote(folder)} && python {shlex.quote(name)}"


def activations(path: str, text: str) -> Iterator[dict[str, Any]]:
    """Yield a warning for each line of a shell script that activates packages which no job has, or installs some."""
    for number, line in enumerate(text.splitlines(), 1):
        if match := ACTIVATION.match(line):
            sentence = (
                f"“{match['line'].strip()[:60]}” fails: a job has the packages of its environment, and virtual environments are "
                "not uploaded. Remove the line."
            )
            yield {"code": "activates", "path": path, "line": number, "text": sentence}
        elif packages_of(line.strip()) is not None:
            sentence = (
                f"“{line.strip()[:60]}” installs nothing: a job has the packages of its environment. Remove the line, and list the "
                "packages in a requirements.txt: the form for a new job offers to install them."
            )
            yield {"code": "installs", "path": path, "line": number, "text": sentence}
