"""Every colour and size of text has a name in tokens.css, and stylesheets use the names."""

import re

from tests.architecture.test_house import ROOT, tracked

TOKENS = ROOT / "static" / "css" / "tokens.css"
COLOUR = re.compile(r"#[0-9a-fA-F]{3,8}\b|\brgba?\(|\bhsla?\(|\blight-dark\(")
TEXT_SIZE = re.compile(r"font-size:\s*[\d.]+(?:rem|pt)")
FOREIGN = {"static/accounts/api_docs.css"}
"""Swagger's page is white in both themes."""
OTHER_SCALES = {"static/home/wall.css"}
"""A screen on a wall is read from four metres."""


def stylesheets() -> list[tuple[str, str]]:
    sheets = [
        (str(path.relative_to(ROOT)), path.read_text())
        for path in tracked("static/*.css")
        if path != TOKENS and "vendor" not in path.parts
    ]
    assert len(sheets) > 10
    return [(name, re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)) for name, text in sheets]


def test_colours_stand_in_the_file_of_tokens() -> None:
    found = {name: COLOUR.findall(text) for name, text in stylesheets() if name not in FOREIGN}
    assert {name: colours for name, colours in found.items() if colours} == {}


def test_sizes_of_text_stand_in_the_file_of_tokens() -> None:
    assert {name for name, text in stylesheets() if TEXT_SIZE.search(text)} == OTHER_SCALES


def test_every_token_in_use_is_defined() -> None:
    sheets = stylesheets()
    defined = set(re.findall(r"(--[\w-]+)\s*:", TOKENS.read_text() + "".join(text for _, text in sheets)))
    used = {token for _, text in sheets for token in re.findall(r"var\((--[\w-]+)", text)}
    assert used - defined == set()


def test_every_token_is_used() -> None:
    tokens = TOKENS.read_text()
    everything = tokens + "".join(text for _, text in stylesheets())
    unused = {
        token for token in re.findall(r"^\s*(--[\w-]+):", tokens, re.MULTILINE) if f"var({token})" not in everything
    }
    assert unused - {f"--data-{number}" for number in range(1, 9)} == set()
