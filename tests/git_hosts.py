"""Git hosts for tests: ``git http-backend`` behind a TLS server with its own authority, and a real sshd."""

import base64
import datetime
import getpass
import ipaddress
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from tests.run.isolation import OWN_ADDRESS

USER, TOKEN = "robot", "t0ken-with-secret-letters"
NAME = "git.test"
"""The host in certificates, beside localhost and the address of this machine."""
SSHD = "/usr/sbin/sshd"
HTTP_BACKEND = "/usr/lib/git-core/git-http-backend"


def own_address() -> str:
    """Return an address of this machine that is not a loopback one, if it has any."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.1", 9))  # sends nothing, and finds the address of the way out
            return str(probe.getsockname()[0])
        except OSError:
            pass
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((OWN_ADDRESS, 0))
            return OWN_ADDRESS
        except OSError:
            return "127.0.0.1"


# --- repositories -----------------------------------------------------------------------------------------------------


@dataclass
class Repository:
    """A bare repository that a host serves, and a clone in which commits are made."""

    bare: Path
    clone: Path

    def git(self, *words: str, env: Mapping[str, str] | None = None) -> str:
        settings = (
            "-c",
            "user.name=Ada Lovelace",
            "-c",
            "user.email=ada@example.org",
            "-c",
            "protocol.file.allow=always",
        )
        done = subprocess.run(
            ["git", *settings, *words],
            cwd=self.clone,
            capture_output=True,
            text=True,
            check=True,
            env={"PATH": os.environ["PATH"], "HOME": str(self.clone.parent), "GIT_CONFIG_NOSYSTEM": "1", **(env or {})},
        )
        return done.stdout.strip()

    def commit(self, files: Mapping[str, str | bytes], subject: str = "Change it", branch: str = "main") -> str:
        """Commit these files and push them. Returns the commit."""
        for name, content in files.items():
            path = self.clone / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--allow-empty", "--message", subject)
        self.git("push", "--quiet", "--force", "origin", f"HEAD:refs/heads/{branch}")
        return self.git("rev-parse", "HEAD")

    def rewrite(self, files: Mapping[str, str | bytes], subject: str = "Rewritten") -> str:
        """Replace the history of the branch by one commit, as a force-push does."""
        self.git(
            "checkout", "--quiet", "--orphan", f"new-{len(list(self.clone.iterdir()))}-{subject.replace(' ', '-')}"
        )
        return self.commit(files, subject)


def make_repository(folder: Path, name: str = "lab/train.git", *, filters: bool = True) -> Repository:
    """Make a repository below ``folder``. ``filters``: whether the server can leave out what is not asked for."""
    bare = folder / "served" / name
    clone = folder / "clones" / name
    bare.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "init", "--quiet", "--bare", "-b", "main", bare], check=True)
    for setting in ("uploadpack.allowFilter", "uploadpack.allowReachableSHA1InWant", "http.receivepack"):
        subprocess.run(["git", f"--git-dir={bare}", "config", setting, str(filters).lower()], check=True)
    subprocess.run(["git", "init", "--quiet", "-b", "main", clone], check=True)
    repository = Repository(bare, clone)
    repository.git("remote", "add", "origin", str(bare))
    return repository


# --- https ------------------------------------------------------------------------------------------------------------


def make_certificates(folder: Path) -> tuple[Path, Path]:
    """Return the files of an authority, and of a certificate with its key that it signed."""
    now = datetime.datetime.now(datetime.UTC)

    def build(subject: str, issuer: str, key: Any, signer: Any, *, ca: bool) -> x509.Certificate:
        names = [x509.DNSName(NAME), x509.DNSName("localhost")]
        names_with_addresses: list[x509.GeneralName] = [
            *names,
            *(x509.IPAddress(ipaddress.ip_address(each)) for each in {"127.0.0.1", own_address()}),
        ]
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if not ca:
            builder = builder.add_extension(x509.SubjectAlternativeName(names_with_addresses), critical=False)
        return builder.sign(signer, hashes.SHA256())

    authority, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = build("Lab authority", "Lab authority", authority, authority, ca=True)
    leaf = build(NAME, "Lab authority", own, authority, ca=False)
    folder.mkdir(parents=True, exist_ok=True)
    ca, chain = folder / "ca.pem", folder / "server.pem"
    ca.write_bytes(root.public_bytes(serialization.Encoding.PEM))
    key = own.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    chain.write_bytes(leaf.public_bytes(serialization.Encoding.PEM) + key)
    return ca, chain


@dataclass
class HttpsHost:
    """A server that gives its repositories to users with the token."""

    port: int
    ca: Path
    requests: list[str] = field(default_factory=list)
    public: bool = False
    answer_after: threading.Event | None = None
    """Where set, each answer waits until this is set too: a host that is slow for as long as a test needs."""

    def address(self, name: str = "lab/train.git", host: str = "") -> str:
        return f"https://{host or own_address()}:{self.port}/{name}"


@contextmanager
def https_host(folder: Path, *, public: bool = False) -> Iterator[HttpsHost]:
    """Serve the repositories below ``folder`` by ``git http-backend``."""
    ca, chain = make_certificates(folder / "tls")
    root = folder / "served"
    root.mkdir(parents=True, exist_ok=True)
    expected = "Basic " + base64.b64encode(f"{USER}:{TOKEN}".encode()).decode()
    host = HttpsHost(0, ca, public=public)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def serve(self) -> None:
            host.requests.append(f"{self.command} {self.path}")
            if host.answer_after is not None:
                host.answer_after.wait(60)
            given = self.headers.get("Authorization", "")
            if not host.public and given != expected:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.end_headers()
                self.wfile.write(f"no: {given}".encode())
                return
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            done = subprocess.run(
                [HTTP_BACKEND],
                input=body,
                capture_output=True,
                check=False,
                env={
                    "PATH": os.environ["PATH"],
                    "GIT_PROJECT_ROOT": str(root),
                    "GIT_HTTP_EXPORT_ALL": "1",
                    "GIT_CONFIG_COUNT": "1",
                    "GIT_CONFIG_KEY_0": "safe.directory",
                    "GIT_CONFIG_VALUE_0": "*",
                    "PATH_INFO": path,
                    "QUERY_STRING": query,
                    "REQUEST_METHOD": self.command,
                    "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                    "CONTENT_LENGTH": str(len(body)),
                    "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                    "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                    "REMOTE_USER": USER,
                },
            )
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
            self.send_response(int(headers.pop("Status", "200 OK").split(" ")[0]))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(content)

        def finish(self) -> None:
            super().finish()
            with suppress(OSError, ValueError):
                self.connection.unwrap()  # else GnuTLS takes the end for an attack

        do_GET = do_POST = serve  # noqa: N815

    server = ThreadingHTTPServer(("0.0.0.0", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    host.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield host
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# --- ssh --------------------------------------------------------------------------------------------------------------


@dataclass
class SshHost:
    """An sshd that lets one key in, for git alone."""

    port: int
    folder: Path
    authorized: Path
    log: list[str] = field(default_factory=list)

    @property
    def host_key(self) -> str:
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    def allow(self, public_key: str) -> None:
        self.authorized.write_text(f"restrict {public_key}\n")

    def address(self, name: str = "lab/train.git") -> str:
        return f"ssh://{getpass.getuser()}@{own_address()}:{self.port}{self.folder.parent}/served/{name}"


def make_host_key(folder: Path) -> None:
    """Write a new key of the host."""
    for old in folder.glob("host_key*"):
        old.unlink()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "host_key"], check=True)


@contextmanager
def ssh_host(folder: Path, port: int = 0) -> Iterator[SshHost]:
    """Serve the repositories below ``folder`` by ssh."""
    own = folder / "sshd"
    own.mkdir(exist_ok=True)
    if not (own / "host_key").exists():
        make_host_key(own)
    if not port:
        with socket.socket() as probe:
            probe.bind(("0.0.0.0", 0))
            port = probe.getsockname()[1]
    authorized = own / "authorized_keys"
    authorized.touch()
    config = own / "config"
    config.write_text(
        f"Port {port}\nListenAddress 0.0.0.0\nHostKey {own}/host_key\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
        f"AuthorizedKeysFile {authorized}\nAcceptEnv GIT_PROTOCOL\nLogLevel VERBOSE\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    process = subprocess.Popen([SSHD, "-D", "-e", "-f", config], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "Server listening" in line:
                break
        else:
            raise AssertionError("sshd ended")
        host = SshHost(port, own, authorized)
        reader = threading.Thread(target=host.log.extend, args=(process.stderr,), daemon=True)
        reader.start()
        yield host
    finally:
        process.terminate()
        process.wait()


def make_key() -> tuple[str, str]:
    """Return the private and the public part of a new key, in the formats of OpenSSH."""
    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private.decode(), public.decode()


def has_sshd() -> bool:
    return Path(SSHD).exists() and shutil.which("ssh-keygen") is not None
