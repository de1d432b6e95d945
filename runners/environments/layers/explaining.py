"""Turns uv's output into a failure that names which line of the list is wrong, and what to do."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from runners.environments.preparing import last_error
from runners.host.egress import WEB_PORTS, Connection
from runners.host.upstream import redacted
from runners.messages.environment_failures import Failure
from runners.messages.layer_failures import (
    CommandFailed,
    ContradictsBase,
    ContradictsItself,
    HashMismatch,
    HostNotAllowed,
    IndexAway,
    NeedsOtherPython,
    NoFittingWheel,
    NoMemoryLeft,
    NoSpaceLeft,
    NoSuchPackage,
    NoSuchVersion,
    OnlySource,
    SourceBuildFailed,
    Unresolvable,
)

NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
SPECIFIER = r"(?:\[[^\]]*\])?(?:[<>=!~]=?=?[^\s`]+)?"
NO_SPACE = re.compile(r"No space left on device|os error 28|Errno 28|Disk quota exceeded")
NO_MEMORY = re.compile(
    r"memory allocation of \d+ bytes failed|Cannot allocate memory|out of memory|MemoryError|Killed signal|"
    r"internal compiler error: Killed|std::bad_alloc",
    re.IGNORECASE,
)
BUILD_FAILED = re.compile(rf"Failed to (?:build|download and build|prepare) `?({NAME}{SPECIFIER})`?")
FETCH_FAILED = re.compile(r"Failed to fetch: `?(\S+?)`?$", re.MULTILINE)
DOWNLOAD_FAILED = re.compile(rf"Failed to (?:download|extract)[^`]*`({NAME}{SPECIFIER})`")
MAX_EXPLANATION = 600
QUOTED_LINES = 8


@dataclass(frozen=True)
class Question:
    """What uv was asked for."""

    lines: tuple[str, ...]
    base: tuple[str, ...]
    """The exact packages of the base: ``torch==2.13.0+cpu``."""
    python: str
    kind: str
    """For people: ``Python 3.11, x86_64, CPU``."""


def explain_output(output: str, question: Question, troubles: Sequence[Connection] = ()) -> Failure:
    """Return the cause of a failure from the output of uv, and from the connections that were refused or failed meanwhile."""
    if NO_SPACE.search(output):
        return NoSpaceLeft()
    if mismatch := re.search(rf"Hash mismatch for `?({NAME}{SPECIFIER})`?", output):
        return HashMismatch(mismatch[1])
    built = BUILD_FAILED.search(output)
    if NO_MEMORY.search(output):
        return NoMemoryLeft()
    if troubles and "No solution found" not in output and not built:
        return explain_trouble(troubles)
    if built:
        return SourceBuildFailed(built[1], build_output(output))
    if "No solution found" in output:
        return explain_contradiction(proof_of(output), hints_of(output), question, troubles)
    if (fetched := FETCH_FAILED.search(output)) or (DOWNLOAD_FAILED.search(output) and is_network_error(output)):
        return IndexAway(redacted(urlsplit(fetched[1])) if fetched else "The package index", last_cause(output))
    return CommandFailed(last_error(output))


def explain_trouble(troubles: Sequence[Connection]) -> Failure:
    """Return why hosts were not reached. What is refused stays so, and what fails may pass."""
    for each in troubles:
        if each.refusal:
            place = each.host if each.port in WEB_PORTS else f"{each.host}:{each.port}"
            return HostNotAllowed(place, each.refusal)
    return IndexAway(f"{troubles[0].host}:{troubles[0].port}", troubles[0].error)


def explain_contradiction(proof: str, hints: str, question: Question, troubles: Sequence[Connection]) -> Failure:
    """Return why no versions fit together. ``proof`` is uv's, in one line."""
    if found := re.search(rf"({NAME})(?:==\S+)? (?:requires|depends on) Python ?([<>=!~]=?[^\s,]+)", proof):
        return NeedsOtherPython(found[1], found[2], question.python)
    if contradiction := base_contradiction(proof, question):
        return contradiction
    if found := re.search(rf"({NAME}) was not found in the", proof):
        if troubles:
            return explain_trouble(troubles)
        return NoSuchPackage(found[1], needed_by(found[1], proof, question.lines))
    if found := re.search(rf"({NAME}{SPECIFIER}) (?:has|have) no wheels with a matching", proof):
        return NoFittingWheel(found[1].rstrip(","), question.kind, offered_tags(hints))
    if found := re.search(rf"({NAME}{SPECIFIER}) (?:has|have) no usable wheels", proof):
        return OnlySource(found[1].rstrip(","), needed_by(name_in(found[1]), proof, question.lines))
    if found := re.search(rf"there (?:is|are) no versions? of ({NAME}{SPECIFIER})", proof):
        return NoSuchVersion(found[1].rstrip(","), needed_by(name_in(found[1]), proof, question.lines))
    lines = lines_in(proof, question.lines)
    if len(lines) > 1:
        return ContradictsItself(tuple(lines), proof[:MAX_EXPLANATION])
    return Unresolvable(proof[:MAX_EXPLANATION])


def base_contradiction(proof: str, question: Question) -> ContradictsBase | None:
    """Return the line that cannot be combined with a package of the base, if the proof is about one."""
    for pin in question.base:
        name, _, version = pin.partition("==")
        if not mentions(f"{canonicalize_name(name)}=={version}", proof):
            continue
        lines = lines_in(proof, question.lines)
        own = [line for line in lines if canonicalize_name(Requirement(line).name) == canonicalize_name(name)]
        if own:
            return ContradictsBase(own[0], name, version)
        if lines:
            needs = re.search(rf"depends? on ({re.escape(canonicalize_name(name))}[<>=!~][^\s]*)", proof)
            return ContradictsBase(lines[0], name, version, needs[1].rstrip(",.") if needs else "")
    return None


def proof_of(output: str) -> str:
    """Return uv's proof in one line, without its hints."""
    text = output.partition("No solution found")[2].partition("\nhint:")[0]
    text = " ".join(text.partition("cause:")[2].split()) or " ".join(text.split())
    text = text.removesuffix(", we can conclude that your requirements are unsatisfiable.").strip()
    return text if text.endswith(".") else f"{text}."


def hints_of(output: str) -> str:
    return " ".join(output.partition("\nhint:")[2].split())


def mentions(text: str, proof: str) -> bool:
    return re.search(rf"(?<![A-Za-z0-9._-]){re.escape(text)}(?![A-Za-z0-9._+-]*[A-Za-z0-9+])", proof) is not None


def lines_in(proof: str, lines: Iterable[str]) -> list[str]:
    """Return the lines whose packages the proof names as required by the list."""
    asked = " ".join(re.findall(r"you require (.*?)(?:, we can|$)", proof)) or proof
    named = [line for line in lines if mentions_name(Requirement(line).name, asked)]
    return named or [line for line in lines if mentions_name(Requirement(line).name, proof)]


def mentions_name(name: str, proof: str) -> bool:
    return re.search(rf"(?<![A-Za-z0-9._-]){re.escape(canonicalize_name(name))}(?![A-Za-z0-9_-])", proof) is not None


def needed_by(package: str, proof: str, lines: Iterable[str]) -> str:
    """Return the line that needs a package which the list does not name itself; empty if it does."""
    lines = tuple(lines)
    if any(canonicalize_name(Requirement(line).name) == canonicalize_name(package) for line in lines):
        return ""
    return next(iter(lines_in(proof, lines)), "")


def name_in(requirement: str) -> str:
    found = re.match(NAME, requirement)
    return found[0] if found else requirement


def offered_tags(hints: str) -> str:
    """Return for what the index has wheels of a package, in uv's words: ``cp37m, cp38``."""
    found = re.search(r"(?:ABI tags?|platforms?): ((?:`[^`]+`(?:, )?)+)", hints)
    return found[1].replace("`", "") if found else ""


def is_network_error(output: str) -> bool:
    return re.search(r"error sending request|HTTP status|connection|timed? ?out|dns error", output, re.I) is not None


def last_cause(output: str) -> str:
    """Return the innermost cause that uv names."""
    causes = re.findall(r"^\s*cause: (.+)$", output, re.MULTILINE)
    cause = re.sub(r" for url \(\S+\)", "", causes[-1]) if causes else last_error(output)
    return cause.removesuffix(".")


def build_output(output: str) -> tuple[str, ...]:
    """Return the last lines that the build of a package printed."""
    text = re.split(r"^\s*\[stderr\]\s*$", output, flags=re.MULTILINE)[-1].partition("\nhint:")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return tuple(line[:200] for line in lines[-QUOTED_LINES:])
