"""Debian's docker-registry for tests, beside the tests' engine: in a container with the engine's own network, so that both
reach each other wherever the engine runs."""

import io
import json
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runners.environments.docker_images import DockerImages, add_bytes
from runners.runtimes.docker import APIError
from tests.engine import NoEngineError, base_image

USER, TOKEN = "lab", "a-token-of-the-lab"
START_SECONDS = 30
CONFIG = """
version: 0.1
storage: {{filesystem: {{rootdirectory: {data}}}, delete: {{enabled: true}}}}
http:
  addr: "0.0.0.0:{port}"
{tls}
{auth}
"""


@dataclass
class Registry:
    """A registry at ``address``, which the engine reaches over plain HTTP on the loopback."""

    port: int
    folder: Path
    with_sign_in: bool = False
    with_tls: bool = False
    engine: DockerImages = field(default_factory=DockerImages)
    _container: Any = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def auth(self) -> dict[str, str]:
        return {"username": USER, "password": TOKEN} if self.with_sign_in else {}

    def start(self) -> None:
        program = shutil.which("docker-registry")
        if program is None:
            raise NoEngineError("docker-registry is not installed: apt-get install docker-registry")
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        self.configure("/config", "/data")
        self._container = self.engine.client.containers.run(
            base_image(),
            ["/usr/bin/docker-registry", "serve", "/config/config.yml"],
            entrypoint=[],
            network_mode="host",
            detach=True,
            volumes={
                program: {"bind": "/usr/bin/docker-registry", "mode": "ro"},
                str(self.folder): {"bind": "/config", "mode": "ro"},
                str(data): {"bind": "/data", "mode": "rw"},
            },
        )
        until = time.monotonic() + START_SECONDS
        while b"listening on" not in (output := self._container.logs()):
            if time.monotonic() > until:
                raise NoEngineError(f"docker-registry did not start: {output[-300:]!r}")
            time.sleep(0.1)

    def configure(self, config: str | Path, data: str | Path) -> Path:
        """Write the registry's configuration, which names its own folder and that of its data as the registry sees them."""
        auth = tls = ""
        if self.with_sign_in:
            script = (
                "import crypt, sys; print(crypt.crypt(sys.argv[1], crypt.mksalt(crypt.METHOD_BLOWFISH, rounds=16)))"
            )
            hashed = subprocess.run(
                ["/usr/bin/python3", "-W", "ignore", "-c", script, TOKEN], capture_output=True, text=True, check=True
            )
            (self.folder / "htpasswd").write_text(f"{USER}:{hashed.stdout}")
            auth = f"auth: {{htpasswd: {{realm: lab, path: {config}/htpasswd}}}}"
        if self.with_tls:
            self._make_certificate()
            tls = f"  tls: {{certificate: {config}/tls.crt, key: {config}/tls.key}}"
        written = self.folder / "config.yml"
        written.write_text(CONFIG.format(port=self.port, data=data, auth=auth, tls=tls))
        return written

    def _make_certificate(self) -> None:
        names = ["-subj", "/CN=registry", "-addext", "subjectAltName=DNS:registry"]
        files = ["-keyout", str(self.folder / "tls.key"), "-out", str(self.folder / "tls.crt")]
        options = ["-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-days", "2"]
        subprocess.run(["openssl", "req", *options, *files, *names], check=True, capture_output=True)

    def stop(self) -> None:
        if self._container is not None:
            self._container.remove(force=True, v=True)
            self._container = None

    def push(self, image: str, repository: str, tag: str = "1") -> str:
        """Push an image of the engine, and return its digest. The engine keeps it under no further name."""
        name = f"{self.address}/{repository}"
        self.engine.client.images.get(image).tag(name, tag)
        digest = ""
        for event in self.engine.client.api.push(name, tag, stream=True, decode=True, auth_config=self.auth):
            if "error" in event:
                raise NoEngineError(str(event["error"]))
            digest = (event.get("aux") or {}).get("Digest") or digest
        for left in (f"{name}:{tag}", f"{name}@{digest}"):
            with suppress(APIError):
                self.engine.client.api.remove_image(left)
        return digest


@contextmanager
def registry(port: int, **options: Any) -> Iterator[Registry]:
    with tempfile.TemporaryDirectory(prefix="sl-registry-") as folder:
        made = Registry(port, Path(folder), **options)
        made.start()
        try:
            yield made
        finally:
            made.stop()


def image_of_files(files: Mapping[str, bytes], changes: tuple[str, ...] = ()) -> str:
    """Import an image that has nothing but these files, and return its ID. A name that ends in ``*`` is executable."""
    with io.BytesIO() as packed:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for name, content in files.items():
                add_bytes(tar, name.rstrip("*"), content, 0o755 if name.endswith("*") else 0o644)
        packed.seek(0)
        answer = DockerImages().client.api.import_image_from_data(packed.read(), changes=list(changes) or None)
    return str(json.loads(answer)["status"])


def image_from(
    base: str, changes: tuple[str, ...] = (), script: str = "true", engine: DockerImages | None = None
) -> str:
    """Return the ID of an image made from another one by a shell script and changes as in a Dockerfile."""
    client = (engine or DockerImages()).client
    container = client.containers.create(base, ["sh", "-ec", script], entrypoint=[], network_mode="none")
    try:
        container.start()
        if (ended := container.wait())["StatusCode"]:
            raise NoEngineError(f"{script}: {container.logs()!r} {ended}")
        return str(container.commit(changes=["ENTRYPOINT []", *changes]).id)
    finally:
        container.remove(force=True, v=True)
