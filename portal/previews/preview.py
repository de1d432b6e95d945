"""What a page shows of a file, by its kind, for templates/previews/_preview.html."""

import json
import tempfile
import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import Http404
from django.utils.html import escape
from django.utils.safestring import SafeString

from portal import sandbox
from portal.previews import kinds
from portal.previews.files import StoredFile
from portal.ui import counted
from portal.ui import size as size_text

KIB, MIB = 1024, 1024 * 1024
MAX_TEXT_BYTES = 512 * KIB
MAX_BYTES = {"image": 32 * MIB, "notebook": 16 * MIB, "table": 8 * MIB, "json": 2 * MIB, "markdown": 96 * KIB}
"""How much of a file is read. Of longer images nothing is shown, of longer notebooks and Markdown their text."""
MAX_FRAMED_BYTES = 4 * MIB
HEX_BYTES = 256
LARGE_IMAGE, SMALL_IMAGE = 2_000, 96
"""The maximum width and height of an image on its page, and in a list."""
VIEWS = {
    "table": ("table", "source"),
    "notebook": ("notebook", "source"),
    "markdown": ("formatted", "source"),
    "html": ("source", "rendered"),
}
"""The views that a page offers of a kind, the usual one first."""
TITLES = {
    "text": "Text", "table": "Table", "notebook": "Notebook", "markdown": "Markdown", "image": "Image", "audio": "Audio",
    "video": "Video", "framed": "HTML", "empty": "Empty file", "damaged": "File", "other": "File",
}  # fmt: skip
LIMITS = sandbox.Limits(15, 1024 * MIB, 64 * MIB, threading.BoundedSemaphore(2), wait_seconds=15)
TOO_MUCH = "It could not be shown within the limits of time and memory. Download it to open it."
NO_COLOURS = "It is shown as it is, because examining it took more time or memory than the limits allow."
BIDI_NOTE = (
    "It contains characters that change the order in which text is shown. It may do something else than what you read."
)


@dataclass(frozen=True, slots=True)
class Links:
    """Where a page gets the parts of a file that are not in it."""

    page: str
    download: str
    image: str
    media: str
    framed: str


def preview(file: StoredFile, links: Links, asked: str = "") -> dict[str, Any]:
    """Return what the page shows. ``asked`` is one of the views that the kind has. Raises Http404 for any other."""
    head = file.head(kinds.HEAD_BYTES)
    kind = kinds.kind_of(file.path, head, file.size)
    views = VIEWS.get(kind, ())
    if asked and asked not in views:
        raise Http404("There is no such view of this file.")
    view = asked or (views[0] if views else "")
    found = _show(file, kind, view, head)
    return {
        **found,
        "title": TITLES[found["kind"]],
        "views": [(name, with_query(links.page, show=name), name == view) for name in views if _offers(file, name)],
        "links": links,
        "facts": _facts(file, found),
        "notes": _notes(file, found),
        **_finish(found, links),
    }


def with_query(address: str, **values: str | int) -> str:
    return f"{address}{'&' if '?' in address else '?'}{urlencode(values)}"


def _offers(file: StoredFile, view: str) -> bool:
    return view != "rendered" or file.size <= MAX_FRAMED_BYTES


def _show(file: StoredFile, kind: str, view: str, head: bytes) -> dict[str, Any]:
    if file.size == 0:
        return {"kind": "empty"}
    if view == "rendered" and _offers(file, view):
        return {"kind": "framed"}
    if kind in ("audio", "video"):
        return {"kind": kind}
    if kind == "image" and file.size > MAX_BYTES["image"]:
        return {"kind": "damaged", "problem": f"Images larger than {size_text(MAX_BYTES['image'])} are not shown."}
    found = {"kind": kind}
    if kind != "other":
        try:
            found = ask(file, "text" if view in ("source", "rendered") else kind, max_side=LARGE_IMAGE)[0]
        except sandbox.NoAnswerError:
            return _plain(head) if kind not in ("image", "other") else {"kind": "damaged", "problem": TOO_MUCH}
    return found | {"hex": _hex(head)} if found["kind"] == "other" else found


def ask(file: StoredFile, kind: str, **about: Any) -> tuple[dict[str, Any], bytes]:
    """Have the program read a file. Return its answer, and the image that it wrote. Raises NoAnswerError."""
    most = MAX_BYTES.get(kind.removesuffix("-image"), MAX_TEXT_BYTES)
    data = file.head(most if file.size <= most or kind == "table" else MAX_TEXT_BYTES)
    request = {"kind": kind, "path": file.path, "size": file.size, "max_text_bytes": MAX_TEXT_BYTES, **about}
    with tempfile.TemporaryFile() as sent, tempfile.TemporaryFile() as out:
        sent.write(json.dumps(request).encode() + b"\n")
        sent.write(data)
        sent.seek(0)
        number = out.fileno()
        found = sandbox.run("previews.program", [str(number)], sent, [number], LIMITS)
        out.seek(0)
        return found, out.read()


def _plain(head: bytes) -> dict[str, Any]:
    """Return the beginning of a text that could not be examined, as it is."""
    lines = head.decode("utf-8", "replace").split("\n")[:1000]
    return {"kind": "text", "lines": [escape(line[:2000]) for line in lines], "is_cut": True, "problem": NO_COLOURS}


def _hex(head: bytes) -> list[tuple[str, str, str]]:
    """Return lines of sixteen bytes: position, bytes, characters."""
    return [
        (
            f"{at:04x}",
            head[at : at + 16].hex(" "),
            "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in head[at : at + 16]),
        )
        for at in range(0, min(len(head), HEX_BYTES), 16)
    ]


def _facts(file: StoredFile, found: dict[str, Any]) -> list[str]:
    """Return what is known of the file, as short phrases."""
    facts = []
    match found["kind"]:
        case "image":
            facts.append(f"{found['format']}, {found['width']:,} × {found['height']:,} pixels")
        case "table":
            if found["total"] is not None:
                facts += [counted(found["total"], "row"), counted(found["columns"], "column")]
        case "notebook":
            facts.append(counted(found["total"], "cell"))
        case "text" if not found["is_cut"]:
            facts.append(counted(len(found["lines"]), "line"))
    if found.get("encoding"):
        facts.append(found["encoding"])
    return facts


def _notes(file: StoredFile, found: dict[str, Any]) -> list[str]:
    """Return sentences on what is shown of the file, if it is not all of it or not as it is."""
    notes = []
    match found["kind"]:
        case "image":
            if found["is_animated"]:
                notes.append("This is the first frame of an animation.")
            if found["is_smaller"]:
                notes.append(f"It is shown smaller than it is, with at most {LARGE_IMAGE:,} pixels a side.")
        case "table":
            if found["total"] is None:
                notes.append(
                    f"Only the first {counted(len(found['rows']), 'row')} of {size_text(file.size)} are shown."
                )
            elif found["total"] > len(found["rows"]):
                notes.append(f"Only the first {len(found['rows']):,} of {counted(found['total'], 'row')} are shown.")
            if found["hidden_columns"]:
                notes.append(f"Only the first {len(found['header']):,} of {found['columns']:,} columns are shown.")
        case "notebook" if found["total"] > len(found["cells"]):
            notes.append(f"Only the first {len(found['cells']):,} of {counted(found['total'], 'cell')} are shown.")
        case "text":
            notes += _text_notes(file, found)
    return notes


def _text_notes(file: StoredFile, found: dict[str, Any]) -> list[str]:
    notes = [found["problem"]] if "problem" in found else []
    if found["is_cut"]:
        notes.append(f"Only the first {counted(len(found['lines']), 'line')} of {size_text(file.size)} are shown.")
    if found.get("long_lines"):
        notes.append("Only the beginning of very long lines is shown.")
    if found.get("is_indented"):
        notes.append("The JSON is indented here; the file itself is not changed.")
    if found.get("has_bidi"):
        notes.append(BIDI_NOTE)
    return notes


def _finish(found: dict[str, Any], links: Links) -> dict[str, Any]:
    """Mark the HTML that ``portal.highlight`` and ``portal.markdown`` made, and add the addresses of images."""
    if "lines" in found:
        return {"lines": [SafeString(line) for line in found["lines"]]}
    if found["kind"] == "table":
        numeric = found["numeric"]
        cells = [
            [(value, number < len(numeric) and numeric[number]) for number, value in enumerate(row)]
            for row in found["rows"]
        ]
        return {"header": list(zip(found["header"], numeric, strict=True)), "rows": cells}
    if "html" in found:
        return {"html": SafeString(found["html"])}
    for cell in found.get("cells", []):
        if "html" in cell:
            cell["html"] = SafeString(cell["html"])
        for output in cell["outputs"]:
            if output["kind"] == "image":
                output["src"] = with_query(links.image, number=output["number"])
    return {}
