"""The scripts of every page are at most 100 KB, compressed: those that it names, and those that these import."""

import gzip
import re
from functools import cache
from pathlib import Path

import pytest
from django.conf import settings

MAX_SCRIPTS = 100 * 1024
TEMPLATES: Path = settings.BASE_DIR / "templates"
STATIC: Path = settings.BASE_DIR / "static"
PAGES = sorted(
    path.relative_to(TEMPLATES).as_posix()
    for path in TEMPLATES.rglob("*.html")
    if ("{% extends" in path.read_text() or "<html" in path.read_text()) and path.name != "api_docs.html"
)
"""All but the one of the API, which is a program of its own (Swagger UI)."""


@cache
def weight(path: Path) -> int:
    return len(gzip.compress(path.read_bytes()))


def scripts_of(page: str) -> set[Path]:
    text = (TEMPLATES / page).read_text()
    parent = re.search(r'{% extends "(.+?)" %}', text)
    is_ours = parent is not None and (TEMPLATES / parent[1]).exists()  # else a page of Django's own admin
    found = scripts_of(parent[1]) if parent and is_ours else set()
    for name in re.findall(r'"((?:[\w.-]+/)+[\w.-]+\.js)"', text):
        found |= with_imports(STATIC / name)
    return found


def with_imports(script: Path) -> set[Path]:
    found, waiting = set[Path](), [script]
    while waiting:
        path = waiting.pop().resolve()
        if path not in found:
            found.add(path)
            waiting += [
                path.parent / name for name in re.findall(r'^import .*?"(\./.+?|\.\./.+?)";', path.read_text(), re.M)
            ]
    return found


@pytest.mark.parametrize("page", PAGES)
def test_the_scripts_of_a_page_are_small(page: str) -> None:
    sizes = {path.name: weight(path) for path in scripts_of(page)}
    assert sum(sizes.values()) <= MAX_SCRIPTS, sizes


def test_what_a_page_loads_is_found() -> None:
    names = {path.name for path in scripts_of("jobs/job_overview.html")}
    assert names >= {
        "page.js",
        "toasts.js",
        "live.js",
        "log.js",
        "merge.js",
        "curves.js",
        "plot.js",
        "htmx-2.0.11.min.js",
    }
