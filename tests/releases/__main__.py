"""``python -m tests.releases``: make the folder of the present release from a lab that the seed fills."""

import json
import subprocess
import tarfile
import tempfile
from pathlib import Path

from runners import __version__
from tests.releases.portal import HERE, lab_settings, python, read
from tests.servers import postgres, redis

KEPT_OUT = frozenset({"secret_key", "wake"})
"""Of the data folder: keys, and files that only last as long as the processes."""

FILL = """
import io
import django
django.setup()
from portal.accounts.models import User
from portal.projects.models import Project
from portal.projects.services import store_code
from tests.seed import main

main(lines=200)
alice = User.objects.get(username="alice")
store_code(alice, Project.objects.order_by("pk")[0], [("train.py", io.BytesIO(b"print('epoch 1')\\n"))])
"""


def make(folder: Path) -> None:
    folder.mkdir()
    with tempfile.TemporaryDirectory() as home:
        _fill(Path(home), {})
        expected = {"small": read(Path(home), {})}
        _pack(folder / "small.tar.xz", Path(home))
    with postgres() as database, redis() as broker, tempfile.TemporaryDirectory() as home:
        lab = lab_settings(database, broker)
        _fill(Path(home), lab)
        dump = subprocess.run(
            ["pg_dump", "--no-owner", "--no-privileges", database], check=True, capture_output=True
        ).stdout
        (Path(home) / "database.sql").write_bytes(_without_server_settings(dump))
        expected["lab"] = read(Path(home), lab)
        _pack(folder / "lab.tar.xz", Path(home))
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def _fill(home: Path, env: dict[str, str]) -> None:
    python(home, env, "manage.py", "migrate", "-v0")
    python(home, env, "-c", FILL)
    if not env:
        python(home, env, "-c", f"import sqlite3; sqlite3.connect('{home}/db.sqlite3').executescript('VACUUM')")


def _without_server_settings(dump: bytes) -> bytes:
    """Return the dump without lines that only newer servers know, so that older ones read it, too."""
    unknown = (b"SET transaction_timeout", b"\\restrict", b"\\unrestrict")
    return b"\n".join(line for line in dump.split(b"\n") if not line.startswith(unknown))


def _pack(path: Path, home: Path) -> None:
    with tarfile.open(path, "w:xz") as archive:
        for each in sorted(home.iterdir()):
            if each.name not in KEPT_OUT and not each.name.endswith(("-wal", "-shm")):
                archive.add(each, each.name)


if __name__ == "__main__":
    make(HERE / __version__)
