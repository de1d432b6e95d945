"""Reads the environment.yml of conda: Python, the part for pip, and packages that the package index has, too."""

import re
from collections.abc import Iterable
from typing import Any

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from .collecting import MAX_BYTES, TOO_LARGE, Collector, Place
from .conda_names import index_name
from .pythons import add_python
from .requirements_files import RequirementsReader
from .texts import decode, shown

MAX_DEPTH = 10
MAX_NODES = 5000
MAX_NAMES = 50
MAX_VERSIONS = 200
"""Characters of what follows a name."""

_PACKAGE = re.compile(r"(?:[A-Za-z0-9_./:-]+::)?([A-Za-z0-9_][A-Za-z0-9_.-]*)[ \t]*(.*)")
_BUILD = re.compile(r"={1,2}([^=\s]+)=([^=\s]+)")
_BLANKS = re.compile(r"(\d[^\s,|=<>]*)(?:[ \t]+\S+)?")
_FUZZY = re.compile(r"=\s*(\d[^=\s,|<>]*)")
_COMPARISONS = re.compile(r"(?:[<>=!~]=|[<>])[^|\[\]]*")
_NOT_UNDERSTOOD = "These versions are not understood. Write one version, or versions as in >=1.2,<2."


class CondaVersionsError(ValueError):
    """Versions that are not understood; the message is a sentence."""


def read_conda(path: str, collector: Collector, reader: RequirementsReader) -> None:
    content = reader.read(path)
    if content is None:
        collector.refuse(Place(path), "", "This file is not in the upload.")
        return
    if len(content) > MAX_BYTES:
        collector.refuse(Place(path), "", TOO_LARGE)
        return
    text = decode(content)
    data = load_yaml(text)
    dependencies = data.get("dependencies") if isinstance(data, dict) else None
    if not isinstance(dependencies, list):
        why = "This is not an environment of conda: a list “dependencies”, without anchors and references. Correct the file."
        collector.refuse(Place(path), "", why)
        return
    _CondaReader(path, collector, reader, text.splitlines()).read(dependencies)
    if isinstance(data, dict) and data.get("variables"):
        collector.note(Place(path), "Its environment variables are left out.")


def load_yaml(text: str) -> Any:
    """Return a small YAML document whose scalars are all text; None if it is invalid, has references, or is too deep."""
    try:
        depth = 0
        for count, event in enumerate(yaml.parse(text, yaml.BaseLoader)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > MAX_DEPTH or count > MAX_NODES:
                return None
        return yaml.load(text, yaml.BaseLoader)  # noqa: S506  # only dict, list and str
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError):
        return None


class _CondaReader:
    def __init__(self, path: str, collector: Collector, reader: RequirementsReader, lines: list[str]) -> None:
        self.path, self.collector, self.reader, self.texts = path, collector, reader, lines
        self.left_out: list[str] = []
        self.unknown: list[str] = []

    def read(self, dependencies: Iterable[Any]) -> None:
        for each in dependencies:
            if isinstance(each, dict):
                for name, lines in each.items():
                    self._read_part(str(name), lines)
            elif self.collector.count(place := self._place(str(each))):
                self._read_package(str(each).strip(), place)
        if self.unknown:
            text = f"Packages of conda that are not known here, so they are not installed: {_names(self.unknown)}."
            self.collector.note(Place(self.path), text)
        if self.left_out:
            text = f"Left out, because tools and system libraries come from the base: {_names(self.left_out)}."
            self.collector.note(Place(self.path), text)

    def _read_part(self, name: str, lines: Any) -> None:
        if name != "pip" or not isinstance(lines, list):
            why = f"Packages of “{shown(name, 40)}” are not installed. Only the part for pip is, which is a list."
            self.collector.refuse(self._place(name), name, why)
            return
        for each in lines:
            text = str(each).partition(" #")[0].strip()
            place = self._place(text)
            if text and self.collector.count(place):
                self.reader.add(text, place)

    def _read_package(self, text: str, place: Place) -> None:
        match = _PACKAGE.fullmatch(text)
        if match is None:
            self.collector.refuse(
                place, text, "This is not a package as conda writes them. Write name=1.2, or name>=1.2."
            )
            return
        name, asked = match[1].lower(), match[2].strip()
        try:
            versions = translate(asked)
        except CondaVersionsError as error:
            self.collector.refuse(place, text, str(error))
            return
        if name == "python":
            add_python(self.collector, versions, place)
            return
        known = index_name(name)
        if known is None:
            self.unknown.append(name)
        elif not known:
            self.left_out.append(name)
        else:
            if known != name.replace("_", "-").replace(".", "-"):
                self.collector.note(place, f"{shown(name, 60)} of conda is {known} on the package index.")
            self.collector.add(known + versions, place)

    def _place(self, text: str) -> Place:
        """Return where a text stands first; the values of a YAML document have no lines."""
        found = (number for number, line in enumerate(self.texts, 1) if text in line)
        return Place(self.path, next(found, 0) if text else 0)


def _names(names: list[str]) -> str:
    """Return names in a row, at most as many as a person reads."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(shown(name, 60) for name in names[:MAX_NAMES]) + more


def translate(asked: str) -> str:
    """Return what follows a name in conda as a specifier for pip. Builds are left out. Raises CondaVersionsError."""
    if not asked or asked == "*":
        return ""
    if len(asked) > MAX_VERSIONS:
        raise CondaVersionsError(_NOT_UNDERSTOOD)
    if match := _BUILD.fullmatch(asked) or _BLANKS.fullmatch(asked):
        specifier = _exact(match[1])
    elif match := _FUZZY.fullmatch(asked):
        specifier = f"=={match[1]}" if match[1].endswith("*") else f"=={match[1]}.*"
    elif _COMPARISONS.fullmatch(asked):
        specifier = re.sub(r"(?<![<>=!~])=(?=\s*\d)", "==", asked)
    else:
        raise CondaVersionsError(_NOT_UNDERSTOOD)
    try:
        return str(SpecifierSet(specifier.replace(".*.*", ".*")))
    except InvalidSpecifier:
        raise CondaVersionsError(_NOT_UNDERSTOOD) from None


def as_requirement(text: str) -> str | None:
    """Return what ``conda install`` takes as a line of a requirements.txt; None for a package that is not known here.

    Empty for Python, tools and system libraries, which come from the base. Versions that are not understood stay as they are.
    """
    match = _PACKAGE.fullmatch(text)
    if match is None:
        return None
    known = "" if match[1].lower() == "python" else index_name(match[1].lower())
    if not known:
        return known
    try:
        return known + translate(match[2].strip())
    except CondaVersionsError:
        return known + match[2]


def _exact(version: str) -> str:
    return f"=={version}" if not version.endswith("*") or version.endswith(".*") else f"=={version.removesuffix('*')}.*"
