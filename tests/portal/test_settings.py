"""Settings from the environment are accepted, or refused with a sentence before anything starts."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from portal import environ, settings


@pytest.mark.parametrize("value", ["true", "1", "Yes"])
def test_switches_are_read(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("SWITCH", value)
    assert environ.env_bool("SWITCH", False) is True


def test_nonsense_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODD", "maybe")
    with pytest.raises(ImproperlyConfigured, match="ODD must be true or false"):
        environ.env_bool("ODD", False)
    for value in ("maybe", "0", "11", "-1", "1.5"):
        monkeypatch.setenv("ODD", value)
        with pytest.raises(ImproperlyConfigured, match="ODD must be a whole number from 1 to 10"):
            environ.env_int("ODD", 5, 1, 10)


def test_a_choice_is_one_of_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environ.env_choice("RULE", "nothing", "stop") == "nothing"
    monkeypatch.setenv("RULE", "stop")
    assert environ.env_choice("RULE", "nothing", "stop") == "stop"
    monkeypatch.setenv("RULE", "shout")
    with pytest.raises(ImproperlyConfigured, match="RULE must be one of nothing, stop, not 'shout'"):
        environ.env_choice("RULE", "nothing", "stop")


def test_the_site_has_no_slash_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SITE", "https://lab.example:8443/")
    assert environ.env_site("SITE", "") == "https://lab.example:8443"
    assert environ.env_site("OTHER", "http://localhost:8000") == "http://localhost:8000"


@pytest.mark.parametrize(
    "value",
    ["lab.example", "lab.example:8000", "ftp://lab.example", "https://", "https://lab.example/gpus", "http://["],
)
def test_a_site_that_no_link_could_begin_with_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("SITE", value)
    with pytest.raises(ImproperlyConfigured, match="SITE must be like https://"):
        environ.env_site("SITE", "")


def test_a_secret_may_lie_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORD_FILE", str(tmp_path / "word"))
    with pytest.raises(ImproperlyConfigured, match="WORD_FILE .* cannot be read"):
        environ.env_secret("WORD")
    (tmp_path / "word").write_text("sesame\n")
    assert environ.env_secret("WORD") == "sesame"


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
    assert str(environ.env_network("NETWORK", "10.192.0.0/12", 22)) == "10.192.0.0/12"
    for value in ("10.192.0.0/23", "10.192.0.1/12", "8.0.0.0/8", "fd00::/8", "lab"):
        monkeypatch.setenv("NETWORK", value)
        with pytest.raises(ImproperlyConfigured, match="NETWORK must be a private network"):
            environ.env_network("NETWORK", "10.192.0.0/12", 22)


@pytest.mark.parametrize(
    ("name", "value", "example"),
    [
        ("TIME_ZONE", "Mars/Olympus", "Europe/Berlin"),
        ("TIME_ZONE", "/etc/passwd", "Europe/Berlin"),
        ("TIME_ZONE", "../../etc/passwd", "Europe/Berlin"),
        ("TIME_ZONE", "Europe", "Europe/Berlin"),
        ("LOG_LEVEL", "loud", "INFO"),
        ("EMAIL_BACKEND", "mail.Server", "django.core.mail.backends.console.EmailBackend"),
        ("EMAIL_BACKEND", "smtp", "django.core.mail.backends.console.EmailBackend"),
        ("DEFAULT_FROM_EMAIL", "the lab", "gpus@example.org"),
        ("CSRF_TRUSTED_ORIGINS", "lab.example", "https://schedulearn.example.org"),
        ("SCHEDULEARN_HOME", "~unknown-user/lab", "whole path"),
        ("PORT", "9" * 5000, "65535"),
    ],
)
def test_a_wrong_setting_is_named_in_one_line_with_an_example(
    name: str, value: str, example: str, tmp_path: Path
) -> None:
    kept = {key: os.environ[key] for key in ("PATH", "PYTHONPATH") if key in os.environ}
    env = {**kept, "SCHEDULEARN_HOME": str(tmp_path), name: value}
    ran = subprocess.run(
        [sys.executable, "manage.py", "check"], env=env, cwd=settings.BASE_DIR, capture_output=True, text=True
    )
    (line,) = ran.stderr.splitlines()
    assert ran.returncode == 1 and line.startswith(name) and example in line


@pytest.mark.parametrize("value", ["Europe/Berlin", "UTC", "Asia/Kathmandu", ""])
def test_known_zones_are_read(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("ZONE", value)
    assert environ.env_zone("ZONE", "UTC") == (value or "UTC")


@pytest.mark.parametrize(
    "url", ["mysql://lab/db", "postgres://lab:x/db", "postgres://lab:99999/db", "postgres://[lab/db", "postgres://lab"]
)
def test_the_address_of_no_database_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="DATABASE_URL must be like postgres://") as refused:
        environ.database_of(url.replace("//", "//me:sesame@"))
    assert "sesame" not in str(refused.value)


def test_addresses_of_databases_are_read() -> None:
    assert environ.database_of("postgres://me:p%40ss@lab:5433/gpus")["PASSWORD"] == "p@ss"
    assert environ.database_of("postgresql:///gpus?host=/tmp")["NAME"] == "gpus"


@pytest.mark.parametrize("url", ["http://lab", "redis://", "redis://lab:x", "lab:6379"])
def test_the_address_of_no_redis_is_refused(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="REDIS_URL must be like redis://"):
        environ.check_redis(url)
    environ.check_redis("rediss://:secret@lab:6380/1")
