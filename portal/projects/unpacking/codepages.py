"""Names of zips that state no encoding: UTF-8, that of the zip format, or the code page of an old Windows.

The encodings share their bytes, so a few short names may be read wrongly: the upload's notes name the one that was chosen.
"""

import re
from collections.abc import Callable, Sequence
from itertools import groupby

ZIP_ENCODING = "cp437"
WESTERN = re.compile(r"[\x20-\x7eÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜáíóúñÑß]*")
"""What names in Western languages consist of, in the encoding of the zip format."""
COMMON_HANZI_LEADS = range(0xB0, 0xD8)
"""The first bytes of the most common Chinese characters in GB 2312."""
SURE_SYLLABLES = 6
"""So many characters that all could be Korean are no accident in Chinese."""


def decode_names(names: Sequence[bytes]) -> tuple[list[str], str]:
    """Return the names as text, and the name of the code page that was guessed; empty where nothing was guessed."""
    try:  # many tools write UTF-8 without stating it
        return [name.decode() for name in names], ""
    except UnicodeDecodeError:
        pass
    for encoding, title, is_plausible in ENCODINGS:
        try:
            decoded = [name.decode(encoding) for name in names]
        except UnicodeDecodeError:
            continue
        if is_plausible("".join(decoded)):
            return decoded, title
    return [name.decode(ZIP_ENCODING) for name in names], "the zip format (CP437)"


def _beyond_ascii(text: str) -> str:
    return "".join(character for character in text if not character.isascii())


def _is_korean(text: str) -> bool:
    foreign = _beyond_ascii(text)
    return len(foreign) >= SURE_SYLLABLES and _is_hangul(text)


def _is_hangul(text: str) -> bool:
    return re.fullmatch(r"[\uac00-\ud7a3]+", _beyond_ascii(text)) is not None


def _is_chinese(text: str) -> bool:
    """Whether most characters are common ones: Cyrillic letters read as Chinese are rare ones."""
    foreign = _beyond_ascii(text)
    common = sum(character.encode("gb2312")[0] in COMMON_HANZI_LEADS for character in foreign)
    return _is_han(text) and common > 0.7 * len(foreign)


def _is_han(text: str) -> bool:
    return re.fullmatch(r"[\u4e00-\u9fff]+", _beyond_ascii(text)) is not None


def _is_japanese(text: str) -> bool:
    """Whether characters stand together: an accented letter and the next one may also make one, but only one."""
    runs = [len(list(run)) for ascii_, run in groupby(text, str.isascii) if not ascii_]
    expected = re.fullmatch(r"[\u4e00-\u9fff\u3040-\u30ff]+", _beyond_ascii(text)) is not None
    return expected and sum(runs) >= 2 * len(runs)


def _is_western(text: str) -> bool:
    return WESTERN.fullmatch(text) is not None


def _is_cyrillic(text: str) -> bool:
    return re.fullmatch(r"[а-яёА-ЯЁ]+", _beyond_ascii(text)) is not None


ENCODINGS: tuple[tuple[str, str, Callable[[str], bool]], ...] = (
    ("euc_kr", "Korean (EUC-KR)", _is_korean),
    ("gb2312", "simplified Chinese (GBK)", _is_chinese),
    ("shift_jis", "Japanese (Shift-JIS)", _is_japanese),
    (ZIP_ENCODING, "", _is_western),
    ("cp1251", "Cyrillic (Windows-1251)", _is_cyrillic),
    ("cp866", "Cyrillic (DOS 866)", _is_cyrillic),
    ("euc_kr", "Korean (EUC-KR)", _is_hangul),
    ("big5", "traditional Chinese (Big5)", _is_han),
    ("gbk", "simplified Chinese (GBK)", _is_han),
)
"""The encodings that are tried, with their names for users and what shows that the text is in them."""
