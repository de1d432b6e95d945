"""Which addresses lie below one that an admin has allowed, and every trick by which another could look as if it did."""

import re
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portal.projects.package_lists.sources import AddressError, UninstallableError, check_allowed, check_prefix, parse
from tests.examples import examples

ALLOWED = ("https://good.example.org/whl/", "git+https://git.example.org/lab", "https://port.example.org:8443/")
DIGEST = "ab" * 32


def is_allowed(address: str) -> bool:
    try:
        check_allowed(address, ALLOWED)
    except AddressError as error:
        assert str(error).endswith(".")
        return False
    return True


@pytest.mark.parametrize(
    ("address", "canonical"),
    [
        ("https://good.example.org/whl/", None),
        ("https://good.example.org/whl", None),
        ("https://good.example.org/whl/cu121/", None),
        ("HTTPS://Good.Example.ORG:443/whl/cpu", "https://good.example.org/whl/cpu"),
        ("https://good.example.org/whl/a-1%2Bcpu-py3-none-any.whl", None),
        (
            "https://good.example.org/whl/a-1%2bcpu-py3-none-any.whl",
            "https://good.example.org/whl/a-1%2Bcpu-py3-none-any.whl",
        ),
        (
            f"https://good.example.org/whl/a.whl#sha256={DIGEST.upper()}",
            f"https://good.example.org/whl/a.whl#sha256={DIGEST}",
        ),
        ("https://good.example.org/whl/a.zip#egg=a", "https://good.example.org/whl/a.zip"),
        ("https://port.example.org:8443/x", None),
    ],
)
def test_an_address_below_an_allowed_one_is_taken_in_canonical_form(address: str, canonical: str | None) -> None:
    assert str(check_allowed(address, ALLOWED)) == (canonical or address)


@pytest.mark.parametrize(
    "address",
    [
        "https://good.example.org@evil.example.com/whl/",
        "https://good.example.org:x@evil.example.com/whl/",
        "https://user:secret@good.example.org/whl/",
        "https://@good.example.org/whl/",
        "https://good.example.org.evil.example.com/whl/",
        "https://evilgood.example.org/whl/",
        "https://good.example.org./whl/",
        "https://good.example.org/whl/../../x",
        "https://good.example.org/whl/..",
        "https://good.example.org/whl/./x",
        "https://good.example.org/whl/%2e%2e/x",
        "https://good.example.org/whl/%2E./x",
        "https://good.example.org/whl/..%2fx",
        "https://good.example.org/whl/%252e%252e/x",
        "https://good.example.org/whl//x",
        "https://good.example.org//whl/x",
        "https://good.example.org/whlx/",
        "https://good.example.org/WHL/",
        "https://good.example.org/",
        "https://good.example.org",
        "http://good.example.org/whl/",
        "git+https://good.example.org/whl/",
        "ftp://good.example.org/whl/",
        "file:///whl/",
        "https:/good.example.org/whl/",
        "https:good.example.org/whl/",
        "//good.example.org/whl/",
        "https://good.example.org:8443/whl/",
        "https://good.example.org:/whl/",
        "https://good.example.org:0443/whl/x y",
        "https://good.example.org:443:80/whl/",
        "https://good.example.org\\@evil.example.com/whl/",
        "https://good.example.org\\whl\\",
        "https://evil.example.com\\@good.example.org/whl/",
        "https://evil.example.com#@good.example.org/whl/",
        "https://evil.example.com?@good.example.org/whl/",
        "https://evil.example.com/https://good.example.org/whl/",
        "https://good.example.org/whl/?to=x",
        "https://good.example.org/whl/;x",
        "https://good.example.org/whl/x#egg=-e",
        "https://good.example.org/whl/x#subdirectory=x",
        "https://good.example.org/whl/x#subdirectory=../x",
        "https://good.example.org/whl/x#subdirectory=/x",
        "https://good.example.org/whl/x#sha256=12",
        "https://good.example.org/whl/x#md5=12",
        f"https://good.example.org/whl/x#sha256={DIGEST}&sha256={DIGEST}",
        "https://good.example.org/whl/x#egg=a#egg=b",
        "https://good.example.org/whl/\nx",
        "https://good.example.org/whl/\tx",
        " https://good.example.org/whl/",
        "https://good.example.org/whl/${HOME}",
        "https://gооd.example.org/whl/",  # two Cyrillic letters
        "https://good。example.org/whl/",
        "https://ｇood.example.org/whl/",
        "https://xn--god-sma.example.org/whl/",
        "https://[::1]/whl/",
        "https://good.example.org%00.evil.example.com/whl/",
        "https://good_.example.org/whl/",
        "git+https://git.example.org/lab/tool.git@v1.2",
        "git+https://git.example.org/lab/tool@-x",
        "git+https://git.example.org/lab/tool@a/../b",
        "git+https://git.example.org/lab/tool@a@b",
        "git+https://git.example.org/laboratory/tool",
        "git+ssh://git@git.example.org/lab/tool",
        "git+file:///lab/tool",
        "git+git://git.example.org/lab/tool",
        "https://good.example.org/whl/x@y",
        "https://port.example.org/x",
        "https://port.example.org:08443x/x",
        "https://good.example.org/whl/" + "x" * 600,
        "",
    ],
)  # fmt: skip
def test_a_trick_is_not_taken(address: str) -> None:
    assert not is_allowed(address)


def test_an_empty_fragment_is_dropped() -> None:
    assert str(check_allowed("https://good.example.org/whl/x#", ALLOWED)) == "https://good.example.org/whl/x"


def test_a_repository_that_an_earlier_release_let_an_admin_allow_allows_nothing() -> None:
    repository = "git+https://git.example.org/lab/tool@v1"
    with pytest.raises(UninstallableError, match="Put a wheel of it on an allowed source"):
        check_allowed(repository, [repository])
    with pytest.raises(UninstallableError, match="Put a wheel of it on an allowed source"):
        check_allowed(repository, [])
    with pytest.raises(AddressError, match="Allow a folder of wheels, or an index"):
        check_prefix(repository)


def test_a_prefix_is_stored_in_canonical_form_and_a_bad_one_allows_nothing() -> None:
    assert check_prefix("HTTPS://Good.example.org:443/whl/") == "https://good.example.org/whl/"
    for bad in ("good.example.org", "https://a@b/", "https://x/#egg=a", "https://x/../", "*", "https://*.example.org/"):
        with pytest.raises(AddressError):
            check_prefix(bad)
        with pytest.raises(AddressError):
            check_allowed("https://good.example.org/whl/x", [bad])


PIECES = st.sampled_from(
    ["https://", "git+https://", "http://", "good.example.org", "evil.example.com", "/whl/", "/whl", "..", ".", "/", "//", "@", ":",
     "\\", "%2e", "%2f", "%40", "#", "?", "&", "egg=a", "sha256=", "subdirectory=", "x", "xn--", "443", ":443", " ", "\t", "\n", "\0", "é",
     "git.example.org/lab", "[", "]", "*", "-"]
)  # fmt: skip
ADDRESSES = st.lists(PIECES, max_size=9).map("".join) | st.text(max_size=60)
CONTINUED = ADDRESSES.map(lambda rest: "https://good.example.org" + rest) | ADDRESSES.map(
    lambda rest: ALLOWED[0] + rest
)


@settings(max_examples=examples(2000, 200))
@given(ADDRESSES | CONTINUED)
def test_whatever_is_taken_goes_to_the_allowed_host_by_every_reading(address: str) -> None:
    if not is_allowed(address):
        return
    canonical = str(check_allowed(address, ALLOWED))
    assert canonical.startswith(ALLOWED) or canonical in [prefix.rstrip("/") for prefix in ALLOWED]
    for text in (address, canonical):
        parts = urlsplit(text)
        assert f"{parts.scheme}://{parts.hostname}" in ("https://good.example.org", "https://port.example.org")
        assert parts.username is None and not parts.query and ".." not in parts.path.split("/") and "\\" not in text
    assert re.fullmatch(r"[!-~]+", canonical)
    assert parse(canonical) == parse(str(parse(canonical))) and is_allowed(canonical)
