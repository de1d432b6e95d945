"""Masks the secrets of a job in what is written to its logs.

Each occurrence of a secret is replaced, also where it is encoded in base64, in a URL or as a literal of JSON or Python, and
each line of a secret that has several. What is printed in pieces is masked as if it had been printed at once: what may be
the beginning of a secret is held back until more follows. All else is passed on at once. This prevents accidents, not
intent: a program can always write a secret in a form that is not recognised.
"""

import base64
import json
import re
import sys
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, quote_plus

MASK = b"***"
MIN_CHARACTERS = 6
"""Shorter secrets, and shorter lines of secrets, are not masked: they would also hide what has nothing to do with them."""
START_BYTES = 6
"""No form of a secret is shorter, so that this many bytes find those that may begin at a place."""
GRAM_BYTES = 4
"""Text is searched as integers of this size, because Python does that quickly."""
BASE64_COLUMNS = 76
"""The length of the lines of ``base64`` and of MIME."""


class Masking:
    """Masks the secrets with these values. It is true if there is anything to mask. Immutable, so safe to use from all threads."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        found = {form for value in values for form in forms(value)}
        self._forms: dict[bytes, list[bytes]] = {}
        """By their first bytes, the longest first."""
        for form in sorted(found, key=lambda form: (-len(form), form)):
            self._forms.setdefault(form[:START_BYTES], []).append(form)
        self._beginnings = {start[:length] for start in self._forms for length in range(1, START_BYTES)}
        self._grams = {
            int.from_bytes(start[offset : offset + GRAM_BYTES], sys.byteorder)
            for start in self._forms
            for offset in (0, 1)
        }

    def __bool__(self) -> bool:
        return bool(self._forms)

    def mask(self, data: bytes) -> bytes:
        """Return a complete text, masked. Of forms that overlap, the first counts; of those at one place, the longest."""
        return self.search(data, ended=True)[0] if self else data

    def mask_text(self, text: str) -> str:
        return self.mask(text.encode(errors="surrogateescape")).decode(errors="surrogateescape") if self else text

    def mask_json(self, value: Any) -> Any:
        """Return JSON with all its strings masked, except the keys of objects."""
        if isinstance(value, str):
            return self.mask_text(value)
        if isinstance(value, dict):
            return {key: self.mask_json(each) for key, each in value.items()}
        return [self.mask_json(each) for each in value] if isinstance(value, list | tuple) else value

    def search(self, data: bytes, *, ended: bool) -> tuple[bytes, bytes, bytes]:
        """Return the masked beginning of ``data``; the rest, which may be the beginning of a form unless the text has
        ended; and the form that the rest may become, if it is known."""
        parts: list[bytes] = []
        done = 0
        for start in self._candidates(data):
            if start < done:
                continue
            for form in self._forms[data[start : start + START_BYTES]]:
                if data.startswith(form, start):
                    parts += data[done:start], MASK
                    done = start + len(form)
                    break
                if not ended and len(data) - start < len(form) and form.startswith(data[start:]):
                    return b"".join((*parts, data[done:start])), data[start:], form
        last = len(data) if ended else max(done, len(data) - START_BYTES + 1)
        held = next((start for start in range(last, len(data)) if data[start:] in self._beginnings), len(data))
        return b"".join((*parts, data[done:held])), data[held:], b""

    def _candidates(self, data: bytes) -> list[int]:
        """Return the places at which a form may begin, in order.

        Of each form, four bytes from its first or second one on begin at an even place. These are looked up as integers at
        every second place, in two passes; that is much faster than a regular expression of hundreds of forms.
        """
        found: set[int] = set()
        for shift in (0, GRAM_BYTES // 2):
            if (count := (len(data) - shift) // GRAM_BYTES) <= 0:
                continue
            grams = memoryview(data)[shift : shift + count * GRAM_BYTES].cast("I")
            if self._grams.isdisjoint(grams):
                continue
            for number, gram in enumerate(grams):
                if gram in self._grams:
                    place = shift + number * GRAM_BYTES
                    found |= {place, max(0, place - 1)}
        return sorted(place for place in found if data[place : place + START_BYTES] in self._forms)


NO_MASKING = Masking()


class MaskedStream:
    """Masks one stream that arrives in pieces."""

    def __init__(self, masking: Masking) -> None:
        self._masking = masking
        self._held = b""
        self._awaited = b""
        """The form of which the held bytes are the beginning; empty while several may be."""

    def feed(self, data: bytes) -> bytes:
        """Return what can be written now: all but what may be the beginning of a secret."""
        if not self._masking:
            return data
        length = len(self._held)
        if length + len(data) < len(self._awaited) and self._awaited.startswith(data, length):
            self._held += data  # the usual case of a long secret in small pieces: it is not searched again each time
            return b""
        masked, self._held, self._awaited = self._masking.search(self._held + data, ended=False)
        return masked

    def end(self) -> bytes:
        """Return what was held back, masked, because nothing follows."""
        held, self._held, self._awaited = self._held, b"", b""
        return self._masking.mask(held)


def forms(value: str) -> set[bytes]:
    """Return the forms in which a secret is recognised, none for one that is too short."""
    whole = value.strip()
    lines = {line.strip() for line in value.splitlines()}
    found: set[bytes] = set()
    for text in {whole, *lines}:
        if len(text) >= MIN_CHARACTERS:
            found |= _escaped(text)
    if len(whole) >= MIN_CHARACTERS:
        found |= _in_base64(whole.encode())
        found |= _wrapped_base64(value.encode()) | _wrapped_base64(whole.encode())
    return {form for form in found if len(form) >= START_BYTES}


def _escaped(text: str) -> set[bytes]:
    """Return a text as it is, in a URL, and in literals of JSON and Python."""
    in_urls = {quote(text, safe=""), quote(text), quote_plus(text)}
    lower = {re.sub(r"%[0-9A-F]{2}", lambda code: code[0].lower(), each) for each in in_urls}
    literals = {
        json.dumps(text)[1:-1],
        json.dumps(text, ensure_ascii=False)[1:-1],
        repr(text)[1:-1],
        ascii(text)[1:-1],
        repr(text.encode())[2:-1],
    }
    return {each.encode() for each in (text, *in_urls, *lower, *literals)}


def _in_base64(data: bytes) -> set[bytes]:
    """Return the part of a base64 text that these bytes alone determine, for each place where they may begin in a group
    of three, and the whole text with and without its padding; in both alphabets."""
    found = set()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):
            text = encode(bytes(before) + data)
            found.add(text[-(-8 * before // 6) : 8 * (before + len(data)) // 6])
        padded = encode(data)
        found |= {padded, padded.rstrip(b"=")}
    return found


def _wrapped_base64(data: bytes) -> set[bytes]:
    lines = base64.encodebytes(data).splitlines()
    return set(lines) if len(lines) > 1 else set()
