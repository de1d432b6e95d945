"""Encrypting with the keys of a file."""

from pathlib import Path
from typing import Any

import pytest

from portal import sealing


@pytest.fixture
def home(settings: Any, tmp_path: Path) -> Path:
    settings.HOME = tmp_path
    return tmp_path


def test_a_text_comes_back_and_the_key_is_made_once_for_its_owner_alone(home: Path) -> None:
    sealed = sealing.seal("t0ken", "a_key")
    assert "t0ken" not in sealed and sealing.unseal(sealed, "a_key") == "t0ken"
    assert (home / "a_key").stat().st_mode & 0o777 == 0o600
    assert sealing.seal("", "a_key") == "" and sealing.unseal("", "a_key") == ""


def test_the_first_key_seals_and_each_unseals(home: Path) -> None:
    path = home / "a_key"
    path.write_text("old\n")
    old = sealing.seal("t0ken", "a_key")
    path.write_text("new\nold\n")
    new = sealing.seal("t0ken", "a_key")
    assert sealing.unseal(old, "a_key") == sealing.unseal(new, "a_key") == "t0ken"
    path.write_text("new\n")
    assert sealing.unseal(old, "a_key") is None and sealing.unseal(new, "a_key") == "t0ken"


def test_a_key_of_an_earlier_release_may_have_spaces(home: Path) -> None:
    (home / "a_key").write_text("of several words\n")
    assert sealing.keys_in(home / "a_key") == ["of several words"]


def test_nothing_is_sealed_with_an_empty_key(home: Path) -> None:
    sealed = sealing.seal("t0ken", "a_key")
    (home / "a_key").write_text("\n")
    assert sealing.unseal(sealed, "a_key") is None
    with pytest.raises(sealing.NoKeyError, match="is empty"):
        sealing.seal("t0ken", "a_key")
