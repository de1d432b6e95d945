"""Reads the dependencies in a pyproject.toml: those of the project, or those of Poetry."""

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from . import poetry
from .collecting import MAX_BYTES, TOO_LARGE, Collector, Place, Read
from .pythons import add_python
from .texts import decode, shown

_DEEP_KEY = re.compile(r"(?:\.[ \t]*(?:[A-Za-z0-9_-]+|\"[^\"\n]*\"|'[^'\n]*')[ \t]*){32}")
"""A key of so many parts, whose reading takes quadratic time, is in no real file."""
OTHER_SOURCE = (
    "This package does not come from the package index. Put its code into your upload, where it can be imported, or write name @ "
    "and the address of a wheel on a source that an admin has allowed."
)
_ELSEWHERE = frozenset({"git", "url", "path", "file", "workspace", "hg", "svn"})


def read_pyproject(path: str, collector: Collector, read: Read) -> None:
    content = read(path)
    if content is None:
        collector.refuse(Place(path), "", "This file is not in the upload.")
    elif len(content) > MAX_BYTES:
        collector.refuse(Place(path), "", TOO_LARGE)
    else:
        text = decode(content)
        data = _load(text)
        if data is None:
            collector.refuse(
                Place(path), "", "This file is not valid TOML, so its dependencies cannot be read. Correct it."
            )
        else:
            _Pyproject(path, collector, text, data).run()


def _load(text: str) -> dict[str, Any] | None:
    if _DEEP_KEY.search(text):
        return None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return None


class _Pyproject:
    def __init__(self, path: str, collector: Collector, text: str, data: dict[str, Any]) -> None:
        self.path, self.collector, self.data = path, collector, data
        self.texts = text.splitlines()

    def run(self) -> None:
        project = _table(self.data, "project")
        by_poetry = _table(self.data, "tool", "poetry", "dependencies")
        dependencies = project.get("dependencies")
        if isinstance(dependencies, list):
            self._project(dependencies)
        elif dependencies is not None:
            self.collector.refuse(
                self._place("dependencies"), "", "The dependencies of a project are a list. Correct the file."
            )
        elif by_poetry:
            self._poetry(by_poetry)
        self._notes(project)
        if not self.collector.read_lines:
            return
        if isinstance(project.get("requires-python"), str):
            add_python(self.collector, project["requires-python"], self._place("requires-python"))
        elif "python" in by_poetry:
            self._poetry_python(by_poetry["python"], self._place_of_key("python"))

    def _project(self, dependencies: list[Any]) -> None:
        sources = _table(self.data, "tool", "uv", "sources")
        elsewhere = {_plain(name) for name, source in sources.items() if _is_elsewhere(source)}
        for each in dependencies:
            text = str(each)
            place = self._place(f'"{text}"', f"'{text}'", text)
            if not self.collector.count(place):
                return
            name = re.match(r"[A-Za-z0-9._-]*", text.strip())
            if name and _plain(name[0]) in elsewhere:
                self.collector.refuse(place, text, OTHER_SOURCE)
            else:
                self.collector.add(text, place)

    def _poetry(self, dependencies: Mapping[str, Any]) -> None:
        for name, wanted in dependencies.items():
            place = self._place_of_key(name)
            if name == "python":
                continue
            if not self.collector.count(place):
                return
            if isinstance(wanted, dict) and wanted.get("optional") is True:
                self.collector.note(
                    place, f"{shown(name, 60)} is optional, so it is left out. Add it if your code imports it."
                )
            else:
                self._poetry_package(name, wanted, place)

    def _poetry_python(self, wanted: Any, place: Place) -> None:
        try:
            add_python(self.collector, poetry.translate(str(wanted)), place)
        except poetry.VersionsError:
            add_python(self.collector, str(wanted), place)

    def _poetry_package(self, name: str, wanted: Any, place: Place) -> None:
        table = {"version": wanted} if isinstance(wanted, str) else wanted
        text = f"{name} = {wanted}"
        if not isinstance(table, dict) or not isinstance(table.get("version", ""), str):
            why = f"Several alternatives are not translated. Write one line of pip: {shown(name, 60)}>=1.2,<2."
            self.collector.refuse(place, text, why)
        elif _is_elsewhere(table) or "source" in table:
            self.collector.refuse(place, text, OTHER_SOURCE)
        else:
            try:
                self.collector.add(_as_line(name, table), place)
            except poetry.VersionsError as error:
                self.collector.refuse(place, text, str(error))

    def _notes(self, project: Mapping[str, Any]) -> None:
        dynamic = project.get("dynamic")
        if isinstance(dynamic, list) and "dependencies" in dynamic and not self.collector.lines:
            text = "Its dependencies are computed when it is built, so they cannot be read here. Type them, or add a requirements.txt."
            self.collector.note(self._place("dynamic"), text)
        groups = [shown(str(name), 40) for name in _table(project, "optional-dependencies")]
        if groups and self.collector.read_lines:
            names = ", ".join(groups[:10])
            text = f"Its optional dependencies ({names}) are left out. Add what your code imports."
            self.collector.note(self._place("optional-dependencies"), text)

    def _place(self, *texts: str) -> Place:
        """Return where the first of some texts stands that can be found; TOML's reader does not report lines."""
        found = (number for text in texts if text for number, line in enumerate(self.texts, 1) if text in line)
        return Place(self.path, next(found, 0))

    def _place_of_key(self, key: str) -> Place:
        begins = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]")
        return Place(self.path, next((number for number, line in enumerate(self.texts, 1) if begins.match(line)), 0))


def _table(data: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """Return an inner table; empty if there is none."""
    found: Any = data
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_elsewhere(source: Any) -> bool:
    entries = source if isinstance(source, list) else [source]
    return any(isinstance(entry, dict) and not _ELSEWHERE.isdisjoint(entry) for entry in entries)


def _as_line(name: str, table: Mapping[str, Any]) -> str:
    """Return a line of pip for a dependency of Poetry. Raises VersionsError."""
    extras = table.get("extras", [])
    extras = [str(extra) for extra in extras] if isinstance(extras, list) else []
    line = name + (f"[{','.join(extras)}]" if extras else "") + poetry.translate(table.get("version", ""))
    conditions = [f"({table['markers']})"] if isinstance(table.get("markers"), str) else []
    if isinstance(table.get("python"), str):
        versions = poetry.translate(table["python"])
        conditions += [_python_condition(part) for part in versions.split(",") if part]
    return line + (f" ; {' and '.join(conditions)}" if conditions else "")


def _python_condition(specifier: str) -> str:
    match = re.fullmatch(r"([<>=!~]+)(.*)", specifier)
    operator, version = (match[1], match[2]) if match else ("==", specifier)
    variable = "python_full_version" if version.count(".") > 1 else "python_version"
    return f'{variable} {operator} "{version}"'
