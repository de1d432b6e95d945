"""Code in colours: nothing of a text is lost or becomes markup, and every colour can be read."""

import re
from html import unescape
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.highlight import MAX_CHARACTERS, highlight_block, highlight_lines

STYLES = Path(__file__).resolve().parents[2] / "static" / "css"
COLOUR = re.compile(r"light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)")
GROUNDS = ("surface", "paper", "sunken", "accent-wash", "amber-wash")
"""On which code stands: cards, blocks, the line of an address, a line with a warning."""
NAMES = [
    "train.py",
    "run.sh",
    "a.json",
    "a.yaml",
    "a.toml",
    "a.html",
    "a.svg",
    "a.md",
    "a.cu",
    "Makefile",
    "Dockerfile",
    "a.sql",
]


def text_of(lines: list[str]) -> str:
    return unescape(re.sub(r'</?span(?: class="hl-[A-Za-z0-9 -]+")?>', "", "\n".join(lines)))


@pytest.mark.parametrize("name", NAMES)
@given(text=st.text(st.sampled_from("ab<>&\"'`#{}[]()/*\n\t =:-é\u202e\x0c$\\"), max_size=80))
def test_every_character_and_line_stays(name: str, text: str) -> None:
    lines = highlight_lines(text, path=name)
    assert text_of(lines) == text
    assert len(lines) == text.count("\n") + 1
    assert all(line.count("<span") == line.count("</span>") for line in lines)
    assert not re.search(r"<(?!/?span)", "".join(lines))


@pytest.mark.parametrize(
    ("name", "language"),
    [("train.py", "python"), ("lib/a.CU", ""), ("nested.dir/Dockerfile", "docker"), ("x.ipynb", "json")],
)
def test_the_name_chooses_the_language(name: str, language: str) -> None:
    text = "import os\n"
    expected = highlight_block(text, language=language) if language else highlight_block(text)
    assert highlight_block(text, path=name) == expected


@pytest.mark.parametrize("name", ["notes.txt", "train.py\n.exe", "x.unknown", "", "a/b/", "x.pyc"])
def test_other_files_are_plain(name: str) -> None:
    assert highlight_block("import os <b>", path=name) == "import os &lt;b&gt;"


def test_the_content_never_chooses_the_language() -> None:
    assert "<span" not in highlight_block("#!/usr/bin/env python\nimport os\n", path="run")
    assert "<span" not in highlight_block("import os\n", language="no such language")
    assert "<span" not in highlight_block("import os\n", language="brainfuck")


def test_long_text_is_plain() -> None:
    assert "<span" not in highlight_block("x = 1\n" * (MAX_CHARACTERS // 6 + 1), path="a.py")


def colours(path: Path) -> dict[str, tuple[str, str]]:
    return {
        name: (found[1], found[2])
        for name, value in re.findall(r"--([a-z-]+): ([^;]+);", path.read_text())
        if (found := COLOUR.fullmatch(value))
    }


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_colour_can_be_read_on_every_ground(theme: int) -> None:
    grounds = {name: value for path in STYLES.glob("*.css") for name, value in colours(path).items() if name in GROUNDS}
    assert set(grounds) == set(GROUNDS)
    inks = {name: value for name, value in colours(STYLES / "tokens.css").items() if name.startswith("hl-")}
    assert len(inks) == 8
    faint = {
        (ink, ground): round(contrast(inks[ink][theme], grounds[ground][theme]), 2)
        for ink in inks
        for ground in grounds
        if contrast(inks[ink][theme], grounds[ground][theme]) < 4.5
    }
    assert not faint
