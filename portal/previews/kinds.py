"""The kind of a file: of images and recordings by their first bytes, of texts by their name."""

from portal.previews.decoding import decode

HEAD_BYTES = 64 * 1024
IMAGES = {
    "PNG": b"\x89PNG\r\n\x1a\n",
    "JPEG": b"\xff\xd8\xff",
    "GIF": b"GIF8",
    "WEBP": b"RIFF",
    "BMP": b"BM",
}
"""By the names of Pillow. SVG is not among them: it can contain scripts, so it is shown as text."""
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp")
RECORDINGS = {
    ".wav": "audio/wav",
    ".mp3": "audio/mpeg",
    ".ogg": "audio/ogg",
    ".oga": "audio/ogg",
    ".flac": "audio/flac",
    ".m4a": "audio/mp4",
    ".mp4": "video/mp4",
    ".m4v": "video/mp4",
    ".webm": "video/webm",
}
TEXTS = {
    ".ipynb": "notebook",
    ".csv": "table",
    ".tsv": "table",
    ".jsonl": "table",
    ".ndjson": "table",
    ".json": "json",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
}
ICONS = {"image": "image", "table": "list", "json": "code", "notebook": "book", "html": "code", "markdown": "book"}


def ending_of(path: str) -> str:
    name = path.rpartition("/")[2].lower()
    return name[name.rfind(".") :] if "." in name else ""


def image_format(head: bytes) -> str | None:
    """Return Pillow's name of an image format that can be shown."""
    for name, magic in IMAGES.items():
        if head.startswith(magic):
            if name == "WEBP" and head[8:12] != b"WEBP":
                return None
            if name == "BMP" and head[6:10] != bytes(4):  # two letters are no proof; these are reserved
                return None
            return name
    return None


def recording_type(path: str, head: bytes) -> str | None:
    """Return the media type of audio and video, whose name and first bytes have to agree."""
    media_type = RECORDINGS.get(ending_of(path), "")
    match media_type.partition("/")[2]:
        case "wav":
            fits = head[:4] == b"RIFF" and head[8:12] == b"WAVE"
        case "mpeg":
            fits = head[:3] == b"ID3" or (head[:1] == b"\xff" and head[1:2] >= b"\xe0")
        case "ogg":
            fits = head[:4] == b"OggS"
        case "flac":
            fits = head[:4] == b"fLaC"
        case "mp4":
            fits = head[4:8] == b"ftyp"
        case "webm":
            fits = head[:4] == b"\x1a\x45\xdf\xa3"
        case _:
            fits = False
    return media_type if fits else None


def kind_of(path: str, head: bytes, size: int) -> str:
    """Return image, audio, video, notebook, table, json, markdown, html, text or other."""
    if image_format(head):
        return "image"
    if media_type := recording_type(path, head):
        return media_type.partition("/")[0]
    kind = TEXTS.get(ending_of(path), "text")
    is_text = decode(head, complete=size <= len(head), with_nul=kind == "table") is not None
    return kind if is_text else "other"


def kind_by_name(path: str) -> str:
    """Return the kind that a file of this name should have, for lists, which read no files."""
    ending = ending_of(path)
    if ending in IMAGE_ENDINGS:
        return "image"
    if ending in RECORDINGS:
        return RECORDINGS[ending].partition("/")[0]
    return TEXTS.get(ending, "other")


def icon_of(path: str) -> str:
    """Return the icon for a file of this name."""
    return ICONS.get(kind_by_name(path), "file")
