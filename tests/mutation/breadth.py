"""mutmut on one pure module: every mutant that it can make, by the tests that import the module.

The list in ``mutants/`` names what matters; this finds what the list misses. mutmut's mutants have no names that
survive a change of the module, so its results are read once and not kept.
"""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.mutation.catalogue import ROOT, SOURCES

ALSO = ("templates", "static", "tests", "manage.py", "pyproject.toml")
SETTINGS = """
[tool.mutmut]
source_paths = {sources}
only_mutate = {only}
also_copy = {also}
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = ["-n0", "-p", "no:cacheprovider"]
"""


def breadth(file: Path, tests: Sequence[Path]) -> int:
    """Run mutmut in a copy of the tree, and print the mutants that no test noticed."""
    file = file.resolve().relative_to(ROOT)
    chosen = [str(test) for test in tests] or importers(file)
    if not chosen:
        print(f"No test imports {file}. Name test files: make mutants FILE={file} TESTS=...")
        return 1
    with tempfile.TemporaryDirectory(prefix="sl-mutmut-") as name:
        copy, home = Path(name) / "tree", Path(name) / "home"
        home.mkdir()
        for each in (*SOURCES, *ALSO):
            source = ROOT / each
            if source.is_dir():
                shutil.copytree(source, copy / each, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, copy / each)
        settings = SETTINGS.format(
            sources=_toml(SOURCES), only=_toml([str(file)]), also=_toml(ALSO), tests=_toml(chosen)
        )
        with (copy / "pyproject.toml").open("a") as config:
            config.write(settings)
        env = {**os.environ, "SCHEDULEARN_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
        mutmut = str(Path(sys.executable).parent / "mutmut")
        code = subprocess.run([mutmut, "run", "--max-children", "1"], cwd=copy, env=env, check=False).returncode
        out = subprocess.run([mutmut, "results"], cwd=copy, env=env, capture_output=True, text=True, check=False).stdout
        survivors = [line.split(":")[0].strip() for line in out.splitlines() if line.strip().endswith(": survived")]
        for survivor in survivors:
            subprocess.run([mutmut, "show", survivor], cwd=copy, env=env, check=False)
        print(f"{len(survivors)} mutants of {file} survived {', '.join(chosen)}.")
    return code


def importers(file: Path) -> list[str]:
    """Return the test files that import a module."""
    module = ".".join(file.with_suffix("").parts)
    package, _, last = module.rpartition(".")
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            whole = isinstance(node, ast.Import) and module in names
            part = isinstance(node, ast.ImportFrom) and (
                node.module == module or (node.module == package and last in names)
            )
            if whole or part:
                found.append(str(path.relative_to(ROOT)))
                break
    return found


def _toml(texts: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{text}"' for text in texts) + "]"
