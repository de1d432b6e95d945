"""What the page leaves out or refuses before it sends anything is what the server would leave out or refuse."""

import re
from collections.abc import Set
from pathlib import Path

import pytest

from portal.projects.unpacking import names, program

GATHER = Path(__file__).parents[3] / "static" / "projects" / "gather.js"


def listed(constant: str) -> set[str]:
    """Return the texts of a list in the script."""
    found = re.search(rf"const {constant} = [^;]+;", GATHER.read_text())
    assert found, constant
    return {text.replace("\\r", "\r") for text in re.findall(r'"([^"]+)"', found[0])}


@pytest.mark.parametrize(
    ("constant", "ours"),
    [
        ("LEFT_OUT_FOLDERS", names.LEFT_OUT_FOLDERS),
        ("LEFT_OUT_FILES", names.LEFT_OUT_FILES),
        ("ENDINGS", program.ENDINGS.keys()),
    ],
)
def test_the_lists_of_the_page_are_those_of_the_server(constant: str, ours: Set[str]) -> None:
    assert listed(constant) == set(ours)


def test_the_page_looks_for_no_environment_that_the_server_does_not_know() -> None:
    """``conda-meta`` is a folder, which a list of files does not have."""
    assert listed("ENVIRONMENT_MARKS") == names.ENVIRONMENT_MARKS - {"conda-meta"}


def test_the_page_knows_the_beginnings_of_all_archives() -> None:
    found = re.search(r"const ARCHIVE_BEGINNINGS = (.+);", GATHER.read_text())
    assert found
    beginnings = {bytes(int(byte, 0) for byte in each.split(", ")) for each in re.findall(r"\[([^\[\]]+)\]", found[1])}
    assert beginnings == {b"PK\x03\x04", b"PK\x05\x06", *program.COMPRESSED.values()}
