"""Markdown of users: what it may look like, and that nothing in it runs, loads or leads within the portal."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.markdown import MAX_CHARACTERS, TAGS, render_markdown

TAG = re.compile(r"<(/?)([a-z][a-z0-9]*)([^>]*)>")
HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java&#x73;cript:alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](vbscript:x)",
    "![x](https://tracker.example/a.png)",
    "![x](data:image/png;base64,AAAA)",
    "![x](attachment:x.png)",
    "<javascript:alert(1)>",
    '[x](https://e.org "a\\" onclick=\\"alert(1)")',
    "[x]: javascript:alert(1)\n\n[x]",
    '```"><script>alert(1)</script>\ncode\n```',
    "| <style>*{}</style> |\n|---|\n| <iframe src=//evil> |",
    "<svg><script>1</script></svg>",
    '<a href="/admin/users/" target=_blank>x</a>',
    "[x](/jobs/1/) [y](//evil.example) [z](#top) [w](../../admin)",
]
PIECES = [
    *HOSTILE,
    "# a",
    "\n\n",
    "* b\n",
    "> ",
    "`",
    "```python\n",
    "|",
    "---",
    "<",
    ">",
    "(",
    ")",
    "[",
    "]",
    "&lt;",
    '"',
    "x",
]


def check(html: str) -> None:
    for _, tag, attributes in TAG.findall(html):
        assert tag in TAGS
        assert re.fullmatch(
            r'(?: (?:class="[a-z0-9 -]+"|rel="noopener nofollow"|start="\d+"|tabindex="0"|title="[^"]*"|href="(?:https?:|mailto:)[^"]*"))*',
            attributes,
        ), attributes
    assert "<" not in TAG.sub("", html)


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_in_it_runs_loads_or_leads_within_the_portal(text: str) -> None:
    check(render_markdown(text))


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_no_combination_escapes(text: str) -> None:
    check(render_markdown(text))


def test_tables_code_and_links_are_shown() -> None:
    html = render_markdown(
        "# Title\n\n| a | b |\n|--:|:-:|\n| 1 | ~~2~~ |\n\n```python\nimport os\n```\n\n[site](https://e.org)\n",
        top_level=2,
    )
    assert "<h2>Title</h2>" in html
    assert '<th class="align-right">a</th>' in html and '<td class="align-center"><s>2</s></td>' in html
    assert '<span class="hl-kn">import</span>' in html
    assert '<a href="https://e.org" rel="noopener nofollow">site</a>' in html


def test_headings_go_no_deeper_than_the_sixth() -> None:
    assert "<h6>" in render_markdown("##### deep", top_level=4)


def test_pictures_become_their_description() -> None:
    assert '<span class="picture">[a <b>]</span>'.replace("<b>", "&lt;b&gt;") in render_markdown(
        "![a <b>](https://e.org/x.png)"
    )


@pytest.mark.parametrize(
    "text", ["[" * 10_000, "> " * 10_000, "*a " * 10_000, "`" * 10_001, "![" * 10_000, "<" * 10_000]
)
def test_hostile_length_ends(text: str) -> None:
    check(render_markdown(text))


def test_very_long_text_is_cut() -> None:
    assert len(render_markdown("x" * (MAX_CHARACTERS * 2))) < MAX_CHARACTERS + 100
