"""One Python file in a form that is easy to query: its imports, calls and names, by full dotted name."""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

MAX_DEPTH = 32


class Need(IntEnum):
    """When a program needs what it imports, by where the import stands."""

    ALWAYS = 0
    IN_FUNCTION = 1
    """Only if it calls the function."""
    OPTIONAL = 2
    """Never: that it fails is handled, or it is for type checkers only."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call. ``name`` is the full dotted name as far as imports resolve it: ``hvd.init()`` is ``horovod.torch.init``."""

    name: str
    node: ast.Call

    @property
    def line(self) -> int:
        return self.node.lineno

    @property
    def function(self) -> str:
        return self.name.rpartition(".")[2]

    def literal(self, position: int, keyword: str = "") -> object:
        """Return the constant that is passed for a parameter; None if there is none or it is computed."""
        node = next((k.value for k in self.node.keywords if keyword and k.arg == keyword), None)
        if node is None and len(self.node.args) > position >= 0:
            node = self.node.args[position]
        return node.value if isinstance(node, ast.Constant) else None

    def has_argument(self, keyword: str) -> bool:
        return any(k.arg in (keyword, None) for k in self.node.keywords)  # **options may hold anything


@dataclass(slots=True)
class Source:
    path: str
    imports: dict[str, int] = field(default_factory=dict)
    """Full module names with their first line, of what is imported whenever the file runs."""
    lazy: dict[str, int] = field(default_factory=dict)
    """Imports inside functions. A module may also be in ``imports``."""
    optional: dict[str, int] = field(default_factory=dict)
    """Imports whose failure is caught, or that are for type checkers only."""
    calls: list[Call] = field(default_factory=list)
    strings: list[tuple[str, int]] = field(default_factory=list)
    """String constants with their line, without docstrings."""
    names: set[str] = field(default_factory=set)
    """Every name and attribute that occurs."""
    dotted: set[str] = field(default_factory=set)
    """The full dotted names."""
    set_variables: list[tuple[str, str, int]] = field(default_factory=list)
    """Environment variables set to a constant: name, value, line."""
    has_main: bool = False
    error: tuple[str, int] | None = None

    @property
    def needed_imports(self) -> dict[str, int]:
        """The imports that are not optional, with the line where each is needed first."""
        return self.lazy | self.imports

    @property
    def all_imports(self) -> set[str]:
        return self.imports.keys() | self.lazy.keys() | self.optional.keys()

    @property
    def root_imports(self) -> set[str]:
        return {name.split(".")[0] for name in self.all_imports}


def _check_encoding(content: bytes) -> None:
    """Raise UnicodeDecodeError for bytes that Python would refuse; ``ast`` lets them pass in comments."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    except SyntaxError:  # its first lines are not in UTF-8, or declare an encoding that does not exist
        encoding = "utf-8"
    content.decode(encoding)


def read(path: str, content: bytes) -> Source:
    source = Source(path)
    try:
        _check_encoding(content)
        tree = ast.parse(content)
    except UnicodeDecodeError as error:
        name = error.encoding.upper()
        source.error = (f"it is not {name}; save it as {name}", content[: error.start].count(b"\n") + 1)
        return source
    except SyntaxError as error:
        source.error = (error.msg or "it is not Python", error.lineno or 1)
        return source
    except (ValueError, RecursionError, MemoryError):
        source.error = ("it cannot be read as Python", 1)
        return source
    _SourceReader(source).run(tree)
    return source


class _SourceReader:
    """One pass over the tree, without recursion: hostile code can be nested deeper than Python's recursion limit."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.aliases: dict[str, str] = {}

    def run(self, tree: ast.Module) -> None:
        nodes = list(_nodes(tree))
        for node, need in nodes:  # imports first: names are resolved by them
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._record_import(node, need)
        docstrings = {id(node.value) for node, _ in nodes if isinstance(node, ast.Expr)}
        for node, _ in nodes:
            if isinstance(node, ast.Call):
                self.source.calls.append(Call(self._dotted(node.func), node))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                self.source.strings.append((node.value, node.lineno))
            elif isinstance(node, ast.Name):
                self.source.names.add(node.id)
                self.source.dotted.add(self.aliases.get(node.id, node.id))
            elif isinstance(node, ast.Attribute):
                self.source.names.add(node.attr)
                self.source.dotted.add(self._dotted(node))
            elif isinstance(node, ast.Assign):
                self._record_variable(node)
            elif isinstance(node, ast.If):
                self.source.has_main |= _is_main_guard(node.test)

    def _record_import(self, node: ast.Import | ast.ImportFrom, need: Need) -> None:
        if isinstance(node, ast.ImportFrom) and (node.level > MAX_DEPTH or (node.module or "").count(".") > MAX_DEPTH):
            return  # nothing in an upload lies that deep
        found = (self.source.imports, self.source.lazy, self.source.optional)[need]
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.count(".") > MAX_DEPTH:
                    continue
                found.setdefault(alias.name, node.lineno)
                full = alias.name if alias.asname else alias.name.split(".")[0]
                self.aliases[alias.asname or full] = full
            return
        module = "." * node.level + (node.module or "")
        found.setdefault(module, node.lineno)
        for alias in node.names:
            full = f"{module}.{alias.name}" if node.module else module + alias.name
            self.aliases[alias.asname or alias.name] = full
            # ``from horovod import torch`` or ``from . import model``: what is imported may be a module itself
            self.source.optional.setdefault(full, node.lineno)

    def _dotted(self, node: ast.expr) -> str:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            parts.append(self.aliases.get(node.id, node.id))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            parts.append("()")
        return ".".join(reversed(parts))

    def _record_variable(self, node: ast.Assign) -> None:
        for target in node.targets:
            if (
                isinstance(target, ast.Subscript)
                and self._dotted(target.value) == "os.environ"
                and isinstance(target.slice, ast.Constant)
                and isinstance(node.value, ast.Constant)
            ):
                self.source.set_variables.append((str(target.slice.value), str(node.value.value), node.lineno))


def _nodes(tree: ast.Module) -> Iterator[tuple[ast.AST, Need]]:
    """Yield all nodes in source order, each with when the program needs what is imported there."""
    stack: list[tuple[ast.AST, Need]] = [(tree, Need.ALWAYS)]
    while stack:
        node, need = stack.pop()
        yield node, need
        children = list(ast.iter_child_nodes(node))
        unneeded = _optional_children(node)
        inner = max(need, Need.IN_FUNCTION) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else need
        stack.extend((child, Need.OPTIONAL if id(child) in unneeded else inner) for child in reversed(children))


def _optional_children(node: ast.AST) -> set[int]:
    """Return the children, by identity, in which a failed import does no harm."""
    children: list[ast.AST]
    if isinstance(node, ast.Try | ast.TryStar):
        harmless = any(_catches_imports(handler) for handler in node.handlers)
        children = [*node.body, *node.handlers, *node.orelse, *node.finalbody]
    elif isinstance(node, ast.With | ast.AsyncWith):
        harmless, children = any(_suppresses_imports(item.context_expr) for item in node.items), [*node.body]
    elif isinstance(node, ast.If):
        harmless, children = _is_type_checking_guard(node.test) or _looks_for_module(node.test), [*node.body]
    else:
        return set()
    return {id(child) for child in children} if harmless else set()


def _catches_imports(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or _names_import_error(handler.type)


def _names_import_error(caught: ast.expr) -> bool:
    names = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")
    each = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(isinstance(one, ast.Name) and one.id in names for one in each)


def _suppresses_imports(manager: ast.expr) -> bool:
    """Return whether a context manager is ``contextlib.suppress(ImportError)``."""
    if not isinstance(manager, ast.Call) or _last_name(manager.func) != "suppress":
        return False
    return any(_names_import_error(argument) for argument in manager.args)


def _looks_for_module(test: ast.expr) -> bool:
    """Return whether a condition looks for a module first: ``if importlib.util.find_spec("wandb"):``."""
    call = test.left if isinstance(test, ast.Compare) else test
    return isinstance(call, ast.Call) and _last_name(call.func) == "find_spec"


def _last_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_type_checking_guard(test: ast.expr) -> bool:
    return _last_name(test) == "TYPE_CHECKING"


def _is_main_guard(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and any(
        isinstance(side, ast.Name) and side.id == "__name__" for side in (test.left, *test.comparators)
    )


def is_standard(module: str) -> bool:
    return module.split(".")[0] in sys.stdlib_module_names or module == "__future__"
