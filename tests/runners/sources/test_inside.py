"""The parts of the program inside that decide: addresses of submodules, credentials, pointers."""

import pytest

from runners.sources.inside.archive import read_pointer
from runners.sources.inside.credential import answer
from runners.sources.inside.submodules import host_of, is_among, resolved

PARENT = "https://git.example.org/lab/train.git"


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("../net.git", "https://git.example.org/lab/net.git"),
        ("../../other/net", "https://git.example.org/other/net"),
        ("./part", "https://git.example.org/lab/train.git/part"),
        ("https://github.com/lab/net.git", "https://github.com/lab/net.git"),
        ("git@github.com:lab/net.git", "ssh://git@github.com/lab/net.git"),
        ("ext::sh -c 'touch /tmp/x'", ""),
        ("file:///etc/passwd", ""),
        ("/etc/passwd", ""),
        ("git://github.com/lab/net", ""),
        ("http://github.com/lab/net", ""),
        ("--upload-pack=touch", ""),
        ("-u./payload", ""),
        ("ssh://-oProxyCommand=x/y", ""),
        ("ssh://-l@example.org/y", ""),
        ("ssh://-x/y", ""),
        ("https://github.com/-x", ""),
        ("https://robot:t@github.com/x", ""),
        ("../../../../../etc", "https://git.example.org/etc"),
        ("https://github.com/a\nb", ""),
        ("", ""),
    ],
)
def test_addresses_of_submodules(address: str, found: str) -> None:
    assert resolved(PARENT, address) == found


def test_hosts_of_submodules() -> None:
    assert host_of("https://git.example.org/x") == "git.example.org:443"
    assert host_of("ssh://git@git.example.org:2222/x") == "git.example.org:2222"
    rules = ["git.example.org:443", "*.lab.org:22"]
    assert is_among(rules, "git.example.org:443") and is_among(rules, "a.lab.org:22")
    assert not is_among(rules, "git.example.org:22") and not is_among(rules, "lab.org:22")
    assert not is_among(rules, "evil-git.example.org:443")


def test_credentials_go_to_their_host_alone() -> None:
    known = {"host": "git.example.org:8443", "user": "robot", "token": "t0ken"}
    asked = {"protocol": "https", "host": "git.example.org:8443", "path": "lab/train.git"}
    assert answer(asked, known) == "username=robot\npassword=t0ken\n"
    for other in ({"host": "git.example.org"}, {"host": "evil.org"}, {"protocol": "http"}, {"protocol": "ssh"}):
        assert answer(asked | other, known) == ""
    assert answer(asked, known | {"token": ""}) == ""


def test_pointers_of_lfs() -> None:
    text = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 12345\n"
    pointer = read_pointer(text, "100644", "weights.bin")
    assert pointer is not None and (pointer.name, pointer.size) == ("a" * 64, 12345)
    assert read_pointer(b"version https://git-lfs.github.com/spec/v1\nmore", "100644", "x") is None
