"""Every package, direct or transitive, is installed at a locked version from a file with a known hash."""

import re
from pathlib import Path

import pytest

from portal.ops.locks import HEADER, Lock, locks
from runners.environments.installing import normalise_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = locks(ROOT)
ENTRY = re.compile(r"([a-z0-9-]+)==([^\s;]+)(?: ; [^\\]+)?(?: \\\n    --hash=sha256:[0-9a-f]{64})+")
"""A pinned package, perhaps for some platforms only, with at least one hash."""


def direct(requirements: str) -> set[tuple[str, str]]:
    """What a source asks for; every line of it is an exact version."""
    lines = [line.partition("#")[0].strip() for line in requirements.splitlines()]
    pins = [re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[[a-z-]+\])?==([^\s;]+)", line) for line in lines if line]
    assert pins and all(pins), (
        f"not an exact version: {[line for line, pin in zip(lines, pins, strict=False) if not pin]}"
    )
    return {(normalise_name(pin[1]), pin[2]) for pin in pins if pin}


def entries(lock: Lock) -> set[tuple[str, str]]:
    text = (ROOT / lock.path).read_text()
    return {(found[1], found[2]) for found in ENTRY.finditer(text)}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.path)
class TestEachLock:
    def test_it_has_the_version_of_every_source_line(self, lock: Lock) -> None:
        assert not direct(lock.requirements) - entries(lock), "run make lock"

    def test_every_package_in_it_has_a_hash(self, lock: Lock) -> None:
        text = (ROOT / lock.path).read_text()
        header = HEADER.format(source=lock.source)
        assert text.startswith(header)
        assert ENTRY.sub("", text.removeprefix(header)).strip() == ""

    def test_it_has_more_than_the_direct_packages_and_agrees_with_the_portals(self, lock: Lock) -> None:
        assert len(entries(lock)) > len(direct(lock.requirements))
        portal = entries(LOCKS[0])
        names = {name for name, _ in portal}
        assert {(name, version) for name, version in entries(lock) if name in names} <= portal

    def test_it_names_no_place_from_which_packages_come(self, lock: Lock) -> None:
        text = (ROOT / lock.path).read_text()
        assert not re.search(r"://|^\s*-[if]\b|index-url|find-links|/(?:home|opt|root|tmp)/", text, re.MULTILINE)


def test_the_locks_of_docs_and_tests_hold_the_portals() -> None:
    portal, docs, tests = (entries(lock) for lock in LOCKS[:3])
    assert portal < docs < tests


@pytest.mark.parametrize(
    "path", ["deploy/Dockerfile", "deploy/agent/install.sh", "docs/admin/nodes.md", "docs/install/lab-server.md"]
)
def test_whatever_installs_a_requirements_file_requires_hashes(path: str) -> None:
    text = (ROOT / path).read_text().replace("\\\n", " ")
    commands = [line for line in text.splitlines() if re.search(r"pip\b.* install\b.* -r ", line)]
    assert commands and all("--require-hashes" in line and ".lock" in line for line in commands)


def test_make_installs_the_locks_and_nothing_else() -> None:
    text = (ROOT / "Makefile").read_text()
    rules = re.findall(r"^\$\(VENV\)/installed(?:-dev)?: (.+?) \|", text, re.MULTILINE)
    installed = re.findall(r"-m runners\.environments\.installing \S+ (\S+)", text)
    assert rules == installed == ["requirements-docs.lock", "requirements-dev.lock"]
