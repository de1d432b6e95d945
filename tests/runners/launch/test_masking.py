"""Secrets are masked in what a job prints, however it is split into pieces, and all else arrives at once and unchanged."""

import base64
import json
import time
from urllib.parse import quote, quote_plus

from hypothesis import given
from hypothesis import strategies as st

from runners.launch.masking import MASK, MaskedStream, Masking

TOKEN = "hf_Ab/c+d?e~f 0ü"
KEY = "-----BEGIN KEY-----\nMIIEvQIBADAN\nx\nBgkqhkiG9w0B\n-----END KEY-----\n"

SECRETS = st.lists(st.text("ab01/+ \n'\"üé", min_size=6, max_size=40), max_size=4)
"""Few letters, so that secrets overlap, and texts have their beginnings."""
PIECES = st.lists(st.text("ab01/+ \n'\"üé", max_size=12).map(str.encode), max_size=12)


def in_pieces(masking: Masking, pieces: list[bytes]) -> bytes:
    stream = MaskedStream(masking)
    return b"".join([*(stream.feed(piece) for piece in pieces), stream.end()])


@st.composite
def printed(draw: st.DrawFn) -> tuple[list[str], list[bytes]]:
    """Some secrets, and pieces of a text that has some of them and parts of them."""
    secrets = draw(SECRETS)
    text = b""
    for piece in draw(PIECES):
        text += piece
        if secrets:
            encoded = draw(st.sampled_from(secrets)).encode()
            encoded = draw(st.sampled_from((encoded, base64.b64encode(piece + encoded), quote(encoded).encode())))
            begin, end = draw(st.integers(0, 3)), draw(st.integers(0, 3))
            text += encoded[begin : len(encoded) - end] if draw(st.booleans()) else encoded
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=10)))
    return secrets, [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(printed())
def test_pieces_are_masked_as_the_whole_and_no_secret_is_left(example: tuple[list[str], list[bytes]]) -> None:
    secrets, pieces = example
    masking = Masking(secrets)
    whole = masking.mask(b"".join(pieces))
    assert in_pieces(masking, pieces) == whole
    for secret in secrets:
        if len(secret.strip()) >= 6:
            assert secret.strip().encode() not in whole
            assert base64.b64encode(secret.strip().encode()) not in whole
        for line in secret.splitlines():
            assert len(line.strip()) < 6 or line.strip().encode() not in whole


@given(st.lists(st.binary(max_size=50), max_size=20), st.lists(st.text(max_size=5)))
def test_without_secrets_everything_arrives_unchanged_at_once(pieces: list[bytes], short: list[str]) -> None:
    masking = Masking(short)
    assert not masking
    stream = MaskedStream(masking)
    for piece in pieces:
        assert stream.feed(piece) == piece
    assert stream.end() == b""


@given(st.text(min_size=6, max_size=60).filter(lambda text: len(text.strip()) >= 6 and "*" not in text), st.data())
def test_a_secret_is_masked_in_each_form(secret: str, data: st.DataObject) -> None:
    masking, secret = Masking([secret]), secret.strip()
    before, after = data.draw(st.binary(max_size=9)), data.draw(st.binary(max_size=9))
    url = quote(secret, safe="")
    for form in (secret, url, url.lower() if url.isascii() and secret.islower() else url, quote_plus(secret)):
        assert masking.mask(b"<" + form.encode() + b">") == b"<***>"
    for literal in (json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret), ascii(secret)):
        assert masking.mask_text(literal)[1:-1] == "***"
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        assert masking.mask(encode(secret.encode())) == MASK == masking.mask(encode(secret.encode()).rstrip(b"="))
        assert MASK in masking.mask(encode(before + secret.encode() + after))


def test_only_a_few_bits_of_a_secret_inside_a_longer_base64_text_are_left() -> None:
    secret = b"correct horse battery"
    for before in range(4):
        for after in range(4):
            encoded = base64.b64encode(b"u" * before + secret + b"v" * after)
            masked = Masking([secret.decode()]).mask(encoded)
            start, _, end = masked.partition(MASK)
            assert len(start) - 4 * before / 3 < 2 and len(end.rstrip(b"=")) - 4 * after / 3 < 2, masked


def test_each_long_line_of_a_secret_is_masked() -> None:
    masking = Masking([KEY])
    assert masking.mask(b"> MIIEvQIBADAN\r\n> x\n> BgkqhkiG9w0B\n") == b"> ***\r\n> x\n> ***\n"
    assert masking.mask(KEY.encode()) == b"***\n"
    assert set(masking.mask(base64.encodebytes(KEY.encode())).split()) == {MASK}
    assert masking.mask_text(repr(KEY)) == "'***\\n'"


def test_what_cannot_be_a_secret_is_written_at_once() -> None:
    stream = MaskedStream(Masking([TOKEN]))
    assert stream.feed(b"\r 10 %") == b"\r 10 %"
    assert stream.feed(b" hf_A") == b" "
    assert stream.feed(b"b/c") == b""
    assert stream.feed(b" no.") == b"hf_Ab/c no."
    assert stream.feed(b"hf_") == b"" and stream.end() == b"hf_"


def test_the_longest_of_two_secrets_counts() -> None:
    stream = MaskedStream(Masking(["password", "password-of-root"]))
    assert stream.feed(b"password") == b""
    assert stream.feed(b"-of-") == b""
    assert stream.feed(b"root password-of-me") == b"*** ***-of-me"


def test_a_long_secret_in_single_bytes() -> None:
    secret = "0123456789abcdef" * 4000
    masking = Masking([secret])
    assert in_pieces(masking, [bytes([byte]) for byte in f"<{secret}>{secret[:-1]}".encode()]) == (
        b"<***>" + secret[:-1].encode()
    )


def test_short_secrets_are_not_masked() -> None:
    assert Masking(["12345", " 12345 ", ""]).mask(b"12345") == b"12345"


def test_json_is_masked_in_its_strings() -> None:
    masking = Masking(["tokens"])
    content = {"code": 1, "detail": "tokens", "parts": ["a tokens", None, {"x": ("tokens",)}]}
    assert masking.mask_json(content) == {"code": 1, "detail": "***", "parts": ["a ***", None, {"x": ["***"]}]}


def test_a_busy_stream_with_many_secrets_is_masked_quickly() -> None:
    secrets = [base64.b64encode(bytes([number] * 3) + b"secret of a job").decode() for number in range(50)]
    stream = MaskedStream(Masking(secrets))
    line = b"epoch 12 step 1234 loss=0.12345 accuracy=0.9876 1234.5 images/s, tokens 12\n"
    chunk = line * (65536 // len(line))
    began = time.process_time()
    for _ in range(10_000_000 // len(chunk)):
        assert stream.feed(chunk) == chunk
    assert time.process_time() - began < 5, "10 MB; it takes 0.1 to 0.3 s"
