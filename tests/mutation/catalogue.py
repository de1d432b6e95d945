"""The list of seeded faults, and where each is in the source now.

``mutants/<subject>.toml`` describes them. A fault names a function and a fragment of its text, never a file, so that it
survives a move: ``lifecycle.advance`` is the function ``advance``, wherever it is. The module's name only decides where
several modules have a function of that name.
"""

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = Path(__file__).resolve().parent / "mutants"
SOURCES = ("portal", "scheduling", "runners")
KEYS = {"breaks", "function", "find", "replace", "runs_in", "tests", "heavy"}


class CatalogueError(Exception):
    """A mutant cannot be applied as it is described; the message states the reason."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One small fault: a single replacement in the text of a single function."""

    name: str
    subject: str
    breaks: str
    """What goes wrong for users of the product."""
    function: str
    """Qualified name with as much of the module's dotted path as is needed, such as
    ``log_shipper.LogShipper._send_batch``. A constant of a module counts as a function."""
    find: str
    replace: str
    runs_in: str = ""
    """For a constant, which runs only at import: the function that uses it, whose tests are the ones to run."""
    tests: tuple[str, ...] = ()
    """Test modules that run the code where coverage does not see it, in another process, e.g. ``test_agent_process``."""
    heavy: str = ""
    """For code that needs torch, containers or a browser: the layer whose tests run it."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A function, class member or constant, and the lines (first to last, from 1) of its source."""

    path: Path
    qualname: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a mutant is applied, and the source of the file with it."""

    path: Path
    lines: tuple[int, ...]
    """Those whose tests may notice: the changed ones, or for a constant the body of the function that uses it."""
    statement: tuple[int, ...]
    """All lines of the changed statement: coverage knows some statements only by their first line."""
    source: str


def load(folder: Path = MUTANTS) -> list[Mutant]:
    """Return all mutants, by subject and in the order of their files. Raises CatalogueError for a malformed entry."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        for name, entry in tomllib.loads(path.read_text()).items():
            if unknown := entry.keys() - KEYS:
                raise CatalogueError(f"{name} has unknown keys: {', '.join(sorted(unknown))}.")
            if missing := {"breaks", "function", "find", "replace"} - entry.keys():
                raise CatalogueError(f"{name} lacks {', '.join(sorted(missing))}.")
            tests = tuple(entry.pop("tests", ()))
            found.append(Mutant(name=name, subject=path.stem, tests=tests, **entry))
    return found


def definitions(path: Path) -> Iterator[Definition]:
    """Yield the functions and constants of a module, with their qualified names."""

    def walk(body: list[ast.stmt], prefix: str) -> Iterator[Definition]:
        for node in body:
            last = node.end_lineno or node.lineno
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                yield Definition(path, prefix + node.name, first, last)
                yield from walk(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        yield Definition(path, prefix + target.id, node.lineno, last)

    yield from walk(ast.parse(path.read_text()).body, "")


class Sources:
    """The definitions of a source tree, by the last part of their names."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self._by_last: dict[str, list[Definition]] = defaultdict(list)
        for package in SOURCES:
            for path in sorted((root / package).rglob("*.py")):
                if "migrations" not in path.parts:
                    for definition in definitions(path):
                        self._by_last[definition.qualname.rpartition(".")[2]].append(definition)

    def find(self, name: str) -> Definition:
        """Return the one definition that a dotted name means. Raises CatalogueError if there is none, or several."""
        parts = name.split(".")
        for start in range(len(parts)):
            qualname, module = ".".join(parts[start:]), parts[:start]
            named = [each for each in self._by_last[parts[-1]] if each.qualname == qualname]
            here = [each for each in named if self._is_in(each, module)]
            if len(here) == 1 or len(named) == 1:  # a function that only one module has may move to another
                return (here or named)[0]
            if len(here) > 1:
                places = ", ".join(str(each.path.relative_to(self.root)) for each in here)
                raise CatalogueError(f"{name} is in several modules: {places}. Put the module's name before it.")
        raise CatalogueError(f"There is no {name}. Change its name in tests/mutation/mutants.")

    def _is_in(self, definition: Definition, module: list[str]) -> bool:
        path = definition.path.relative_to(self.root).with_suffix("").parts
        return not module or list(path[-len(module) :]) == module

    def place(self, mutant: Mutant) -> Place:
        """Apply a mutant to the text of its file. Raises CatalogueError unless its fragment is there exactly once."""
        where = self.find(mutant.function)
        text = where.path.read_text()
        lines = text.splitlines(keepends=True)
        before = sum(map(len, lines[: where.first - 1]))
        own = "".join(lines[where.first - 1 : where.last])
        if (count := own.count(mutant.find)) != 1:
            raise CatalogueError(f"{mutant.name}: {mutant.find!r} is {count} times in {mutant.function}, not once.")
        at = before + own.index(mutant.find)
        source = text[:at] + mutant.replace + text[at + len(mutant.find) :]
        try:
            changed = _dumped(own.replace(mutant.find, mutant.replace))
        except SyntaxError as error:
            raise CatalogueError(f"{mutant.name} does not parse: {error}.") from error
        if changed == _dumped(own):
            raise CatalogueError(f"{mutant.name} changes nothing.")
        first = text.count("\n", 0, at) + 1
        touched = tuple(range(first, first + mutant.find.count("\n") + 1))
        if mutant.runs_in:
            user = self.find(mutant.runs_in)
            return Place(where.path, _body(user), (), source)
        return Place(where.path, touched, statement_lines(text, first), source)

    def coverage_path(self, mutant: Mutant) -> Path:
        """Return the file whose coverage shows which tests run a mutant."""
        return self.find(mutant.runs_in or mutant.function).path


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _dumped(own: str) -> str:
    """The syntax tree of one definition, which may be a method: parsing whole modules would take seconds."""
    return ast.dump(ast.parse(f"if True:\n{own}" if own.startswith((" ", "\t")) else own))


def statement_lines(text: str, line: int) -> tuple[int, ...]:
    """Return the lines of the innermost statement around a line; of a compound one, without the statements in it."""
    inner = None
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            inner = node  # ast.walk goes from the outside inwards
    if inner is None:
        return (line,)
    body = getattr(inner, "body", None)
    last = body[0].lineno - 1 if isinstance(body, list) and body else inner.end_lineno or inner.lineno
    return tuple(range(inner.lineno, max(inner.lineno, last) + 1))


def _body(user: Definition) -> tuple[int, ...]:
    """The lines of a function behind its header, which runs at import."""
    text = user.path.read_text()
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and user.first <= node.lineno <= user.last:
            return tuple(range(node.body[0].lineno, user.last + 1))
    return tuple(range(user.first, user.last + 1))


def by_subject(mutants: Iterable[Mutant]) -> Mapping[str, list[Mutant]]:
    """Group mutants by the subject that they belong to."""
    groups: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        groups[mutant.subject].append(mutant)
    return groups
