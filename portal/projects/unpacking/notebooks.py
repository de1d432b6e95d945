"""Turns a notebook into a script that does the same without Jupyter.

Magics and shell lines become Python where that is possible. What only Jupyter can do is left out, and a note lists where.
"""

import ast
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from .common import BadUploadError, printable
from .installs import Installs, is_installer
from .jupyter import COLAB, DISPLAY, IPYTHON, LOOP, SHOW
from .names import listed

MAX_CELLS = 5_000
MAX_MAGIC_CHARACTERS = 2_000
"""Longer lines are no magics: hostile ones would take long to match."""
TIMERS = frozenset(["time", "timeit", "prun", "memit", "mprun", "lprun", "capture", "%time"])
"""Magics that run what follows, and measure or hide something."""
SHELL_ALIASES = frozenset(["ls", "mkdir", "cp", "mv", "rm", "cat", "rmdir", "ll", "man", "more", "less"])
SHELLS = frozenset(["bash", "sh", "script"])
MAGIC = re.compile(r"(?P<indent>\s*)(?:(?P<target>[^=!%'\"#]+?)\s*=\s*)?(?P<mark>!!?|%)\s?(?P<rest>.*)$", re.DOTALL)
COLAB_IMPORT = re.compile(r"^\s*(?:from|import)\s+google\.colab\b", re.MULTILINE)
COLAB_QUESTION = re.compile(r"['\"]google\.colab['\"]|\btry\s*:\s*(?:#[^\n]*\n\s*)?(?:from|import)\s+google\.colab\b")
"""Code that asks whether it runs on Colab, as a notebook does that also runs elsewhere."""
COLAB_FOLDER = re.compile(r"[\"']?/(?:content|kaggle)(?:/|$|[\"'])")
"""The folders of Colab and Kaggle, which no job has: their notebooks begin in them."""
HELP = re.compile(r"\s*(\?{1,2}[\w.]+|[\w.]+\?{1,2})\s*$")
SHOWN_OTHERWISE = (b"print(", b"display(", b"subprocess.run(")
"""Beginnings of lines that write what they have to; the last is what a shell line became."""


@dataclass
class Script:
    """What a notebook became."""

    text: str
    notes: list[str]
    files: dict[str, str]
    """The files that it writes with ``%%writefile``, as they are at first: other cells import them. And its package list."""


def to_script(text: str, name: str) -> Script:
    """Convert the JSON of a notebook. Raises BadUploadError for one that is no notebook, or in another language."""
    import jupytext
    import nbformat

    # Not nbformat.reads, which validates: programs write notebooks that are readable and not quite valid.
    notebook: Any = nbformat.convert(nbformat.reader.reads(text), 4)
    language = notebook.metadata.get("kernelspec", {}).get("language") or notebook.metadata.get(
        "language_info", {}
    ).get("name")
    if language and language.lower() not in ("python", "python3", "ipython"):
        raise BadUploadError(
            f"{printable(name)} is written in {printable(str(language))}. Only Python notebooks can be run."
        )
    if len(notebook.cells) > MAX_CELLS:
        raise BadUploadError(f"{printable(name)} has more than {MAX_CELLS:,} cells. Split it.")
    translation = Translation()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    translation.known = _assigned_names("\n".join(cell.source for cell in cells))
    for number, cell in enumerate(cells, 1):
        cell.source = translation.cell(number, cell.source)
    prelude = translation.prelude([cell.source for cell in cells])
    if prelude:
        notebook.cells.insert(0, nbformat.v4.new_code_cell(prelude))
    notebook.metadata = {"jupytext": {"notebook_metadata_filter": "-all", "cell_metadata_filter": "-all"}}
    script = jupytext.writes(notebook, fmt={"extension": ".py", "format_name": "percent", "comment_magics": False})
    packages = translation.installs.file(PurePosixPath(name).stem)
    folder = PurePosixPath(name).parent
    notes = translation.notes([cell.source for cell in cells], str(folder / packages[0]) if packages else "")
    return Script(script, notes, dict([packages] if packages else []) | translation.files)


def _assigned_names(text: str) -> set[str]:
    """Return the names that cells may assign: a shell line can use them."""
    return {*re.findall(r"\b([A-Za-z_]\w*)\s*=(?!=)", text), *re.findall(r"\bfor\s+([A-Za-z_]\w*)\s+in\b", text)}


@dataclass
class Translation:
    """Translates the cells of one notebook, and collects what they need and what was left out."""

    known: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)
    files: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Magics that no job has, with the numbers of their cells."""
    installs: Installs = field(default_factory=Installs)
    left_folders: list[int] = field(default_factory=list)
    """Cells that would go to a folder of Colab or Kaggle."""
    future: set[str] = field(default_factory=set)
    """What cells import from ``__future__``: in a script that comes before all else."""
    shows: bool = False
    """A cell ends with an expression, whose value Jupyter shows."""
    asynchronous: list[int] = field(default_factory=list)
    """Cells with ``async for`` or ``async with`` outside a function."""
    number: int = 0

    def cell(self, number: int, source: str) -> str:
        """Return a cell as Python."""
        self.number = number
        head, _, body = source.lstrip("\n").partition("\n")
        code = self._cell_magic(head[2:].strip(), body) if head.startswith("%%") else "\n".join(self._lines(source))
        return self._show_last_value(self._take_future(self._await_outside_functions(code)))

    def notes(self, sources: list[str], package_list: str = "") -> list[str]:
        """Return the notes about everything that was left out. ``package_list`` is the path of what would be installed."""
        found = []
        if self.left_out:
            places = (f"{magic} ({_cells(numbers)})" for magic, numbers in self.left_out.items())
            found.append(f"Left out, since only Jupyter has it: {', '.join(places)}.")
        if colab := _colab_cells(sources):
            found.append(
                f"Only Colab has google.colab, which {_cells(colab)} import{'s' * (len(colab) == 1)}: what the notebook asks of it "
                "does nothing. Upload the files that it reads with it."
            )
        if self.left_folders:
            found.append(
                f"Left out, since jobs have no such folder: %cd ({_cells(self.left_folders)}). A job starts at the top of the upload."
            )
        found += self.installs.notes(package_list, _cells(self.installs.cells))
        if self.asynchronous:
            found.append(
                f"“async for” and “async with” outside a function only run in Jupyter: {_cells(self.asynchronous)}."
            )
        if self.files:
            found.append(f"The cells with %%writefile also became files of this version: {listed(sorted(self.files))}.")
        return found

    def prelude(self, sources: list[str]) -> str:
        """Return the code that goes before all cells; empty if they need none."""
        names = {name for source in sources for name in _names(source)}
        imports = "".join(f"import {module}\n" for module in sorted(self.modules))
        future = f"from __future__ import {', '.join(sorted(self.future))}\n" if self.future else ""
        parts = [future, imports, LOOP if "asyncio" in self.modules else ""]
        if _colab_cells(sources):
            parts.append(COLAB)
        if "IPython" in names:
            parts.append(IPYTHON)
        if "display" in names:  # also where a cell imports or defines it: an earlier one may use it
            parts.append(DISPLAY)
        if self.shows:
            parts.append(SHOW)
        code = "\n".join(filter(None, parts))
        return f"# What Jupyter gives to a notebook\n{code}".rstrip("\n") if code else ""

    # Lines

    def _lines(self, source: str) -> Iterator[str]:
        inside = _Inside()
        pending = ""
        for line in source.split("\n"):
            if pending or (not inside and _is_magic(line)):
                pending += line
                if pending.endswith("\\"):
                    pending = pending[:-1]
                    continue
                yield self._magic_line(pending)
                pending = ""
            elif (
                not inside
                and len(line) <= MAX_MAGIC_CHARACTERS
                and HELP.match(line)
                and not line.strip().startswith("#")
            ):
                yield self._without(line)
            else:
                inside.read(line)
                yield line
        if pending:
            yield self._magic_line(pending)

    def _magic_line(self, line: str) -> str:
        found = MAGIC.match(line)
        if found is None:
            return line
        indent, target, rest = found["indent"], (found["target"] or "").strip(), found["rest"].strip()
        if is_installer(rest):
            self.installs.record(rest, self.number)
            return self._without(line)
        code = self._magic(rest, target) if found["mark"] == "%" else self._shell(rest, capture=bool(target))
        if code is None:
            return self._without(line)
        return f"{indent}{target} = {code}" if target else f"{indent}{code}"

    def _without(self, line: str) -> str:
        """Return what remains of a line that no job can run: a comment, and in a block a statement."""
        indent = line[: len(line) - len(line.lstrip())]
        return f"{indent}pass  # {line.strip()}" if indent else f"# {line.strip()}"

    def _magic(self, text: str, target: str) -> str | None:
        name, _, rest = text.partition(" ")
        rest = rest.strip()
        match name:
            case "env" if rest and not re.search(r"[\s=]", rest):
                return self._needs("os", f"os.environ.get({rest!r})")
            case "env" | "set_env" if rest:
                variable, _, value = rest.partition("=") if "=" in rest else rest.partition(" ")
                return self._needs("os", f"os.environ[{variable.strip()!r}] = {self._interpolated(value.strip())}")
            case "cd" if COLAB_FOLDER.match(rest):
                self.left_folders.append(self.number)
                return None
            case "cd" if rest and not rest.startswith("-"):
                return self._needs("os", f"os.chdir({self._interpolated(rest.strip(chr(34) + chr(39)))})")
            case "pwd":
                return self._needs("os", "os.getcwd()")
            case "run" if rest:
                return self._run(rest)
            case _ if name in SHELL_ALIASES:
                return self._shell(text, capture=bool(target))
            case _ if name in TIMERS and rest:
                return re.sub(r"^(-\w+(\s+\d+)?\s+)+", "", rest)
        self.left_out[f"%{name}"].append(self.number)
        return None

    def _cell_magic(self, head: str, body: str) -> str:
        name, _, rest = head.partition(" ")
        rest = rest.strip()
        if name in TIMERS:
            return "\n".join(self._lines(body))
        if name == "writefile" and rest:
            return self._write_file(rest, body)
        if name in SHELLS:
            shell = (
                "bash" if name == "script" and not rest else (rest.split() or [name])[0] if name == "script" else name
            )
            kept = self.installs.leave_out(body, self.number)
            return self._needs("subprocess", f"subprocess.run([{shell!r}, '-c', {kept!r}], check=True)")
        self.left_out[f"%%{name}"].append(self.number)
        return "\n".join(f"# {line}" for line in (f"%%{head}", *body.split("\n")))

    def _write_file(self, rest: str, body: str) -> str:
        append = rest.startswith("-a ")
        path = rest.removeprefix("-a ").strip().strip("\"'")
        content = body if body.endswith("\n") else f"{body}\n"
        if not append:
            self.files.setdefault(path, content)
        lines = "\n".join(f"        {line!r}" for line in content.splitlines(keepends=True))
        return f"with open({path!r}, {'a' if append else 'w'!r}) as _file:\n    _file.write(\n{lines}\n    )"

    def _run(self, rest: str) -> str:
        try:
            words = [word for word in shlex.split(rest) if not re.fullmatch(r"-[a-z]", word)]
        except ValueError:
            words = rest.split()
        self.modules |= {"runpy", "sys"}
        return (
            f"sys.argv = {words!r}; globals().update(runpy.run_path({words[0]!r}, run_name='__main__'))"
            if words
            else ""
        )

    def _shell(self, command: str, capture: bool) -> str:
        line = self._interpolated(command.removeprefix("!"))
        if capture:
            return self._needs(
                "subprocess", f"subprocess.run({line}, shell=True, capture_output=True, text=True).stdout.splitlines()"
            )
        return self._needs("subprocess", f"subprocess.run({line}, shell=True)")

    def _interpolated(self, text: str) -> str:
        """Return a string literal with the values of the notebook's variables, as Jupyter puts them into a shell line."""
        braces = re.findall(r"\{([^{}]*)\}", text)
        uses = [name for name in re.findall(r"\$([A-Za-z_]\w*)", text) if name in self.known]
        if not uses and not (braces and all(self._is_known_expression(each) for each in braces)):
            return repr(text)
        if not braces or not all(self._is_known_expression(each) for each in braces):
            text = text.replace("{", "{{").replace("}", "}}")
        for name in uses:
            text = re.sub(rf"\${name}\b", f"{{{name}}}", text)
        literal = repr(text)
        return (
            f"f{literal}"
            if literal[0] not in text
            else "f" + '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
        )

    def _is_known_expression(self, text: str) -> bool:
        try:
            tree = ast.parse(text, mode="eval")
        except SyntaxError:
            return False
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        return bool(names) and names <= self.known

    def _needs(self, module: str, code: str) -> str:
        self.modules.add(module)
        return code

    # Await

    def _await_outside_functions(self, source: str) -> str:
        """Let what a cell awaits run to its end: a script has no event loop that runs already."""
        tree = _parsed(source)
        if tree is None:
            return source
        content = source.encode()
        edits: list[tuple[int, int, bytes]] = []
        for node in _outside_functions(tree):
            if isinstance(node, ast.AsyncFor | ast.AsyncWith):
                self.asynchronous.append(self.number)
            if isinstance(node, ast.Await):
                begin, end = _span(content, node)
                value, _ = _span(content, node.value)
                edits += [(begin, value, b"_loop.run_until_complete("), (end, end, b")")]
                self.modules.add("asyncio")
        for begin, end, text in sorted(edits, reverse=True):
            content = content[:begin] + text + content[end:]
        return content.decode()

    # Values

    def _take_future(self, source: str) -> str:
        """Move what a cell imports from ``__future__`` to the beginning of the script."""
        tree = _parsed(source) if "__future__" in source and "\r" not in source else None
        found = [each for each in (tree.body if tree else ()) if isinstance(each, ast.ImportFrom)]
        for each in reversed([each for each in found if each.module == "__future__"]):
            self.future |= {alias.name for alias in each.names if not alias.asname}
            source = _replaced(source, each, lambda _: b"pass")
        return source

    def _show_last_value(self, source: str) -> str:
        """Print the value of the expression that ends a cell, as Jupyter shows it; not of one that a semicolon follows."""
        tree = _parsed(source)
        last = tree.body[-1] if tree is not None and tree.body else None
        if not isinstance(last, ast.Expr) or "\r" in source:
            return source
        content = source.encode()
        begin, end = _span(content, last)
        if content[begin:].startswith(SHOWN_OTHERWISE) or content[end:].lstrip().startswith(b";"):
            return source
        self.shows = True
        is_tuple = isinstance(last.value, ast.Tuple)
        return _replaced(
            source, last, lambda value: b"_show_value((%s))" % value if is_tuple else b"_show_value(%s)" % value
        )


@dataclass
class _Inside:
    """Whether the next line continues a string or a bracket, so that it is no magic."""

    quotes: str = ""
    depth: int = 0

    def __bool__(self) -> bool:
        return bool(self.quotes) or self.depth > 0

    def read(self, line: str) -> None:
        position = 0
        while position < len(line):
            if self.quotes:
                end = line.find(self.quotes, position)
                if end < 0:
                    return
                position, self.quotes = end + 3, ""
                continue
            character = line[position]
            if line.startswith(('"""', "'''"), position):
                self.quotes = line[position : position + 3]
                position += 3
                continue
            if character in "\"'":
                closing = re.compile(rf"(?:[^{character}\\]|\\.)*{character}").match(line, position + 1)
                position = closing.end() if closing else len(line)
                continue
            if character == "#":
                return
            self.depth = max(0, self.depth + (character in "([{") - (character in ")]}"))
            position += 1


def _is_magic(line: str) -> bool:
    found = MAGIC.match(line) if len(line) <= MAX_MAGIC_CHARACTERS else None
    if found is None:
        return False
    return not found["target"] or re.fullmatch(r"[\w\s,.\[\]*()]+", found["target"]) is not None


def _outside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            stack.extend(ast.iter_child_nodes(node))


def _parsed(source: str) -> ast.Module | None:
    """Return the syntax tree of a cell; None for one that Python cannot read."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _span(content: bytes, node: ast.stmt | ast.expr) -> tuple[int, int]:
    """Return where a statement or an expression begins and ends in the bytes of its cell."""
    starts = [0]
    for line in content.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    last = node.lineno if node.end_lineno is None else node.end_lineno
    return starts[node.lineno - 1] + node.col_offset, starts[last - 1] + (node.end_col_offset or 0)


def _replaced(source: str, node: ast.stmt, change: Callable[[bytes], bytes]) -> str:
    """Return a cell with another text in place of a statement."""
    content = source.encode()
    begin, end = _span(content, node)
    return (content[:begin] + change(content[begin:end]) + content[end:]).decode()


def _colab_cells(sources: list[str]) -> list[int]:
    """Return the numbers of the cells that need Colab's package; none of a notebook that asks whether it is there."""
    if any(COLAB_QUESTION.search(source) for source in sources):
        return []
    return [number for number, source in enumerate(sources, 1) if COLAB_IMPORT.search(source)]


def _names(source: str) -> set[str]:
    """Return the names and the imported packages of a cell; none of one that Python cannot read."""
    tree = _parsed(source)
    if tree is None:
        return set()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def _cells(numbers: list[int]) -> str:
    unique = sorted(set(numbers))
    shown = ", ".join(map(str, unique[:5])) + (" and more" if len(unique) > 5 else "")
    return f"cell{'s' * (len(unique) > 1)} {shown}"
