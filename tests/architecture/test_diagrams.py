"""The diagrams of the documentation: each picture was drawn from the source that is beside it, and is described."""

import hashlib
import re

from tests.architecture.test_house import ROOT, tracked

FOLDER = ROOT / "docs" / "diagrams"
DRAWN_FROM = re.compile(r"<!-- source: ([0-9a-f]{64}) -->")


def test_each_picture_was_drawn_from_its_source() -> None:
    sources = {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in FOLDER.glob("*.mmd")}
    drawn = {path.stem: "".join(DRAWN_FROM.findall(path.read_text())) for path in FOLDER.glob("*.svg")}
    assert sources and drawn == sources, "run make diagrams"


def test_each_picture_stands_on_a_page_and_is_described() -> None:
    described = {
        name: len(text.split())
        for path in tracked("docs/*.md")
        for text, name in re.findall(r"!\[([^]]*)\]\([^)]*diagrams/([a-z-]+)\.svg\)", path.read_text())
    }
    assert described.keys() == {path.stem for path in FOLDER.glob("*.svg")}
    assert all(words >= 8 for words in described.values())


def test_no_picture_needs_a_browser_that_shows_html_or_loads_anything() -> None:
    for path in FOLDER.glob("*.svg"):
        text = path.read_text()
        assert "<foreignObject" not in text and "<script" not in text and "@import" not in text
        assert not re.search(r'(?:href|src)="(?!#)', text)
