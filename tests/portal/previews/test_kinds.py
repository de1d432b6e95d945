"""What a file is taken for: images and recordings by their bytes, texts by their name, and only if they are text."""

import pytest

from portal.previews.decoding import decode, without_ansi
from portal.previews.kinds import kind_of, recording_type
from portal.previews.tags import file_icon, has_thumbnail, visible
from tests.portal.files import picture

MP4 = b"\0\0\0\x18ftypmp42" + bytes(12)


@pytest.mark.parametrize(
    ("path", "data", "kind"),
    [
        *((f"a.{kind.lower()}", picture(kind), "image") for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP")),
        ("image.txt", picture("PNG"), "image"),
        ("a.png", b"<svg onload=alert(1)>", "text"),
        ("a.png", bytes(40), "other"),
        ("BMW.txt", b"BMW and other cars", "text"),
        ("a.svg", b"<svg><script/></svg>", "text"),
        ("a.tiff", b"II*\0" + bytes(40), "other"),
        ("a.HTML", b"<p>", "html"),
        ("table.csv", b"a,b\n", "table"),
        ("table.csv", b"a,\0b" * 20, "other"),
        ("table.csv", b"a,b,c,d,e\0f,g\n" * 20, "table"),
        ("table.csv", "a;b\n".encode("utf-16"), "table"),
        ("a.csv.gz", b"\x1f\x8b\x08\0" + bytes(40), "other"),
        ("a.ipynb", b"{}", "notebook"),
        ("a.json", b"\xff\xff\xff\xff", "other"),
        ("README.md", b"# x", "markdown"),
        ("notes", b"text", "text"),
        ("a.mp4", MP4, "video"),
        ("a.m4a", MP4, "audio"),
        ("a.mp4", b"<script>alert(1)</script>", "text"),
        ("a.html", MP4, "other"),
        ("a.wav", b"RIFF\0\0\0\0WAVEfmt ", "audio"),
        ("a.webp", b"RIFF\0\0\0\0WAVEfmt " + bytes(40), "other"),
        ("a.mp3", b"ID3\4" + bytes(20), "audio"),
        ("a.flac", b"fLaC" + bytes(20), "audio"),
        ("a.ogg", b"OggS" + bytes(20), "audio"),
        ("a.webm", b"\x1a\x45\xdf\xa3" + bytes(20), "video"),
        (".hidden", b"x", "text"),
        ("folder.csv/file", b"x", "text"),
    ],
)
def test_a_file_is_what_name_and_content_agree_on(path: str, data: bytes, kind: str) -> None:
    assert kind_of(path, data, len(data)) == kind


@pytest.mark.parametrize("path", ["a.html", "a.svg", "a", "a.js", "a.xml", "a.png"])
def test_no_other_type_is_ever_sent_as_it_is(path: str) -> None:
    for head in (MP4, b"ID3", b"OggS", b"fLaC", b"RIFF\0\0\0\0WAVE", b"\x1a\x45\xdf\xa3"):
        assert recording_type(path, head) is None


@pytest.mark.parametrize(
    ("data", "text", "encoding"),
    [
        ("é€".encode(), "é€", ""),
        (b"\xef\xbb\xbfa", "a", ""),
        (b"a caf\xe9 for 3 \x80", "a café for 3 €", "Windows-1252"),
        ("añb".encode("utf-16"), "añb", "UTF-16"),
        ("añb".encode("utf-16-be").join([b"\xfe\xff", b""]), "añb", "UTF-16"),
        (b"\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m", ""),
    ],
)
def test_text_is_decoded_in_common_encodings(data: bytes, text: str, encoding: str) -> None:
    found = decode(data, complete=True)
    assert found is not None and (found.text, found.encoding) == (text, encoding)


@pytest.mark.parametrize(
    "data", [b"\0", b"\xff\xfe\0", b"\x7fELF\x02\x01\x01\0", bytes(range(128, 256)) * 4, b"\x80\x02}q\x01."]
)
def test_bytes_that_are_no_text_are_not_decoded(data: bytes) -> None:
    assert decode(data, complete=True) is None


def test_a_character_that_is_cut_is_left_out() -> None:
    data = "text, aé".encode()[:-1]
    cut = decode(data, complete=False)
    assert cut is not None and cut.text == "text, a"
    whole = decode(data, complete=True)
    assert whole is not None and whole.encoding == "Windows-1252"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("10 %\r50 %\r100 %\nnext\r\n", "100 %\nnext\n"),
        ("\x1b]0;title\x07x\x1b]8;;https://e.org\x1b\\link", "xlink"),
        ("\x1b[", "["),
        ("a\x1b", "a"),
    ],
)
def test_colours_and_overwritten_lines_of_a_terminal_are_left_out(text: str, shown: str) -> None:
    assert without_ansi(text) == shown


def test_hostile_escape_sequences_take_no_time() -> None:
    assert without_ansi("\x1b]" * 200_000) == ""
    assert len(without_ansi("\x1b[" + "1;" * 200_000)) < 500_000


def test_names_show_what_would_hide_or_reorder_them() -> None:
    assert visible("photo\u202egpj.exe") == "photo\\u202egpj.exe"
    assert visible("a\nb\x00\u2028") == "a\\u000ab\\u0000\\u2028"
    assert visible("füße 图片 👩‍💻.png") == "füße 图片 👩‍💻.png"


def test_lists_show_small_images_of_files_of_a_fair_size() -> None:
    assert has_thumbnail("a/B.PNG", 1000)
    assert not has_thumbnail("a.png", 0) and not has_thumbnail("a.png", 10**9) and not has_thumbnail("a.svg", 10)
    assert file_icon("a.png") == "image" and file_icon("x") == "file"
