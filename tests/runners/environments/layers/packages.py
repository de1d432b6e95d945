"""Small packages, made by the tests themselves, and the index that serves them."""

import hashlib
import http.server
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def make_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    files: Mapping[str, str] | None = None,
    needs: Sequence[str] = (),
    head: str = "",
    scripts: Mapping[str, str] | None = None,
) -> Path:
    """Make a wheel with these files; by default one module of its name. ``scripts``: console scripts."""
    stem = f"{name}-{version}"
    content = dict(files if files is not None else {f"{name}.py": f"VERSION = {version!r}\n"})
    metadata = METADATA.format(name=name, version=version) + head
    content[f"{stem}.dist-info/METADATA"] = metadata + "".join(f"Requires-Dist: {need}\n" for need in needs)
    content[f"{stem}.dist-info/WHEEL"] = WHEEL
    if scripts:
        lines = "".join(f"{script} = {target}\n" for script, target in scripts.items())
        content[f"{stem}.dist-info/entry_points.txt"] = f"[console_scripts]\n{lines}"
    record = f"{stem}.dist-info/RECORD"
    content[record] = "".join(f"{path},,\n" for path in [*content, record])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in content.items():
            wheel.writestr(member, text)
    return path


def make_sdist(folder: Path, name: str, setup: str, version: str = "1.0", *, known: bool = False) -> Path:
    """Make a source archive that is built by a backend of its own, so that no other package is needed: ``setup`` runs first,
    then it builds a wheel with one module. ``known``: its metadata need no build, so ``setup`` runs only at the installation."""
    backend = f"""
{setup}
import base64, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    stem = "{name}-{version}"
    with zipfile.ZipFile(folder + "/" + stem + "-py3-none-any.whl", "w") as wheel:
        wheel.writestr("{name}.py", "BUILT = True\\n")
        wheel.writestr(stem + ".dist-info/METADATA", {METADATA.format(name=name, version=version)!r})
        wheel.writestr(stem + ".dist-info/WHEEL", {WHEEL!r})
        wheel.writestr(stem + ".dist-info/RECORD", "".join(
            path + ",,\\n" for path in ("{name}.py", *(stem + ".dist-info/" + each for each in ("METADATA", "WHEEL", "RECORD")))
        ))
    return stem + "-py3-none-any.whl"
def build_sdist(folder, config_settings=None):
    raise SystemExit("not needed")
"""
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    files = {
        "PKG-INFO": METADATA.format(name=name, version=version).replace("2.1", "2.2" if known else "2.1"),
        "pyproject.toml": project,
        "backend.py": backend,
        "setup.py": f"{setup}\nfrom setuptools import setup\nsetup(name={name!r}, version={version!r})\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for member, text in files.items():
            data = text.encode()
            info = tarfile.TarInfo(f"{name}-{version}/{member}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def make_index(folder: Path, hashes: Mapping[str, str] | None = None) -> None:
    """Write an index (PEP 503) of the archives in ``folder/files``. ``hashes`` replace the true ones, by file name."""
    projects: dict[str, list[str]] = {}
    for path in sorted((folder / "files").iterdir()):
        digest = (hashes or {}).get(path.name) or hashlib.sha256(path.read_bytes()).hexdigest()
        link = f'<a href="../../files/{path.name}#sha256={digest}">{path.name}</a>'
        projects.setdefault(path.name.partition("-")[0].replace("_", "-"), []).append(link)
    for name, links in projects.items():
        page = folder / "simple" / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"<!DOCTYPE html><html><body>{' '.join(links)}</body></html>")


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and records what was asked for."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(folder: Path, host: str = "127.0.0.1") -> Iterator[tuple[str, list[str]]]:
    """Serve a folder at an address of this machine. Yields the address and the paths that were asked for."""
    asked: list[str] = []
    handler = partial(type("Handler", (QuietHandler,), {"asked": asked}), directory=str(folder))
    with http.server.ThreadingHTTPServer((host, 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://{host}:{server.server_address[1]}", asked
        server.shutdown()
        thread.join()
