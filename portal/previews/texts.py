"""Text and code, line by line, and JSON with its lines indented."""

import json
import re
from typing import Any

from portal.highlight import highlight_lines
from portal.previews.decoding import ANSI, BIDI, Text, universal_newlines, without_ansi

MAX_LINES = 10_000
MAX_LINE_CHARACTERS = 2_000
MAX_JSON_TOKENS = 100_000
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')


def show_text(text: Text, path: str, *, is_whole: bool) -> dict[str, Any]:
    """Return the lines as HTML, and what the page states about them."""
    content = universal_newlines(without_ansi(text.text) if ANSI.search(text.text) else text.text)
    lines = content.split("\n")
    if not lines[-1]:
        lines.pop()
    shown = [line[:MAX_LINE_CHARACTERS] for line in lines[:MAX_LINES]]
    return {
        "lines": highlight_lines("\n".join(shown), path=path) if shown else [],
        "is_cut": not is_whole or len(lines) > MAX_LINES,
        "long_lines": sum(len(line) > MAX_LINE_CHARACTERS for line in lines[:MAX_LINES]),
        "encoding": text.encoding,
        "has_bidi": bool(BIDI.search(content)),
    }


def show_json(text: Text, path: str) -> dict[str, Any]:
    """Return JSON with a line for each value, or as it is if it is not valid or too long."""
    indented = indent_json(text.text)
    if indented is None:
        return show_text(text, path, is_whole=True)
    is_indented = indented != text.text.strip()
    return show_text(Text(indented, text.encoding), path, is_whole=True) | {"is_indented": is_indented}


def indent_json(text: str) -> str | None:
    """Return valid JSON with each value on its line, None for anything else.

    Only the space between the tokens changes: parsed and written again, numbers and repeated keys would not be the same.
    """
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    pieces: list[str] = []
    depth = 0
    before = ""
    for count, token in enumerate(TOKEN.findall(text)):
        if count > MAX_JSON_TOKENS:
            return None
        if token in ("]", "}"):
            depth -= 1
            pieces.append(token if before in ("[", "{") else f"\n{'  ' * depth}{token}")
        else:
            starts_line = before in ("[", "{", ",")
            pieces.append(f"\n{'  ' * depth}{token}" if starts_line else f" {token}" if before == ":" else token)
            depth += token in ("[", "{")
        before = token
    return "".join(pieces)
