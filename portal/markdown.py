"""Markdown of users as HTML that runs nothing and loads nothing.

HTML in it is shown as text. Pictures become their description, since they would be loaded from elsewhere. What is made then
passes an allow list, so that a fault in the parser cannot let anything else through.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from pygments.token import STANDARD_TYPES

from portal.highlight import CLASS_PREFIX, highlight_block

MAX_CHARACTERS = 100_000
"""Hostile text of this length takes seconds: files of users are rendered in a process with limits (``portal.previews``)."""
SCHEMES = frozenset({"http", "https", "mailto"})
TAGS = frozenset(
    {
        "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s",
        "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
    }
)  # fmt: skip
ALIGNED = frozenset({"align-left", "align-center", "align-right"})
CLASSES = {
    "span": {CLASS_PREFIX + name for name in STANDARD_TYPES.values() if name} | {"picture"},
    "td": ALIGNED,
    "th": ALIGNED,
}


def render_markdown(text: str, *, top_level: int = 1) -> str:
    """Return the HTML of a text. Its first headings are ``<h{top_level}>``, so that they fit below those of the page."""
    env = {"heading_shift": top_level - 1}
    text = text[:MAX_CHARACTERS].encode("utf-8", "replace").decode()  # without halves of surrogate pairs
    return nh3.clean(
        _parser.render(text, env),
        tags=set(TAGS),
        attributes={"a": {"href", "title"}, "ol": {"start"}, "pre": {"tabindex"}},
        allowed_classes={tag: set(names) for tag, names in CLASSES.items()},
        attribute_filter=_keep_attribute,
        url_schemes=set(SCHEMES),
        link_rel="noopener nofollow",
    )


def _keep_attribute(tag: str, name: str, value: str) -> str | None:
    """Drop links that have no scheme: they would lead to a page of the portal, not to a file beside the text."""
    if name == "href" and value.partition(":")[0].lower() not in SCHEMES:
        return None
    return value


def _heading(self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    level = min(6, int(tokens[index].tag[1]) + env.get("heading_shift", 0))
    return f"<h{level}>" if tokens[index].nesting == 1 else f"</h{level}>\n"


def _cell(self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    side = str(token.attrGet("style") or "").removeprefix("text-align:")
    return f'<{token.tag} class="align-{side}">' if side in ("left", "center", "right") else f"<{token.tag}>"


def _fence(self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    language = (token.info.split() or [""])[0].strip("{}.").lower()
    return f'<pre tabindex="0"><code>{highlight_block(token.content.rstrip(chr(10)), language=language)}</code></pre>\n'


def _picture(self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    shown = self.renderInlineAsText(token.children or [], options, env) or "picture"
    return f'<span class="picture">[{escape(shown)}]</span>'


def _make_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable(["table", "strikethrough"])
    for rule, render in {
        "heading_open": _heading,
        "heading_close": _heading,
        "td_open": _cell,
        "th_open": _cell,
        "fence": _fence,
        "code_block": _fence,
        "image": _picture,
    }.items():
        parser.add_render_rule(rule, render)
    return parser


_parser = _make_parser()
