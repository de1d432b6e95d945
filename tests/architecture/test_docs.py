"""The pages for developers name files that there are; code in sentences can be copied from the site."""

import re

import pytest

from runners.environments import images
from tests.architecture.test_house import ROOT, tracked

PACKAGES = "portal", "scheduling", "runners", "templates", "static", "tests", "deploy", "docs"
PATH = re.compile(rf"`((?:{'|'.join(PACKAGES)})/[\w./-]+)`")
PAGES = ("docs/architecture/*.md", "docs/decisions/*.md", "docs/development/*.md", "CONTRIBUTING.md")
WITHOUT = {"deploy/lab.env"}
"""Files that an admin writes."""


@pytest.mark.parametrize("pattern", PAGES)
def test_each_path_is_there(pattern: str) -> None:
    pages = tracked(pattern)
    missing = {
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages
        for name in PATH.findall(page.read_text())
        if name not in WITHOUT and not (ROOT / name).exists()
    }
    assert pages and not missing


def test_the_map_of_packages_names_modules_where_they_are() -> None:
    missing, folder = [], ""
    for line in (ROOT / "docs" / "architecture" / "packages.md").read_text().splitlines():
        if found := re.match(r"##+ `([\w/]+)`", line):
            folder = found[1]
        for name in re.findall(r"`(\w[\w/]*\.py|\w[\w/]*/)`", line) if folder else ():
            places = (ROOT / folder / name, ROOT / name, ROOT / folder.split("/")[0] / name)
            if not any(place.exists() for place in places) and not any((ROOT / folder).rglob(name.rstrip("/"))):
                missing.append(f"{folder}: {name}")
    assert folder and not missing


def test_code_in_sentences_keeps_its_quotes_and_dashes() -> None:
    """Causes of failures name code such as ``os.makedirs('results')`` and ``--help``, without marking it as code."""
    assert re.search(r"^smartquotes = False\b", (ROOT / "docs" / "conf.py").read_text(), re.MULTILINE)


def modules_of(entry: images.Entry) -> set[str]:
    base = images.find(entry.base)
    return {*entry.packages, *(base.packages if base else ())}


def test_the_page_about_environments_names_what_each_has() -> None:
    page = (ROOT / "docs" / "user" / "environments.md").read_text()
    table = page.split("## What is installed")[1].split("\n## ")[0]
    head, _, *rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    catalogue = {f"`{entry.key}`": modules_of(entry) for entry in images.catalogue() if not entry.hidden}
    assert set(head[1:]) == set(catalogue)
    named = set()
    for modules, *cells in rows:
        for module in re.findall(r"`(\w+)`", modules):
            has = ["yes" if module in catalogue[key] else "no" for key in head[1:]]
            assert (module, cells) == (module, has)
            named.add(module)
    assert {"pandas", "torchvision", "matplotlib"} <= named
