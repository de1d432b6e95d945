"""The house itself: every command has a test, folders keep their names, files stay readable."""

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOP_LEVEL = {"portal", "scheduling", "runners", "templates", "static", "tests", "docs", "deploy"}
LONGEST_FILE = 500
LONGEST_TEST_FILE = 700


FOREIGN = ("tests/failures/blind/", "tests/failures/known/")
"""Programs that fail, some because Python cannot read them."""


def tracked(*patterns: str) -> list[Path]:
    out = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / line for line in out.splitlines() if (ROOT / line).exists() and not line.startswith(FOREIGN)]


def test_every_management_command_is_named_in_a_test() -> None:
    commands = {path.stem for path in tracked("portal/*/management/commands/*.py") if path.stem != "__init__"}
    mentioned = {
        node.value
        for path in tracked("tests/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert commands and commands <= mentioned


def test_the_top_level_is_what_the_owner_fixed() -> None:
    folders = {path.relative_to(ROOT).parts[0] for path in tracked() if len(path.relative_to(ROOT).parts) > 1}
    assert {name for name in folders if not name.startswith(".")} == TOP_LEVEL


def test_no_source_file_is_longer_than_one_reads_in_a_sitting() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in tracked("*.py", "static/*.js")
        if "vendor" not in path.parts
        and (lines := len(path.read_text().splitlines()))
        > (LONGEST_TEST_FILE if "tests" in path.parts else LONGEST_FILE)
    }
    assert not long


def test_nothing_is_left_open() -> None:
    holes = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in tracked("portal/*.py", "scheduling/*.py", "runners/*.py")
        for word in ("raise NotImplementedError", "TODO", "FIXME")
        if word in path.read_text()
    ]
    assert not holes
