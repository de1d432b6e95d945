"""The command line that starts code which is more than one Python file, as far as the upload shows it.

It is proposed only where running one Python file from the top of the upload would be wrong.
"""

import posixpath
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

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
RUN_TARGET = re.compile(r"^run\s*:(?!=)", re.M)
ACTIVATION = re.compile(
    r"\s*(?P<line>(?:source|\.)\s+\S*\bactivate\b.*|(?:conda|mamba|micromamba)\s+activate\b.*|module\s+load\b.*)"
)
MAX_PATH_CHARACTERS = 300


def is_read(path: str) -> bool:
    """Return whether the text of a file is needed here: a shell script or a Makefile at the top of the upload."""
    return "/" not in path and (path.endswith(".sh") or path in MAKEFILES)


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
        and not NOT_STARTED.match(path)
        and not FOR_ANOTHER_SCHEDULER.search(text)
        and runs_the_program(path, text)
    ]
    likely = [f"{stem}.sh" for stem in LIKELY_SCRIPTS if f"{stem}.sh" in found]
    return likely[0] if likely else found[0] if len(found) == 1 else None


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
    """Yield a warning for each line of a shell script that activates packages which no job has."""
    for number, line in enumerate(text.splitlines(), 1):
        if match := ACTIVATION.match(line):
            sentence = (
                f"“{match['line'].strip()[:60]}” fails: a job has the packages of its environment, and virtual environments are "
                "not uploaded. Remove the line."
            )
            yield {"code": "activates", "path": path, "line": number, "text": sentence}
