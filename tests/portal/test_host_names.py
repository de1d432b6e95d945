"""Hosts that admins type: what is understood, and what is refused because a resolver could understand it in another way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.host_names import HostError, InternalHostError, read_host
from runners.host.egress import HostRule


@pytest.mark.parametrize(
    ("typed", "canonical"),
    [
        ("packages.example.org", "packages.example.org"),
        (" Packages.Example.org. ", "packages.example.org"),
        ("*.PyTorch.org", "*.pytorch.org"),
        ("mlflow.example.org:5000", "mlflow.example.org:5000"),
        ("*.example.org:8443", "*.example.org:8443"),
        ("8.8.8.8", "8.8.8.8"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("a_b.example.org", "a_b.example.org"),
    ],
)
def test_names_are_kept_in_canonical_form(typed: str, canonical: str) -> None:
    assert str(read_host(typed)) == canonical
    assert HostRule.parse(canonical).pattern == canonical.partition(":")[0]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("", "Write the name"),
        ("https://pypi.org", "without https://"),
        ("pypi.org/simple", "without a path"),
        ("pypi.org\\x", "without a path"),
        ("ada:secret@pypi.org", "alone"),
        ("pypi.org?x", "alone"),
        ("pypi.org pytorch.org", "one name"),
        ("pypi.org\u200b", "one name"),
        ("pypi.org:", "A port"),
        ("pypi.org:0", "A port"),
        ("pypi.org:65536", "A port"),
        ("pypi.org:٣", "A port"),
        ("[2001:db8::1]:443", "alone"),
        ("2001:db8::1", "IPv6"),
        ("*", "star stands"),
        ("*.*.org", "star stands"),
        ("py*.org", "star stands"),
        ("*.org", "too much"),
        ("*.8.8.8.8", "names only"),
        ("-a.org", "not the name"),
        ("a..org", "not the name"),
        (f"{'a' * 64}.org", "not the name"),
        (f"{'a.' * 130}org", "not the name"),
        ("straße.example", "in ASCII"),
        ("localhost", "the node itself"),
        ("a.localhost", "the node itself"),
        ("127.1", "four numbers"),
        ("0x7f.0.0.1", "four numbers"),
        ("2130706433", "four numbers"),
        ("0177.0.0.1", "four numbers"),
        ("8.8.8.8.8", "four numbers"),
        ("127.0.0.1", "node itself"),
        ("169.254.169.254", "service of its machine"),
        ("0.0.0.0", "node itself"),
        ("224.0.0.1", "node itself"),
    ],
)
def test_what_is_not_a_host_is_refused_with_what_to_do(typed: str, words: str) -> None:
    for internal in (False, True):
        with pytest.raises(HostError, match=words):
            read_host(typed, internal=internal)


@pytest.mark.parametrize("typed", ["10.1.2.3", "172.16.0.9:80", "192.168.1.1", "100.64.0.1", "mlflow", "mlflow:5000"])
def test_hosts_of_the_local_network_need_a_confirmation(typed: str) -> None:
    with pytest.raises(InternalHostError, match="Confirm"):
        read_host(typed)
    assert str(read_host(typed, internal=True)) == typed


@given(st.text(max_size=40), st.booleans())
def test_whatever_is_typed_agents_can_read_what_is_kept(typed: str, internal: bool) -> None:
    try:
        found = str(read_host(typed, internal=internal))
    except HostError:
        return
    assert found.isascii() and found == found.lower()
    assert HostRule.parse(f"{found} internal").internal
    assert str(read_host(found, internal=internal)) == found
