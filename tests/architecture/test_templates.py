"""Templates are formatted, and each kind of thing is done in one way. ``djhtml --check`` is one of the linters."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.template import engines

from tests.architecture.test_house import ROOT, tracked

MAX_COLUMNS = 120
WITHOUT_PAGE = {"500.html", "base.html", "admin/base_site.html"}
"""They load assets by themselves."""


def templates() -> Iterator[tuple[str, str]]:
    for path in tracked("templates/*.html"):
        yield str(path.relative_to(ROOT / "templates")), path.read_text()


def test_no_line_is_longer_than_fits_beside_another_file() -> None:
    long = [
        f"{name}:{number}"
        for name, text in templates()
        for number, line in enumerate(text.splitlines(), start=1)
        if len(line) > MAX_COLUMNS
    ]
    assert not long


def test_what_is_no_page_has_a_name_with_an_underscore() -> None:
    parts = set()
    for _, text in templates():
        parts |= set(re.findall(r'{% include "([^"]+)"', text))
    for path in tracked("portal/*.py"):
        parts |= set(re.findall(r'inclusion_tag\(\s*"([^"]+)"', path.read_text()))
    assert parts
    assert not {name for name in parts if not name.startswith("components/") and not Path(name).name.startswith("_")}


def test_pages_name_their_assets_in_one_way() -> None:
    others = [
        name
        for name, text in templates()
        if name not in WITHOUT_PAGE and re.search(r'<script[^>]*src=|rel="stylesheet"', text)
    ]
    assert not others


@pytest.mark.parametrize(
    ("path", "element"),
    [
        ("jobs/jobs.css", '<link rel="stylesheet" href="/static/jobs/jobs.css">'),
        ("jobs/new.js", '<script type="module" src="/static/jobs/new.js"></script>'),
        ("vendor/htmx-2.0.11.min.js", '<script defer src="/static/vendor/htmx-2.0.11.min.js"></script>'),
    ],
)
def test_an_asset_is_loaded_as_its_kind_needs(path: str, element: str) -> None:
    assert engines["django"].from_string(f'{{% assets "{path}" %}}').render({}) == element
