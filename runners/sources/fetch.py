"""Fetches the commit of a branch in a sandbox, and returns its files as an archive.

Git reads what strangers wrote, so it runs where packages are built: in bubblewrap or a container, with a folder of its own, a
limit of disk, memory and time, and no network but a proxy that reaches the allowed hosts. The token or key lies in a folder
that this sandbox alone reads, never in an address, a command line or a variable.
"""

import base64
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners.environments.layers.sandbox import BuildSandbox, Command, build_owner
from runners.environments.layers.workshop import NETWORK_MARK, socket_folder
from runners.environments.preparing import PrepareError, ProgramError, Progress, cache_home, temporary_folder
from runners.host.egress import MACHINE_NETWORKS, Connection, EgressProxy, Networks
from runners.host.node_files import open_beneath, read_json_beneath
from runners.host.upstream import environment_upstream
from runners.messages import Message
from runners.messages.environment_failures import SystemRefused
from runners.messages.git import (
    AskingHost,
    ComparingHistory,
    FetchStarting,
    PackingFiles,
    ReceivingCommit,
    ReceivingLfs,
    ReceivingSubmodule,
)
from runners.messages.git_failures import FetchTooSlow, GitFailed, RepositoryTooLarge
from runners.messages.layer_failures import LayerTooLarge, TimeLimit, TooManyFiles
from runners.sources.explaining import HOST_KEY, explain
from runners.sources.order import FetchOrder

RUNNERS = Path(__file__).resolve().parents[1]
START = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module('runners.sources.inside.program', run_name='__main__')"
)
MIB = 2**20
SLACK_MIB = 8
"""What the protocol takes beside the objects."""
SYSTEM_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
PERCENT = re.compile(r"Receiving objects: +(\d{1,3})%")
STEP = re.compile(r"^\[step\] (\w+)$", re.MULTILINE)
MAX_TROUBLES = 20


class HostKeyError(PrepareError):
    """The host has a key that is not the confirmed one."""

    def __init__(self, error: PrepareError, host_key: str) -> None:
        super().__init__(error.failure)
        self.host_key = host_key


@dataclass(frozen=True)
class FetchedCommit:
    """A commit, with its files in ``archive``; without, it is the one that the portal knows."""

    commit: str
    archive: Path | None = None
    author: str = ""
    subject: str = ""
    committed_at: int = 0
    """Seconds since 1970."""
    rewritten: bool = False
    """Whether the commit fetched before is no longer in the history of the branch."""
    pointers: tuple[str, ...] = ()
    """Files of Git LFS of which only the pointers were fetched: the first ones, and how many."""
    pointer_count: int = 0
    left_out: tuple[str, ...] = ()
    """Submodules that were left out: the first ones, and how many."""
    left_out_count: int = 0

    @classmethod
    def of(cls, found: dict[str, Any], archive: Path | None) -> "FetchedCommit":
        """Read what was written in the sandbox. Raises ValueError for what is no commit."""
        commit = found.get("commit")
        if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
            raise ValueError("no commit")
        texts: dict[str, Any] = {name: str(found.get(name, ""))[:200] for name in ("author", "subject")}
        names: dict[str, Any] = {
            name: tuple(str(each)[:200] for each in found.get(name, ())[:20]) for name in ("pointers", "left_out")
        }
        numbers: dict[str, Any] = {
            name: int(found.get(name, 0)) for name in ("committed_at", "pointer_count", "left_out_count")
        }
        return cls(commit, archive, rewritten=found.get("rewritten") is True, **texts, **names, **numbers)

    def to_json(self) -> dict[str, Any]:
        return {
            "commit": self.commit,
            "author": self.author,
            "subject": self.subject,
            "committed_at": self.committed_at,
            "rewritten": self.rewritten,
            "pointers": list(self.pointers),
            "pointer_count": self.pointer_count,
            "left_out": list(self.left_out),
            "left_out_count": self.left_out_count,
        }


@contextmanager
def fetched(
    order: FetchOrder,
    sandbox: BuildSandbox,
    python: str,
    log: Path,
    progress: Progress,
    never: Networks = MACHINE_NETWORKS,
) -> Iterator[FetchedCommit]:
    """Fetch a commit; its archive is removed at the end. ``python``: the interpreter in the sandbox. ``never``: addresses to
    which not even an allowed host leads.

    Raises PrepareError, and HostKeyError when the key of the host is to be confirmed.
    """
    connections: list[Connection] = []
    noted = _Log(log)

    def record(connection: Connection) -> None:
        if (connection.refusal or connection.error) and len(connections) < MAX_TROUBLES:
            connections.append(connection)
        noted.line(f"{NETWORK_MARK}{connection.text}")

    progress(1, FetchStarting())
    try:
        with temporary_folder(cache_home(), ".fetch-") as top, socket_folder() as private:
            top.chmod(0o755)
            inputs, work = top / "inputs", top / "work"
            inputs.mkdir()
            work.mkdir()
            plan = make_plan(order, work, private, inputs)
            limit = (order.max_mib + SLACK_MIB) * MIB
            with EgressProxy(private / "proxy", order.host_rules(), record, environment_upstream(), limit, never=never):
                _run(order, sandbox, python, plan, inputs, work, log, progress, connections)
            yield _judge(order, work, top, connections)
    except (OSError, ValueError) as error:
        raise PrepareError(SystemRefused(str(error))) from error


def _run(
    order: FetchOrder,
    sandbox: BuildSandbox,
    python: str,
    plan: Path,
    inputs: Path,
    work: Path,
    log: Path,
    progress: Progress,
    connections: list[Connection],
) -> None:
    command = Command(
        (python, "-I", "-S", "-c", START, RUNNERS.parent, plan),
        work,
        log,
        {},
        socket=plan.parent / "proxy",
        read_only=(inputs, RUNNERS / "__init__.py", RUNNERS / "sources"),
        tick=lambda seconds, tail: progress(*step_of(order, tail)),
        seconds=order.seconds,
        max_bytes=(order.max_mib + 2 * order.max_tree_mib + SLACK_MIB) * MIB,
        accounts=inputs / "passwd",
    )
    try:
        sandbox.run(command)
    except ProgramError as error:
        raise PrepareError(explain({"output": error.tail}, order, connections)) from error
    except PrepareError as error:
        match error.failure:
            case LayerTooLarge() | TooManyFiles():
                raise PrepareError(RepositoryTooLarge(order.max_mib)) from error
            case TimeLimit():
                raise PrepareError(FetchTooSlow(order.seconds // 60)) from error
        raise


def _judge(order: FetchOrder, work: Path, top: Path, connections: list[Connection]) -> FetchedCommit:
    """Read what the sandbox has left. It has ended, so nothing changes any more; links are not followed."""
    found = read_json_beneath(work, "result.json")
    if not found or "failure" in found:
        error = PrepareError(explain(found or {"output": "it ended early"}, order, connections))
        host_key = found.get("host_key")
        if isinstance(host_key, str) and HOST_KEY.fullmatch(host_key):
            raise HostKeyError(error, host_key)
        raise error
    archive = None
    if found.get("unchanged") is not True:
        archive = top / "archive.tar.gz"
        with open_beneath(work, "archive.tar.gz") as source, archive.open("wb") as target:
            shutil.copyfileobj(source, target)
    try:
        return FetchedCommit.of(found, archive)
    except (ValueError, TypeError) as error:
        raise PrepareError(GitFailed("its result is not understood")) from error


def make_plan(order: FetchOrder, work: Path, private: Path, inputs: Path) -> Path:
    """Write what the program inside reads, secrets into ``private``. Returns the path of its plan."""
    owner = build_owner(work)
    home = work / "home"
    (inputs / "passwd").write_text(
        f"build:x:{owner.uid}:{owner.gid}:build:{home}:/bin/sh\nroot:x:0:0:root:/root:/bin/sh\n"
    )
    (inputs / "passwd").chmod(0o644)
    signed = base64.b64encode(f"{order.user}:{order.token}".encode()).decode()
    plan = {
        "address": order.address,
        "branch": order.branch,
        "known": order.known,
        "host": order.host,
        "port": order.port,
        "user": order.user,
        "host_key_kind": order.host_key.partition(" ")[0],
        "hosts": [f"{rule.pattern}:{port}" for rule in order.host_rules() for port in sorted(rule.ports)],
        "extras": order.extras,
        "max_file_bytes": order.max_tree_mib * MIB,
        "max_tree_bytes": order.max_tree_mib * MIB,
        "certificates": certificates(inputs),
        "work": str(work),
        "private": str(private),
        "secrets": [order.token, signed] if order.token else [],
    }
    credential = {"host": order.place, "user": order.user, "token": order.token}
    key = order.key if order.key.endswith("\n") or not order.key else f"{order.key}\n"
    contents = {
        "plan": json.dumps(plan),
        "credential": json.dumps(credential),
        "key": key,
        "known_hosts": f"{order.host} {order.host_key}\n" if order.host_key else "",
    }
    for name, content in contents.items():
        handle = os.open(private / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
        with os.fdopen(handle, "w") as file:
            file.write(content)
        os.chown(private / name, owner.uid, owner.gid)
    return private / "plan"


def certificates(inputs: Path) -> str:
    """Return the path of a copy of the certificates that this machine trusts; empty if none are found."""
    own, others = os.environ.get("GIT_SSL_CAINFO", ""), os.environ.get("SSL_CERT_FILE", "")
    named = (own, others, os.environ.get("REQUESTS_CA_BUNDLE", ""))
    found = next((Path(each) for each in (*named, *SYSTEM_CERTIFICATES) if each and Path(each).is_file()), None)
    if found is None:
        return ""
    copy = inputs / "certificates.pem"
    shutil.copyfile(found, copy)
    copy.chmod(0o644)
    return str(copy)


def step_of(order: FetchOrder, tail: str) -> tuple[int, Message]:
    """Return how far a fetch is, from the end of its log."""
    steps = STEP.findall(tail)
    received = PERCENT.findall(tail)
    percent = min(100, int(received[-1])) if received else 0
    match steps[-1] if steps else "fetching":
        case "asking":
            return 5, AskingHost(order.host)
        case "history":
            return 62, ComparingHistory()
        case "packing":
            return 65, PackingFiles()
        case "submodule":
            return 70, ReceivingSubmodule()
        case "lfs":
            return 75, ReceivingLfs()
        case _:
            return 10 + percent // 2, ReceivingCommit(percent)


class _Log:
    """Adds lines to a log from several threads: one write to the end of a file is not divided."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def line(self, text: str) -> None:
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(handle, f"{text}\n".encode())
        finally:
            os.close(handle)
