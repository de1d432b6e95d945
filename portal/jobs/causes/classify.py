"""Finds the cause of an attempt that did not succeed, from the stored facts and the ends of its logs; pure.

The error that ended the program is the cause: the exception of the first rank that failed by itself. It is not one that
was handled earlier, nor the summary of a launcher, nor what other ranks report because the first one is gone. What the
program wrote counts more than its exit code, which rarely names the reason.
"""

import posixpath
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from portal.jobs.causes import endings, kinds
from portal.jobs.causes.cause import Cause, Facts
from portal.jobs.causes.endings import (
    Ending,
    choose,
    error_before_silence,
    explained,
    own_file,
    place_of,
    read_ending,
    read_exits,
)
from portal.jobs.causes.hosts import about_host
from portal.jobs.causes.output import Output
from portal.jobs.causes.tracebacks import Error, Frame
from portal.jobs.models import Job, Outcome, StopReason
from portal.projects.inspecting.entries import as_module
from portal.projects.package_lists.imports import modules_of, packages_for_imports
from portal.projects.unpacking.installs import packages_of
from portal.sentences import agents

MAX_DETAIL_CHARACTERS = 500
MAX_DETAIL_LINES = 5
STOPPED_PROCESS = re.compile(
    r"^Process \d+ was stopped by a signal (\d+) s ago and not woken: it is ended$", re.MULTILINE
)
"""The message of the supervisor (``runners/launch``)."""
ENVIRONMENT_CODES = {
    agents.containers.EnvironmentFailed.code,
    agents.containers.EnvironmentMissing.code,
    agents.containers.ImageGone.code,
}
ENVIRONMENT_TEXT = re.compile(r"image|environment", re.IGNORECASE)
"""What agents of earlier releases, which report text, write when an environment is missing."""
WORKSPACE = re.compile(r"(?:/[^\s'\":/]+)*/workspace/")
"""The folder of the job's code, as the runtimes call it."""
SUGGESTION = re.compile(r"Did you mean: '([\w.]{1,100})'\?")
"""How Python names what a misspelled name resembles."""
WRITES = re.compile(r"\.(?:save\w*|to_[a-z]+|dump|write\w*|imwrite)\(|open\([^)]*,\s*(?:mode\s*=\s*)?['\"][wax]")
"""A line that writes a file, whose folder must exist."""
READS = re.compile(r"\b\w*(?:read|load)\w*\(|\bopen\([^,()]*\)")
"""A line that reads a file, which must exist, whatever it does with the content."""
STARTS_SCRIPT = {"command_not_found", "file_not_found"}
"""Kinds that are also reported where a script is there, but not the program that its first line names."""
STOPS_INSTALLERS = {"no_internet", "not_writable", "command_not_found"}
"""Kinds of failures with which programs end that install packages."""
INSTALLERS = {"conda", "mamba", "micromamba", "sudo"}
"""Those that are not found, and are also called for other reasons than to install."""
PACKAGE_INDEX = re.compile(
    r"\b(?:pypi\.org|files\.pythonhosted\.org|conda\.anaconda\.org|repo\.anaconda\.com)\b|/simple/"
)
ENTERS = re.compile(r"\b(?:chdir|listdir|scandir|iterdir)\(")
"""A line that needs a folder."""
TERMINAL_COMMAND = re.compile(r"\b(?:stty|tput) ")
"""A line of code that asks a program about the terminal, and fails on what comes back without one."""
OTHER_COMPUTER = re.compile(r"/home/|/Users/|[A-Za-z]:[\\/]|/content/|/kaggle/|~")
"""The beginning of a path that only exists where the code was written."""


def classify(facts: Facts, outputs: Sequence[Output] = ()) -> Cause:
    """Return the cause of an attempt that did not succeed."""
    cause = (
        _cause_from_outcome(facts, outputs)
        or _cause_from_reason(facts)
        or _cause_from_stopped_process(facts, outputs)
        or _cause_from_output(facts, outputs)
        or _cause_from_exit(facts)
    )
    return replace(cause, ended_early=facts.some_ended_early)


def _cause_from_outcome(facts: Facts, outputs: Sequence[Output]) -> Cause | None:
    match facts.outcome:
        case Outcome.CANCELLED:
            return Cause("cancelled")
        case Outcome.HELD:
            return Cause("held", {"resumable": facts.resumable})
        case Outcome.PREEMPTED:
            drained = facts.stop_reason == StopReason.DRAINED
            return Cause("preempted", {"drained": drained, "resumable": facts.resumable})
        case Outcome.TIMED_OUT:
            limit = {"seconds": facts.time_limit_seconds, "was_silent": facts.was_silent}
            error = error_before_silence(outputs)
            if error is None:
                return Cause("time_limit", limit)
            raised = {"raised": error.name[: kinds.MAX_PARAMETER_CHARACTERS]}
            return Cause("time_limit", limit | raised, _quote_error(error))
        case Outcome.LOST:
            fenced = facts.exit_reason == "fenced"
            return Cause("node_lost", {"node": facts.node, "fenced": fenced, "final": facts.final}, facts.detail)
    return None


def _cause_from_reason(facts: Facts) -> Cause | None:
    if facts.exit_reason == "oom":
        return Cause("out_of_memory", {"over_limit": True, "limit_mib": facts.memory_mib}, facts.detail)
    if facts.exit_reason == "disk":
        return Cause("disk_full", {"over_limit": True}, facts.detail)
    if facts.exit_reason == "create_error":
        if _is_about_environment(facts.detail):
            return Cause("environment", {"final": facts.final}, facts.detail)
        return Cause("node_trouble", {"node": facts.node, "final": facts.final}, facts.detail)
    if facts.stop_reason == StopReason.STUCK:
        return Cause("stuck", {"final": facts.final}, facts.detail)
    return None


def _is_about_environment(detail: Any) -> bool:
    """Whether a container was not created because its node does not have its environment."""
    code, text = end_of(detail)
    return code in ENVIRONMENT_CODES or ENVIRONMENT_TEXT.search(text) is not None


def end_of(detail: Any) -> tuple[str, str]:
    """Return how a container ended, without a remark: the code of a message and no text, or no code and a text."""
    if not isinstance(detail, dict):
        return "", str(detail or "")
    if detail.get("code") == agents.containers.WithRemark.code:
        return end_of(detail.get("end"))
    if detail.get("code") == agents.Quotation.code:
        return "", str(detail.get("quoted", ""))
    return str(detail.get("code", "")), ""


def _cause_from_stopped_process(facts: Facts, outputs: Sequence[Output]) -> Cause | None:
    """Return the cause of an attempt with a process that was stopped by a signal and killed in the end.

    This is checked before exceptions, since the other ranks report a broken connection. An elastic job may have
    continued without that process, so the exit code must be that of a kill.
    """
    if facts.exit_code not in (128 + signal.SIGKILL, -signal.SIGKILL):
        return None
    for line in (line for output in outputs for line in reversed(output.lines)):
        if found := STOPPED_PROCESS.search(line.text):
            return Cause("stood_still", {"seconds": found.group(1)}, found.group(0))
    return None


# --- from the logs -----------------------------------------------------------------------------------------------


def _cause_from_output(facts: Facts, outputs: Sequence[Output]) -> Cause | None:
    if facts.exit_reason == "launch_error":
        return None
    exits = read_exits(outputs)
    ranks = [output for output in outputs if not output.is_setup]
    if len(ranks) == 1 and ranks[0].exit_code is None:
        ranks = [replace(ranks[0], exit_code=facts.exit_code)]
    found = [read_ending(output, exits.of(output)) for output in ranks]
    chosen = choose(found, exits.first) if any(each.exit_code != 0 for each in found) else None
    if chosen is None or not (chosen.text or chosen.crash or chosen.exit_code):
        chosen = _launcher_ending(outputs) or chosen
    if chosen is None:
        return None
    if (chosen.error is None or chosen.lost_peer or chosen.waited) and (hangs := _hanging_rank(outputs)):
        return hangs
    cause = _cause_of(chosen, facts)
    alike = all(each.text == chosen.text if chosen.text else each.exit_code == chosen.exit_code for each in found)
    return cause if cause is None or alike else replace(cause, rank=chosen.output.rank)


def _launcher_ending(outputs: Sequence[Output]) -> Ending | None:
    """Return how the launcher itself failed, if it did."""
    for output in outputs:
        if output.is_setup:
            ending = read_ending(output, None)
            if ending.error is not None and ending.error.name not in endings.LAUNCHER_ERRORS:
                return ending
    return None


def _hanging_rank(outputs: Sequence[Output]) -> Cause | None:
    for output in outputs:
        text = "\n".join(line.text for line in output.lines)
        if found := next(reversed(list(kinds.HANGS.finditer(text))), None):
            return Cause("rank_hangs", found.groupdict(), found.group(0).strip()[:MAX_DETAIL_CHARACTERS])
    return None


def _cause_of(ending: Ending, facts: Facts) -> Cause | None:
    if ending.left:
        return Cause("rank_left", {}, _quote(ending.last_lines))
    if ending.error is not None:
        return _cause_of_error(ending, explained(ending.error), facts)
    return _cause_of_crash(ending) or _cause_of_last_lines(ending, facts)


def _quote_error(error: Error) -> str:
    """Return an exception with the line of the user's code that raised it."""
    return _quote([*error.text.split("\n")[: MAX_DETAIL_LINES - 1], place_of(error)])


def _cause_of_error(ending: Ending, error: Error, facts: Facts) -> Cause:
    place = place_of(error)
    detail = _quote_error(error)
    if ending.waited:
        return Cause("waited_for_rank", {}, detail)
    if ending.lost_peer:
        return Cause("ring", {}, detail)
    found = kinds.recognise(error.text)
    if found is None and error.raised_from and error.before is not None:
        found = kinds.recognise(error.before.text)
        if found is not None:
            detail = _quote([*error.before.text.split("\n")[:2], *error.text.split("\n")[:2], place])
    if found is not None and found.code == "ranks_diverged":
        detail = found.text
    if found is None and TERMINAL_COMMAND.search(place):
        return Cause("no_terminal", {}, detail)
    if found is None:
        named = {"name": error.name[: kinds.MAX_PARAMETER_CHARACTERS]}
        if suggested := SUGGESTION.search(error.text):
            named["suggestion"] = suggested[1]
        return Cause("exception", named | ({"place": _line_of(place)} if place else {}), detail)
    return _with_advice(found, facts, place, detail, error)


def _cause_of_crash(ending: Ending) -> Cause | None:
    if not ending.signal:
        return None
    text = "\n".join(ending.crash)
    if kinds.LOST_PEER.search(text):
        return Cause("ring", {}, _quote(ending.crash))
    found = kinds.recognise(text) if text else None
    if found is not None:
        return Cause(found.code, found.parameters, _quote(ending.crash))
    detail = _quote(ending.crash or ending.last_lines)
    if ending.signal == signal.SIGKILL:
        return Cause("killed", {}, detail)
    return Cause("signal", {"name": signal.Signals(ending.signal).name}, detail)


def _cause_of_last_lines(ending: Ending, facts: Facts) -> Cause | None:
    text = "\n".join(ending.last_lines)
    if not text and ending.exit_code is None:
        return None
    for regex, code in ((kinds.WAITED, "waited_for_rank"), (kinds.LOST_PEER, "ring")):
        if regex.search(text):
            return Cause(code, {}, _quote(ending.last_lines))
    found = kinds.recognise(text, of_exception=False) if text else None
    if found is not None:
        return _with_advice(found, facts, "", _quote([*_usage(ending.last_lines, found), found.text]))
    if ending.exit_code is None:
        return None
    if named := endings.EXCEPTION_LINE.search(text):
        return Cause("exception", {"name": named["kind"].rpartition(".")[2]}, _quote([named.group(0)]))
    return Cause("exit_code", {"number": ending.exit_code, "quoted": bool(text)}, _quote(ending.last_lines))


def _usage(lines: Sequence[str], found: kinds.Found) -> list[str]:
    """Return the usage that a program wrote before it refused its arguments."""
    starts = [number for number, line in enumerate(lines) if line.lower().startswith("usage:")]
    if found.code != "arguments" or not starts:
        return []
    return [line for line in lines[starts[-1] :] if line.strip() not in found.text][: MAX_DETAIL_LINES - 1]


def _quote(lines: Sequence[str]) -> str:
    """Return lines of the log, with paths within the upload as its owner knows them."""
    text = "\n".join(WORKSPACE.sub("", line)[:MAX_DETAIL_CHARACTERS] for line in lines if line)
    return text[: 2 * MAX_DETAIL_CHARACTERS].strip()


# --- what the advice needs ---------------------------------------------------------------------------------------


def _with_advice(found: kinds.Found, facts: Facts, place: str, detail: str, error: Error | None = None) -> Cause:
    """Return a recognised cause, with what the job's own files and environments add to the advice."""
    parameters = {
        name: WORKSPACE.sub("", value) if isinstance(value, str) else value for name, value in found.parameters.items()
    }
    started = parameters.get("file") or parameters.get("command") or ""
    starts = found.code == "bad_interpreter" or (found.code in STARTS_SCRIPT and "/" in started)
    first_line = _first_line_of(started, facts) if starts else ""
    if found.code == "installs_packages" or (
        found.code in STOPS_INSTALLERS and _is_from_installer(found, facts, error)
    ):
        packages = packages_of(facts.command)
        return Cause("installs_packages", {"packages": packages} if packages else {}, detail)
    if first_line.endswith("\r"):
        return Cause("line_endings", {}, detail)
    match found.code:
        case "import_error" if "module" in parameters:
            return _missing_module(parameters["module"], facts, detail)
        case "import_error" if "package" in parameters:
            return _missing_package(parameters["package"].rstrip(".-"), facts, detail)
        case "shadowed":
            return _shadowed(parameters["module"], facts, place, detail)
        case "relative_import":
            parameters |= _about_relative_import(error.frames if error else (), place, facts)
        case "file_not_found" if "/" in parameters.get("file", "") and WRITES.search(place) and not READS.search(place):
            return _folder_missing(posixpath.dirname(parameters["file"]), detail)
        case "folder_missing" if "entered" in parameters:
            return _folder_not_entered(parameters["entered"].strip("'\""), facts, detail)
        case "folder_missing":
            return _folder_missing(parameters["folder"], detail)
        case "file_not_found" if "entry" in parameters and facts.launcher == Job.Launcher.COMMAND:
            elsewhere = _same_file(parameters["entry"], facts.files)
            parameters |= {"plain_command": True, "elsewhere": elsewhere if elsewhere != parameters["entry"] else ""}
        case "file_not_found" if "FileNotFoundError" in found.text and ENTERS.search(place):
            return _folder_not_entered(parameters["file"], facts, detail)
        case "file_not_found" if "file" in parameters:
            parameters |= _about_file(parameters["file"].replace(r"\\", "\\"), place, facts)
        case "syntax_error":
            notebook = error is not None and bool(error.frames) and error.frames[-1].source.startswith(("!", "%"))
            parameters |= {"place": _line_of(place)} if place else {}
            parameters |= {"of_notebook": True} if notebook else {}
            parameters |= {"encoding": True} if "Non-UTF-8" in found.text or "codec can't decode" in found.text else {}
            parameters |= {"indentation": True} if error is not None and error.name != "SyntaxError" else {}
        case "bad_interpreter" if "interpreter" not in parameters:
            parameters |= {"interpreter": first_line[2:].strip()} if first_line else {}
        case "command_not_found" if first_line:  # as dash reports that the program in the first line is not there
            return Cause("bad_interpreter", {"file": started, "interpreter": first_line[2:].strip()}, detail)
        case "command_not_found":
            parameters["environments"] = list(facts.offered_by.get(parameters["command"], ()))
            named = [name for name in facts.files if name.startswith(f"{parameters['command']} ")]
            parameters |= {"file": min(named)} if named else {}
        case "disk_full" if error is not None and any("/dev/shm" in each.source for each in error.frames):  # noqa: S108
            return Cause("shared_memory", {}, detail)
        case "no_internet":
            parameters |= about_host(f"{found.text}\n{error.text if error else ''}", facts)
    return Cause(found.code, parameters, detail)


def _is_from_installer(found: kinds.Found, facts: Facts, error: Error | None) -> bool:
    """Return whether a failure is that of pip or the like: it names an index, or the command installs and no code has failed."""
    if found.parameters.get("command", "") not in ("", *INSTALLERS):
        return False
    return bool(PACKAGE_INDEX.search(found.text)) or (error is None and packages_of(facts.command) is not None)


def _first_line_of(script: str, facts: Facts) -> str:
    """Return the first line of an uploaded script that names its program; empty for another file."""
    path = _same_file(script, facts.files)
    first_line = facts.read_first_line(path) if path else ""
    return first_line if first_line.startswith("#!") else ""


def _folder_missing(folder: str, detail: str) -> Cause:
    return Cause("folder_missing", {"folder": folder, "other_computer": bool(OTHER_COMPUTER.match(folder))}, detail)


def _folder_not_entered(folder: str, facts: Facts, detail: str) -> Cause:
    """A shell or the code has gone to a folder, or reads what is in it, and it is not there."""
    folders = sorted({str(parent) for name in facts.files for parent in PurePosixPath(name).parents} - {"."})
    other_case = (each for each in folders if each.lower() == posixpath.normpath(folder).lower())
    elsewhere = _same_file(folder, folders) or next(other_case, "")
    parameters = {"folder": folder, "entered": True, "elsewhere": elsewhere if elsewhere != folder.strip("/") else ""}
    return Cause("folder_missing", parameters | {"other_computer": bool(OTHER_COMPUTER.match(folder))}, detail)


def _about_file(wanted: str, place: str, facts: Facts) -> dict[str, Any]:
    """Return what the upload shows about a file that was not found by a path."""
    elsewhere = _same_file(wanted, facts.files)
    folder = posixpath.dirname(place.partition(":")[0])
    parameters: dict[str, Any] = {"file": wanted}
    if elsewhere and elsewhere != wanted:
        parameters["elsewhere"] = elsewhere
        parameters |= {"backslashes": True} if wanted.replace("\\", "/") == elsewhere else {}
        parameters |= {"folder": folder} if folder and posixpath.normpath(f"{folder}/{wanted}") == elsewhere else {}
    return parameters | ({"other_computer": True} if OTHER_COMPUTER.match(wanted) else {})


def _missing_module(module: str, facts: Facts, detail: str) -> Cause:
    top = module.partition(".")[0]
    parameters: dict[str, Any] = {"module": module, "environments": list(facts.offered_by.get(top, ()))}
    if not parameters["environments"]:
        parameters |= _uploaded_module(module, facts.files)
        parameters |= {"beside": list(facts.without[top])} if top in facts.without else {}
    if kinds.package_of(module) != top:
        parameters["package"] = kinds.package_of(module)
    if facts.environment:
        parameters["environment"] = facts.environment
    return Cause("import_error", parameters | _offered(module), detail)


def _offered(module: str) -> dict[str, str]:
    """Return how much the form for a new job knows of a package that has a module."""
    found = packages_for_imports([module])
    return {"offered": "guessed" if found[0].guessed else "known"} if found else {"offered": ""}


def _missing_package(package: str, facts: Facts, detail: str) -> Cause:
    """A library has checked for another one, and names the package to install."""
    offers = [set(facts.offered_by.get(module, ())) for module in modules_of([package])]
    having = sorted(set.union(*offers)) if offers else []
    named = {"environment": facts.environment} if facts.environment else {}
    offered = {} if _offered(modules_of([package])[0])["offered"] else {"offered": ""}
    return Cause("import_error", {"module": package, "environments": having, **named, **offered}, detail)


def _uploaded_module(module: str, files: Sequence[str]) -> dict[str, str]:
    """Return the uploaded file of a module, or at least of its package, and the folder from which Python would find it."""
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        path = "/".join(parts[:end])
        ends = [f"/{path}.py", f"/{path}/__init__.py"]
        own = [(name, each) for name in files for each in ends if f"/{name}".endswith(each)]
        if own:
            name, found = min(own, key=lambda each: (each[0].count("/"), each[0]))
            return {"elsewhere": name, "folder": f"/{name}".removesuffix(found).strip("/")}
    inside = [name for name in files if name.endswith(".py") and f"/{parts[0]}/" in f"/{name}"]
    name = min(inside, key=lambda name: (name.count("/"), name), default="")
    return {"elsewhere": name, "folder": f"/{name}".partition(f"/{parts[0]}/")[0].strip("/")} if name else {}


def _shadowed(module: str, facts: Facts, place: str, detail: str) -> Cause:
    """An uploaded file hides a package of the same name; or own modules import each other in a circle."""
    top = module.partition(".")[0]
    own = next((name for name in facts.files if PurePosixPath(name).name == f"{top}.py"), "")
    known = top in sys.stdlib_module_names or top in facts.offered_by or top in KNOWN_PACKAGES
    if known or not place:
        return Cause("shadowed", {"module": top, "file": own or f"{top}.py"}, detail)
    return Cause("circular_import", {"module": module}, detail)


KNOWN_PACKAGES = {
    "torch",
    "torchvision",
    "torchaudio",
    "numpy",
    "horovod",
    "tensorflow",
    "keras",
    "pandas",
    "matplotlib",
    "transformers",
}


def _line_of(place: str) -> str:
    """Return the file and line of ``file:line: source``."""
    return ":".join(place.split(":")[:2])


def _about_relative_import(frames: Sequence[Frame], place: str, facts: Facts) -> dict[str, Any]:
    """Return the module that the started file is; or the file, where no other start would help."""
    path = place.partition(":")[0]
    if not path:
        return {"plain_command": facts.launcher == Job.Launcher.COMMAND}
    started = next((file for frame in frames if (file := own_file(frame))), path)
    module = as_module(path)
    if module is None or started != path:
        return {"file": path}
    return {"module": module, "plain_command": facts.launcher == Job.Launcher.COMMAND}


def _same_file(wanted: str, files: Sequence[str]) -> str:
    """Return the uploaded file that has the longest common end with a path, if at least the name is equal."""
    parts = [part for part in re.split(r"[\\/]", wanted) if part not in ("", ".", "..")]
    if not parts:
        return ""

    def common(name: str) -> int:
        theirs, count = name.split("/"), 0
        while count < min(len(parts), len(theirs)) and parts[-1 - count] == theirs[-1 - count]:
            count += 1
        return count

    best = max(files, key=lambda name: (common(name), -len(name)), default="")
    return best if best and common(best) else ""


# --- from the exit code ------------------------------------------------------------------------------------------


def _cause_from_exit(facts: Facts) -> Cause:
    if facts.exit_reason == "launch_error":
        return Cause("launch", {"final": facts.final}, facts.detail)
    code = facts.exit_code
    if code is None:
        return Cause("unknown", detail=facts.detail)
    number = endings.signal_of(code)
    if number == signal.SIGKILL:
        return Cause("killed", detail=facts.detail)
    if number:
        return Cause("signal", {"name": signal.Signals(number).name}, facts.detail)
    return Cause("exit_code", {"number": code}, facts.detail)
