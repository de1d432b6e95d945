"""Each earlier release is upgraded to the present one, and keeps all that it had."""

import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.releases.portal import HERE, lab_settings, python, read
from tests.servers import postgres, redis

RELEASES = sorted(folder.name for folder in HERE.iterdir() if (folder / "expected.json").exists())

pytestmark = [pytest.mark.system, pytest.mark.thorough, pytest.mark.timeout(600)]


def unpack(release: str, size: str, home: Path) -> dict[str, object]:
    """Unpack a lab into a folder; return what it held."""
    home.mkdir(mode=0o700)
    with tarfile.open(HERE / release / f"{size}.tar.xz") as archive:
        archive.extractall(home, filter="data")
    expected: dict[str, object] = json.loads((HERE / release / "expected.json").read_text())[size]
    return expected


def test_there_is_at_least_one_release() -> None:
    assert RELEASES


@pytest.mark.parametrize("release", RELEASES)
def test_a_portal_on_sqlite_is_upgraded(release: str, tmp_path: Path) -> None:
    expected = unpack(release, "small", tmp_path / "home")
    python(tmp_path / "home", {}, "manage.py", "migrate", "-v0")
    assert read(tmp_path / "home", {}, "pages") == expected


@pytest.mark.parametrize("release", RELEASES)
def test_a_portal_on_postgresql_is_upgraded(release: str, tmp_path: Path) -> None:
    expected = unpack(release, "lab", tmp_path / "home")
    with postgres() as database, redis() as broker:
        lab = lab_settings(database, broker)
        dump = (tmp_path / "home" / "database.sql").read_bytes()
        subprocess.run(["psql", "-q", "-v", "ON_ERROR_STOP=1", database], input=dump, check=True, capture_output=True)
        python(tmp_path / "home", lab, "manage.py", "migrate", "-v0")
        assert read(tmp_path / "home", lab, "pages") == expected
