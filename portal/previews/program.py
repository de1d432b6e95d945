"""The program that reads hostile files: ``portal.sandbox`` runs it with limits, and only it decodes, parses or highlights them.

On stdin comes a line of JSON with the request, then the beginning of the file. The answer is JSON on stdout; an image is written
to the descriptor that the argument names. Modules are loaded where they are needed: some take as long as the work.
"""

import json
import os
import sys
from typing import Any

from portal.previews.decoding import Text, decode


class NotShownError(Exception):
    """The file cannot be shown; the message is for the user."""


def answer(request: dict[str, Any], data: bytes) -> dict[str, Any]:
    """Return what the page shows of a file. A text that is not what its name promises is plain text."""
    kind, path, is_whole = request["kind"], request["path"], request["size"] <= len(data)
    if kind == "image":
        return _image(data, request["max_side"])
    text = decode(data, complete=is_whole, with_nul=kind == "table")
    if text is None:
        return {"kind": "other"}
    match kind:
        case "notebook-image":
            return _notebook_image(text, request["number"], request["max_side"])
        case "notebook" if is_whole and (notebook := _notebook(text)):
            return {"kind": kind, **notebook}
        case "table" if table := _table(text, path, is_whole):
            return {"kind": kind, **table}
        case "markdown" if is_whole:
            return {"kind": kind, "html": _markdown(text), "encoding": text.encoding}
    return {"kind": "text", **_lines(text, path, is_whole, kind == "json", request["max_text_bytes"])}


def _lines(text: Text, path: str, is_whole: bool, is_json: bool, max_characters: int) -> dict[str, Any]:
    from portal.previews import texts

    if is_json and is_whole:
        return texts.show_json(text, path)
    kept = Text(text.text[:max_characters], text.encoding)
    return texts.show_text(kept, path, is_whole=is_whole and len(kept.text) == len(text.text))


def _markdown(text: Text) -> str:
    from portal.markdown import render_markdown

    return render_markdown(text.text, top_level=3)


def _table(text: Text, path: str, is_whole: bool) -> dict[str, Any] | None:
    from portal.previews import tables

    return tables.show_table(text, path, is_whole=is_whole)


def _notebook(text: Text) -> dict[str, Any] | None:
    from portal.previews import notebooks

    try:
        return notebooks.show_notebook(text)
    except notebooks.NotebookError:
        return None


def _notebook_image(text: Text, number: int, max_side: int) -> dict[str, Any]:
    from portal.previews import notebooks

    try:
        return _image(notebooks.notebook_image(text, number), max_side)
    except notebooks.NotebookError as error:
        raise NotShownError("There is no such image in this notebook.") from error


def _image(data: bytes, max_side: int) -> dict[str, Any]:
    from portal.previews import images

    try:
        encoded, facts = images.encode_again(data, max_side)
    except images.ImageError as error:
        raise NotShownError(str(error)) from error
    if len(sys.argv) > 1:
        with os.fdopen(int(sys.argv[1]), "wb") as out:
            out.write(encoded)
    return {"kind": "image", **facts}


def main() -> None:
    line, _, data = sys.stdin.buffer.read().partition(b"\n")
    try:
        found = answer(json.loads(line), data)
    except NotShownError as error:
        found = {"kind": "damaged", "problem": str(error)}
    # JSON in a file may have halves of surrogate pairs, which no page can contain
    sys.stdout.buffer.write(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))


if __name__ == "__main__":
    main()
