"""Names of images: what they are in full, what is refused, and what a prefix allows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.environments.image_names import (
    ImageNameError,
    full_name,
    full_prefix,
    is_allowed,
    registry_host,
    registry_of,
)
from runners.environments.registry_images import ImageName

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("written", "full"),
    [
        ("ubuntu", "docker.io/library/ubuntu:latest"),
        (" ubuntu:24.04 ", "docker.io/library/ubuntu:24.04"),
        ("pytorch/pytorch:2.8.0-cuda12.9", "docker.io/pytorch/pytorch:2.8.0-cuda12.9"),
        ("docker.io/ubuntu", "docker.io/library/ubuntu:latest"),
        ("index.docker.io/library/ubuntu", "docker.io/library/ubuntu:latest"),
        ("registry-1.docker.io/lab/train:1", "docker.io/lab/train:1"),
        ("GHCR.io/lab/train:V1", "ghcr.io/lab/train:V1"),
        ("localhost/train", "localhost/train:latest"),
        ("localhost:5000/train", "localhost:5000/train:latest"),
        ("registry.example.org:5000/a/b/c:1", "registry.example.org:5000/a/b/c:1"),
        (f"ghcr.io/lab/train:1@{DIGEST}", f"ghcr.io/lab/train@{DIGEST}"),
        ("a__b/c-d--e.f_g:_", "docker.io/a__b/c-d--e.f_g:_"),
    ],
)
def test_a_name_in_full(written: str, full: str) -> None:
    assert full_name(written) == full
    assert full_name(full) == full
    ImageName.parse(full)  # agents accept it, too


@pytest.mark.parametrize(
    "written",
    [
        "",
        "https://ghcr.io/lab/train",
        "user@ghcr.io/lab/train",
        "user:secret@ghcr.io/lab/train:1",
        "ghcr.io",
        "ghcr.io/",
        "ghcr.io/Lab/train",
        "ghcr.io//train",
        "ghcr.io/lab/../other/train",
        "ghcr.io/lab/./train",
        "ghcr.io/lab/..",
        "../train",
        "/train",
        "-v/train",
        "--privileged",
        "ghcr.io/lab/train:",
        "ghcr.io/lab/train:-x",
        "ghcr.io/lab/train:a:b",
        "ghcr.io/lab/train@sha256:abc",
        "ghcr.io/lab/train@latest",
        f"ghcr.io/lab/train@{DIGEST}@{DIGEST}",
        "ghcr.io:99999/lab/train",
        "ghcr.io:0/lab/train",
        "ghcr.io:/lab/train",
        "ghcr..io/lab/train",
        "ghcr.io./lab/train",
        "[::1]:5000/train",
        "gһcr.io/lab/train",
        "xn--gcr-n8d.io/lab/train",
        "ghcr.io/lab/tra in",
        "ghcr.io/lab/train\n",
        "ghcr.io/lab/train\0",
        "ghcr.io/lab/train?x=1",
        "ghcr.io/lab/train#x",
        "ghcr.io\\lab/train",
        "ghcr.io/lab/%2e%2e/train",
        "ghcr.io/" + "a" * 300,
    ],
)
def test_what_is_not_accepted(written: str) -> None:
    if written.endswith("\n"):
        assert full_name(written) == full_name(written.strip())
        return
    with pytest.raises(ImageNameError) as caught:
        full_name(written)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("shown", ["sha256:0f3a9c", "sha256:" + "a1" * 32, "SHA256:" + "B2" * 32, "c3" * 32])
def test_the_id_of_an_image_on_one_machine_is_refused(shown: str) -> None:
    with pytest.raises(ImageNameError, match="the id of an image on one machine. Give its name in a registry"):
        full_name(shown)


@pytest.mark.parametrize(
    ("written", "prefix"),
    [
        ("ghcr.io", "ghcr.io"),
        ("ghcr.io/", "ghcr.io"),
        ("ghcr.io/lab/", "ghcr.io/lab"),
        ("ghcr.io/lab", "ghcr.io/lab"),
        ("docker.io/pytorch/pytorch", "docker.io/pytorch/pytorch"),
        ("ubuntu", "docker.io/library/ubuntu"),
        ("pytorch/", "docker.io/pytorch"),
        ("pytorch/pytorch", "docker.io/pytorch/pytorch"),
        ("registry.example.org:5000", "registry.example.org:5000"),
        ("localhost:5000/lab", "localhost:5000/lab"),
        ("docker.io", "docker.io"),
    ],
)
def test_a_prefix_in_full(written: str, prefix: str) -> None:
    assert full_prefix(written) == prefix
    assert full_prefix(prefix) == prefix


@pytest.mark.parametrize(
    "written", ["", "/", "*", "ghcr.io/*", "ghcr.io/lab:1", "https://ghcr.io", "a@b", "ghcr.io/../x"]
)
def test_a_prefix_that_is_not_accepted(written: str) -> None:
    with pytest.raises(ImageNameError):
        full_prefix(written)


def test_a_prefix_allows_whole_parts_only() -> None:
    cases = {
        ("ghcr.io/lab/train", "ghcr.io/lab"): True,
        ("ghcr.io/lab", "ghcr.io/lab"): True,
        ("ghcr.io/lab-of-others/train", "ghcr.io/lab"): False,
        ("ghcr.io/other/lab/train", "ghcr.io/lab"): False,
        ("ghcr.io.example.org/lab/train", "ghcr.io"): False,
        ("ghcr.io:443/lab/train", "ghcr.io"): False,
        ("ghcr.io/anything/at/all:3", "ghcr.io"): True,
        ("ubuntu", "ubuntu"): True,
        ("library/ubuntu:24.04", "ubuntu"): True,
        ("ubuntu2", "ubuntu"): False,
        ("example.org/library/ubuntu", "ubuntu"): False,
        ("pytorch/pytorch", "pytorch/"): True,
        ("pytorch", "pytorch/"): False,
        ("localhost/ubuntu", "ubuntu"): False,
    }
    for (image, prefix), allowed in cases.items():
        assert is_allowed(full_name(image), [full_prefix(prefix)]) is allowed, (image, prefix)
    assert not is_allowed(full_name("ubuntu"), [])


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("https://quay.io", "without https://: quay.io"),
        ("http://Reg.example.org:5000/v2/", "without https://: Reg.example.org:5000."),
        ("https://", "such as ghcr.io"),
    ],
)
def test_a_registry_with_a_scheme_learns_how_to_write_it(written: str, words: str) -> None:
    with pytest.raises(ImageNameError) as refused:
        registry_host(written)
    assert words in str(refused.value) and "NAME:TAG" not in str(refused.value)
    with pytest.raises(ImageNameError, match="a registry, such as ghcr.io, or a beginning of names"):
        full_prefix("https://quay.io/lab")


def test_a_registry() -> None:
    assert registry_host("Registry.Example.org:5000/") == "registry.example.org:5000"
    assert registry_host("index.docker.io") == "docker.io"
    assert registry_of(full_name("registry.example.org:5000/a")) == "registry.example.org:5000"
    for written in ("", "https://x.org", "user@x.org", "x.org/path", "x.org:99999", "ü.org"):
        with pytest.raises(ImageNameError):
            registry_host(written)


@given(st.text(alphabet="abAB01.:/@-_ üsha256", max_size=40))
def test_every_accepted_name_is_its_own_full_name_and_means_the_same_to_agents(text: str) -> None:
    try:
        full = full_name(text)
    except ImageNameError:
        return
    assert full_name(full) == full
    assert ImageName.parse(full).registry == registry_of(full)
