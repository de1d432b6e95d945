"""Jupyter notebooks: cells as highlighted code and Markdown, outputs as text and images. HTML and scripts are left out."""

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from portal.highlight import highlight_block
from portal.markdown import render_markdown
from portal.previews.decoding import Text, without_ansi

MAX_CELLS = 200
MAX_OUTPUTS = 30
MAX_IMAGES = 50
MAX_SOURCE_CHARACTERS = 30_000
MAX_OUTPUT_CHARACTERS = 10_000
MAX_CHARACTERS = 1_000_000
"""Of all sources and outputs together."""
IMAGE_TYPES = ("image/png", "image/jpeg")
LEFT_OUT = {
    "text/html": "HTML",
    "application/javascript": "JavaScript",
    "image/svg+xml": "SVG",
    "text/latex": "LaTeX",
    "application/vnd.jupyter.widget-view+json": "widget",
}


class NotebookError(Exception):
    """The file is not a notebook."""


@dataclass
class _Budget:
    left: int = MAX_CHARACTERS
    images: list[str] = field(default_factory=list)
    """Images in base64, in the order of the notebook."""

    def take(self, text: str, most: int) -> tuple[str, bool]:
        """Return the beginning of a text, and whether it was cut."""
        taken = text[: max(0, min(most, self.left))]
        self.left -= len(taken)
        return taken, len(taken) < len(text)


def show_notebook(text: Text) -> dict[str, Any]:
    """Return the first cells. Raises NotebookError."""
    found = _parse(text.text)
    language = _language(found)
    budget = _Budget()
    cells = []
    all_cells = _cells(found)
    for cell in all_cells[:MAX_CELLS]:
        if budget.left <= 0:
            break
        cells.append(_show_cell(cell, language, budget))
    return {"cells": cells, "total": len(all_cells), "language": language, "encoding": text.encoding}


def notebook_image(text: Text, number: int) -> bytes:
    """Return the image that the page shows under this number. Raises NotebookError."""
    budget = _Budget()
    for cell in _cells(_parse(text.text))[:MAX_CELLS]:
        for _ in _outputs(cell, budget):
            pass
        if number < len(budget.images):
            try:
                return base64.b64decode(budget.images[number])
            except (ValueError, binascii.Error) as error:
                raise NotebookError from error
    raise NotebookError


def _parse(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotebookError from error
    if not isinstance(found, dict) or not isinstance(found.get("cells", found.get("worksheets")), list):
        raise NotebookError
    return found


def _cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cells; those of format 3 are in worksheets."""
    if "cells" in notebook:
        return [cell for cell in notebook["cells"] if isinstance(cell, dict)]
    sheets = [sheet for sheet in notebook["worksheets"] if isinstance(sheet, dict)]
    return [cell for sheet in sheets for cell in _as_list(sheet.get("cells")) if isinstance(cell, dict)]


def _language(notebook: dict[str, Any]) -> str:
    metadata = _as_dict(notebook.get("metadata"))
    for name, key in (("language_info", "name"), ("kernelspec", "language")):
        language = _as_dict(metadata.get(name)).get(key)
        if isinstance(language, str) and language:
            return language[:40].lower()
    return "python"


def _show_cell(cell: dict[str, Any], language: str, budget: _Budget) -> dict[str, Any]:
    kind = cell.get("cell_type")
    source, is_cut = budget.take(_joined(cell.get("source", cell.get("input"))), MAX_SOURCE_CHARACTERS)
    if kind == "markdown":
        return {"kind": "markdown", "html": render_markdown(source, top_level=3), "is_cut": is_cut, "outputs": []}
    if kind != "code":
        return {"kind": "raw", "text": source, "is_cut": is_cut, "outputs": []}
    count = cell.get("execution_count", cell.get("prompt_number"))
    return {
        "kind": "code",
        "count": count if isinstance(count, int) else None,
        "html": highlight_block(source, language=language),
        "is_cut": is_cut,
        "outputs": list(_outputs(cell, budget)),
        "hidden_outputs": max(0, len(_as_list(cell.get("outputs"))) - MAX_OUTPUTS),
    }


def _outputs(cell: dict[str, Any], budget: _Budget) -> Iterator[dict[str, Any]]:
    if cell.get("cell_type") != "code":
        return
    for output in _as_list(cell.get("outputs"))[:MAX_OUTPUTS]:
        if isinstance(output, dict):
            yield from _show_output(output, budget)


def _show_output(output: dict[str, Any], budget: _Budget) -> Iterator[dict[str, Any]]:
    kind = output.get("output_type")
    if kind == "stream":
        is_error = output.get("name", output.get("stream")) == "stderr"
        yield _text(_joined(output.get("text")), budget, "warning" if is_error else "text")
    elif kind in ("error", "pyerr"):
        traceback = "\n".join(_joined(line) for line in _as_list(output.get("traceback")))
        yield _text(traceback or f"{output.get('ename')}: {output.get('evalue')}", budget, "error")
    else:
        yield from _show_data(_as_dict(output.get("data")) or _old_data(output), budget)


def _show_data(data: dict[str, Any], budget: _Budget) -> Iterator[dict[str, Any]]:
    """Show an image, else the text, and name what a browser would have to run."""
    image = next((_joined(data[kind]) for kind in IMAGE_TYPES if kind in data), "")
    if image and len(budget.images) < MAX_IMAGES:
        budget.images.append(image)
        yield {"kind": "image", "number": len(budget.images) - 1}
        return
    if image:
        yield {"kind": "left-out", "what": "image"}
    if "text/plain" in data:
        yield _text(_joined(data["text/plain"]), budget)
    for kind, what in LEFT_OUT.items():
        if kind in data:
            yield {"kind": "left-out", "what": what}
            break


def _text(text: str, budget: _Budget, kind: str = "text") -> dict[str, Any]:
    shown, is_cut = budget.take(without_ansi(text), MAX_OUTPUT_CHARACTERS)
    return {"kind": kind, "text": shown, "is_cut": is_cut}


def _old_data(output: dict[str, Any]) -> dict[str, Any]:
    """Return the data of an output of format 3 as later formats have it."""
    names = {
        "png": "image/png",
        "jpeg": "image/jpeg",
        "text": "text/plain",
        "html": "text/html",
        "svg": "image/svg+xml",
    }
    return {kind: output[name] for name, kind in names.items() if name in output}


def _joined(value: Any) -> str:
    """Return a text that notebooks store as one or as a list of lines."""
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
