"""Images: decoded and encoded again, so that a browser gets pixels and nothing else that was in the file."""

import io
import warnings
from typing import Any

from PIL import Image, ImageOps

from portal.previews.kinds import IMAGES

MAX_PIXELS = 40_000_000
JPEG_QUALITY = 88


class ImageError(Exception):
    """The image cannot be shown; its text is for the user."""


def encode_again(data: bytes, max_side: int) -> tuple[bytes, dict[str, Any]]:
    """Return the first frame as PNG or JPEG, at most ``max_side`` pixels wide and high, and facts about the image."""
    Image.MAX_IMAGE_PIXELS = None  # checked here, before anything is decoded
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(data), formats=list(IMAGES)) as image:
            return _encode(image, max_side)
    except ImageError:
        raise
    except MemoryError as error:
        raise ImageError("This image needs too much memory to be shown.") from error
    except Exception as error:  # decoders fail in many ways on damaged files
        raise ImageError("This image is damaged or incomplete.") from error


def _encode(image: Image.Image, max_side: int) -> tuple[bytes, dict[str, Any]]:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise ImageError(f"This image has {width:,} × {height:,} pixels, too many to be shown.")
    original = image.format or ""
    is_animated = bool(getattr(image, "is_animated", False))
    image.seek(0)
    image.draft("RGB", (max_side, max_side))  # a JPEG is decoded at a fraction of its size
    image.load()
    shown = _plain(ImageOps.exif_transpose(image))
    if (shown.width > shown.height) != (width > height):
        width, height = height, width  # a camera was turned
    shown.thumbnail((max_side, max_side))
    shown.info = {}  # texts, times, places, colour profiles
    out = io.BytesIO()
    if original == "JPEG":
        shown.convert("L" if shown.mode == "L" else "RGB").save(out, "JPEG", quality=JPEG_QUALITY)
    else:
        shown.save(out, "PNG")
    facts = {
        "format": original,
        "width": width,
        "height": height,
        "is_animated": is_animated,
        "is_smaller": max(width, height) > max_side,
        "type": "image/jpeg" if original == "JPEG" else "image/png",
    }
    return out.getvalue(), facts


def _plain(image: Image.Image) -> Image.Image:
    """Return an image in grey or colours of eight bits, with transparency where there was any."""
    if image.mode.startswith("I"):
        return _from_wide(image)
    if image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info:
        return image.convert("RGBA")
    return image.convert("L" if image.mode in ("1", "L") else "RGB")


def _from_wide(image: Image.Image) -> Image.Image:
    """Return an image of sixteen bits, such as depths, with eight."""
    return image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
