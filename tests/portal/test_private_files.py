"""What the portal keeps is closed to other users of its machine, and pages to browsers that keep them."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import Client

from portal import settings
from portal.ops.up.logs import LogFile
from tests.portal import jobs_world as world


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("earlier", [None, "", "db.sqlite3", "code"])
def test_a_folder_that_others_can_enter_is_closed(tmp_path: Path, earlier: str | None) -> None:
    """New, empty, or of an earlier release."""
    home = tmp_path / "home"
    if earlier is not None:
        home.mkdir()
        home.chmod(0o755)
        if earlier:
            (home / earlier).touch()
    assert settings.make_home(home) == home
    assert not mode(home) & 0o007


def test_a_folder_that_has_other_things_in_it_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    tmp_path.chmod(0o755)
    with pytest.raises(ImproperlyConfigured, match="can be entered by every user of this machine. Close it"):
        settings.make_home(tmp_path)
    assert mode(tmp_path) == 0o755, "it is not ours to close"
    tmp_path.chmod(0o750)
    settings.make_home(tmp_path)


def test_a_start_with_a_refused_folder_prints_the_sentence_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    tmp_path.chmod(0o755)
    env = {**os.environ, "SCHEDULEARN_HOME": str(tmp_path)}
    start = [sys.executable, str(settings.BASE_DIR / "manage.py"), "up"]
    refused = subprocess.run(start, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 1 and not refused.stdout
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"SCHEDULEARN_HOME ({tmp_path}) can be entered by every user")


def test_a_database_is_read_by_its_owner_alone_also_one_of_an_earlier_release(tmp_path: Path) -> None:
    old = tmp_path / "old.sqlite3"
    old.write_bytes(b"rows")
    old.chmod(0o644)
    assert mode(settings.private_file(old)) == 0o600 and old.read_bytes() == b"rows"
    before = os.umask(0)
    try:
        assert mode(settings.private_file(tmp_path / "new.sqlite3")) == 0o600
        log = LogFile(tmp_path / "web.log")
        log.write("a line")
        log.close()
    finally:
        os.umask(before)
    assert mode(tmp_path / "web.log") == 0o600


@pytest.mark.django_db
def test_pages_of_whoever_has_signed_in_are_not_kept() -> None:
    client = Client()
    client.force_login(world.make_user("alice"))
    for address in ("/", "/jobs/", "/api/v1/jobs/"):
        assert client.get(address).headers["Cache-Control"] == "private, no-store"
    assert "no-store" not in client.get("/static/css/charts.css").headers.get("Cache-Control", "")
