"""Runs git with settings from here alone: no hooks, no other protocols, no credentials for other hosts."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

HERE = Path(__file__).resolve().parent
MAX_ERROR_LINES = 40
MAX_ERROR_BYTES = 4000
MAX_OUTPUT_BYTES = 16 * 2**20
LOCAL_SECONDS = 300.0
"""For a command without a network."""
SHOWN_SECONDS = 2.0
"""Between two lines of a progress in the log."""
HARMLESS = ("zeroPaddedFilemode", "missingSpaceBeforeDate", "badTimezone", "zeroPaddedDate", "missingSpaceBeforeEmail")
"""Faults in commits and trees of old tools, which change nothing here."""


class Failed(Exception):  # noqa: N818  what it found, for the program outside
    """The fetch cannot go on; ``found`` has the reason."""

    def __init__(self, **found: Any) -> None:
        super().__init__(found.get("failure", ""))
        self.found = found


class Repository:
    """A bare repository of one commit, and how git is run for it."""

    def __init__(self, plan: dict[str, Any], folder: Path, address: str) -> None:
        self.plan = plan
        self.folder = folder
        self.address = address
        self.filters = True
        """Whether the server leaves out what is not asked for; known after the first fetch."""

    def argv(self, *words: str) -> list[str]:
        plan = self.plan
        helper = shlex.join([sys.executable, "-I", "-S", str(HERE / "credential.py"), f"{plan['private']}/credential"])
        settings = {
            "core.hooksPath": "/dev/null",
            "core.fsmonitor": "false",
            "protocol.allow": "never",
            "protocol.https.allow": "always",
            "protocol.ssh.allow": "always",
            "credential.helper": "",
            "http.followRedirects": "initial",
            "http.lowSpeedLimit": "100",
            "http.lowSpeedTime": "60",
            "transfer.fsckObjects": "true",
            "fetch.recurseSubmodules": "false",
            "fetch.unpackLimit": "1",
            "gc.auto": "0",
            "maintenance.auto": "false",
            "safe.directory": str(self.folder),
            **{f"fetch.fsck.{fault}": "ignore" for fault in HARMLESS},
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        place = [f"--git-dir={self.folder}"] if self.folder.exists() else []
        return ["git", *options, "-c", f"credential.helper=!{helper}", *place, *words]

    def read(self, *words: str, stdin: bytes = b"", limit: int = MAX_OUTPUT_BYTES) -> bytes:
        """Return what a command prints that uses no network, at most ``limit`` bytes."""
        with self.started(*words, stdin=stdin) as content:
            found = content.read(limit + 1)
            if len(found) > limit:
                raise Failed(failure="git", output=f"git {words[0]} printed more than {limit >> 20} MiB.")
        return found

    @contextmanager
    def started(self, *words: str, stdin: bytes = b"") -> Iterator[IO[bytes]]:
        """Run a command that uses no network, and give its output to read. What a repository makes of it may have no end: one that
        is left by an error, or takes too long, is stopped."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors:
            given.write(stdin)
            given.seek(0)
            process = subprocess.Popen(
                self.argv(*words),
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=variables(self.plan),
                cwd=self.plan["work"],
            )
            timer = threading.Timer(LOCAL_SECONDS, process.kill)
            timer.start()
            content = cast("IO[bytes]", process.stdout)
            try:
                yield content
                if process.wait() != 0:
                    raise Failed(failure="git", output=end_of(errors) or f"git {words[0]} was stopped.")
            finally:
                timer.cancel()
                process.kill()
                process.wait()
                content.close()

    def transfer(self, *words: str) -> tuple[bytes, str]:
        """Run a command that uses the network. Returns its output, and what it printed for people, which the log has too."""
        with tempfile.TemporaryFile() as output:  # a pipe that is not read would block git while its messages are
            process = subprocess.Popen(
                self.argv(*words),
                stdout=output,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                env=variables(self.plan),
                cwd=self.plan["work"],
            )
            text = "\n".join(show(process.stderr, self.plan)) if process.stderr else ""
            if process.wait() != 0:
                raise Failed(failure="git", output=text)
            output.seek(0)
            return output.read(MAX_OUTPUT_BYTES), text

    def make(self, commit: str) -> None:
        format_options = ["--object-format=sha256"] if len(commit) == 64 else []
        self.read("init", "--quiet", "--bare", "--template=", *format_options, str(self.folder))
        self.read("config", "remote.origin.url", self.address)

    def fetch(self, what: str, *options: str) -> str:
        """Fetch ``what`` as the branch ``fetched``. Returns its commit."""
        words = (
            "--progress",
            "--no-tags",
            "--no-write-fetch-head",
            "--no-recurse-submodules",
            "--no-auto-maintenance",
            *options,
        )
        _, text = self.transfer("fetch", *words, "origin", f"+{what}:refs/heads/fetched")
        self.filters = "filtering not recognized" not in text
        forget_promises(self.folder, self.address)
        return self.read("rev-parse", "--verify", "refs/heads/fetched^{commit}").decode().strip()


def end_of(errors: IO[bytes]) -> str:
    """Return the end of what a command printed for people."""
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - MAX_ERROR_BYTES))
    return errors.read().decode(errors="replace")


def forget_promises(folder: Path, address: str) -> None:
    """Remove from a repository that its server would send missing objects: git would fetch them whenever it looks for one."""
    config = folder / "config"
    sha256 = "objectformat = sha256" in config.read_text(errors="replace")
    version = "1\n[extensions]\n\tobjectformat = sha256" if sha256 else "0"
    remote = f'[remote "origin"]\n\turl = {address}\n'
    config.write_text(f"[core]\n\tbare = true\n\trepositoryformatversion = {version}\n{remote}")


def variables(plan: dict[str, Any]) -> dict[str, str]:
    """Return the whole environment of git."""
    kept = ("PATH", "HOME", "TMPDIR", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    found = {name: os.environ[name] for name in kept if name in os.environ}
    certificates = {"GIT_SSL_CAINFO": plan["certificates"]} if plan["certificates"] else {}
    return {
        **found,
        **certificates,
        "LC_ALL": "C",
        "GIT_ALLOW_PROTOCOL": "https:ssh",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(Path(plan["work"]).parent),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_SSH_VARIANT": "ssh",
        "GIT_SSH_COMMAND": shlex.join(ssh_command(plan)),
    }


def ssh_command(plan: dict[str, Any], *more: str) -> list[str]:
    """Return the ssh that offers the deploy key alone, and believes the pinned key of the host alone."""
    private = plan["private"]
    connect = shlex.join([sys.executable, "-I", "-S", str(HERE / "connect.py")])
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": "60",
        "ServerAliveInterval": "30",
        "ServerAliveCountMax": "4",
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "IdentityFile": f"{private}/key",
        "UserKnownHostsFile": f"{private}/known_hosts",
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "HostKeyAlias": plan["host"],
        "CheckHostIP": "no",
        "UpdateHostKeys": "no",
        "PreferredAuthentications": "publickey",
        "ClearAllForwardings": "yes",
        "PermitLocalCommand": "no",
        "ControlMaster": "no",
        "ControlPath": "none",
        "ProxyCommand": f"{connect} %h %p",
    }
    if plan["host_key_kind"]:
        options["HostKeyAlgorithms"] = host_key_algorithms(plan["host_key_kind"])
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", "-F", "none", *more, *words]


def host_key_algorithms(kind: str) -> str:
    """Return the signatures with which a host proves that it has a key of this kind."""
    return "rsa-sha2-512,rsa-sha2-256" if kind == "ssh-rsa" else kind


# --- the log ----------------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def step(name: str) -> None:
    """Note what begins; the program outside shows it."""
    say(f"[step] {name}")


def masked(text: str, plan: dict[str, Any]) -> str:
    """Return what git printed without the token, which a server may send back."""
    for secret in plan["secrets"]:
        text = text.replace(secret, "[hidden]")
    return text


def show(stream: IO[bytes], plan: dict[str, Any]) -> list[str]:
    """Write what git prints to the log, of a progress only now and then. Returns its last lines."""
    lines: list[str] = []
    shown_at = 0.0
    rest = b""
    while True:
        data = os.read(stream.fileno(), 4096)
        rest += data
        *whole, rest = re.split(rb"[\r\n]", rest) if data else (rest, b"")
        for each in whole:
            text = masked(each.decode(errors="replace").rstrip(), plan)[:1000]
            is_progress = re.search(r"\d+% \(\d+/\d+\)", text) is not None and "done." not in text
            if not text or (is_progress and time.monotonic() - shown_at < SHOWN_SECONDS):
                continue
            if is_progress:
                shown_at = time.monotonic()
            else:
                lines = [*lines[1 - MAX_ERROR_LINES :], text]
            say(text)
        if not data:
            return lines
        rest = rest[-4096:]
