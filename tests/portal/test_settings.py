"""Settings from the environment are accepted, or refused with a sentence before anything starts."""

import stat
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from portal import settings


@pytest.mark.parametrize("value", ["true", "1", "Yes"])
def test_switches_are_read(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("SWITCH", value)
    assert settings.env_bool("SWITCH", False) is True


def test_nonsense_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODD", "maybe")
    with pytest.raises(ImproperlyConfigured, match="ODD must be true or false"):
        settings.env_bool("ODD", False)
    for value in ("maybe", "0", "11", "-1", "1.5"):
        monkeypatch.setenv("ODD", value)
        with pytest.raises(ImproperlyConfigured, match="ODD must be a whole number from 1 to 10"):
            settings.env_int("ODD", 5, 1, 10)


def test_a_choice_is_one_of_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.env_choice("RULE", "nothing", "stop") == "nothing"
    monkeypatch.setenv("RULE", "stop")
    assert settings.env_choice("RULE", "nothing", "stop") == "stop"
    monkeypatch.setenv("RULE", "shout")
    with pytest.raises(ImproperlyConfigured, match="RULE must be one of nothing, stop, not 'shout'"):
        settings.env_choice("RULE", "nothing", "stop")


def test_the_site_has_no_slash_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SITE", "https://lab.example:8443/")
    assert settings.env_site("SITE", "") == "https://lab.example:8443"
    assert settings.env_site("OTHER", "http://localhost:8000") == "http://localhost:8000"


@pytest.mark.parametrize(
    "value",
    ["lab.example", "lab.example:8000", "ftp://lab.example", "https://", "https://lab.example/gpus", "http://["],
)
def test_a_site_that_no_link_could_begin_with_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("SITE", value)
    with pytest.raises(ImproperlyConfigured, match="SITE must be like https://"):
        settings.env_site("SITE", "")


def test_a_secret_may_lie_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORD_FILE", str(tmp_path / "word"))
    with pytest.raises(ImproperlyConfigured, match="WORD_FILE .* cannot be read"):
        settings.env_secret("WORD")
    (tmp_path / "word").write_text("sesame\n")
    assert settings.env_secret("WORD") == "sesame"


def test_the_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret_key"
    key = settings.stored_secret_key(path)
    assert len(key) >= 50 and settings.stored_secret_key(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_key_that_another_process_made_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret_key"
    path.write_text("k" * 50)
    monkeypatch.setattr(Path, "exists", lambda self: False)  # as it looked a moment ago
    assert settings.stored_secret_key(path) == "k" * 50


def test_addresses_of_rings_are_private_and_enough_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(settings.env_network("NETWORK", "10.192.0.0/12", 22)) == "10.192.0.0/12"
    for value in ("10.192.0.0/23", "10.192.0.1/12", "8.0.0.0/8", "fd00::/8", "lab"):
        monkeypatch.setenv("NETWORK", value)
        with pytest.raises(ImproperlyConfigured, match="NETWORK must be a private network"):
            settings.env_network("NETWORK", "10.192.0.0/12", 22)
