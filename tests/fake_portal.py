"""A portal in this process that speaks the agent protocol over real sockets, and fails on purpose.

It keeps what it was sent (``logs``, ``outputs``, ``reports``) for the test to look at. Faults: ``down`` closes every
connection unanswered, ``slow_seconds`` delays, ``fail_next`` answers some requests with 500, ``lose_next`` does the
work and loses the answer (the client must repeat), ``faults`` decides for each request.
"""

import hashlib
import json
import re
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from runners.messages.portal import CheckpointsComing
from tests.datasets import MadeDataset

MOST_BATCH = 1 << 20


@dataclass
class Stream:
    data: bytearray = field(default_factory=bytearray)
    label: str = ""
    closed: bool = False
    marks: list[tuple[int, int]] = field(default_factory=list)


class FakePortal:
    def __init__(self, certificate: tuple[Path, Path] | None = None) -> None:
        self.lock = threading.RLock()
        self.join_tokens = {"slj_good"}
        self.tokens: set[str] = {"sln_fake"}
        self.desired: list[dict[str, Any]] = []
        self.environments: list[str] = []
        self.code: dict[str, bytes] = {}
        self.logs: dict[tuple[str, str], Stream] = {}
        self.outputs: dict[tuple[str, str], bytes] = {}
        self.networks: dict[str, list[Any]] = {}
        """What was last reported of the hosts that a container contacted."""
        self.inputs: dict[str, bytes] | None = None
        """The outputs of the earlier job, by path; None: 404, as for a job that uses none."""
        self.secrets: list[dict[str, str]] | None = None
        """The secrets of each container, with their values; None: the portal refuses them."""
        self.datasets: dict[str, MadeDataset] = {}
        """By the SHA-256 of their manifests; others are refused."""
        self.checkpoints: dict[str, Any] = {}
        """The set: path -> [size, modified, pieces]; of all jobs, since a test has one."""
        self.checkpoint_version = 0
        self.most_checkpoint_bytes = 1 << 30
        self.pieces: dict[str, bytes] = {}
        self.lineages: dict[str, dict[str, Any]] = {}
        """What is known of a container's job, for a node that asks; 404 as from an earlier portal when nothing is."""
        self.waiting_for = ""
        """A node that has yet to send its checkpoints."""
        self.reports: list[dict[str, Any]] = []
        self.requests: Counter[str] = Counter()
        self.watched = False
        """Whether every log is being viewed."""
        self.posts: list[tuple[float, str, str, int]] = []
        """(monotonic time, container, stream, bytes) of each piece of log taken."""
        self.largest_output = 1 << 30
        self.version = 0
        self.down = False
        self.slow_seconds = 0.0
        self.fail_next = 0
        self.lose_next = 0
        self.faults: Callable[[str], str] = lambda path: ""
        """Given "METHOD /path": "" | "down" | "500" | "lose" """
        self.on_report: Callable[[dict[str, Any]], None] = lambda report: None
        self._changed = threading.Condition(self.lock)
        portal = self

        class Handler(_Handler):
            pass

        Handler.portal = portal
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.server.socket = context.wrap_socket(
                self.server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.server.daemon_threads = True
        self.server.block_on_close = False
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def __enter__(self) -> "FakePortal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(5)
        with self._changed:
            self._changed.notify_all()

    # what a test controls and reads

    def want(self, *entries: dict[str, Any]) -> None:
        """Replace the desired containers and notify the agents that wait."""
        with self._changed:
            self.desired = list(entries)
            self.version += 1
            self._changed.notify_all()

    def log(self, container: str, stream: str = "0") -> bytes:
        with self.lock:
            found = self.logs.get((container, stream))
            return bytes(found.data) if found else b""

    def container(self, name: str) -> dict[str, Any]:
        """What was last reported of a container; empty when nothing was."""
        with self.lock:
            for report in reversed(self.reports):
                for entry in report["containers"]:
                    if entry["name"] == name:
                        return entry
            return {}

    def states(self, name: str) -> list[str]:
        """The states reported of a container, repeats folded."""
        with self.lock:
            states = [
                entry["state"] for report in self.reports for entry in report["containers"] if entry["name"] == name
            ]
        return [state for index, state in enumerate(states) if index == 0 or states[index - 1] != state]

    def until(self, met: Callable[[], object], seconds: float = 60.0, what: str = "") -> None:
        """Waits until ``met`` is true, fails after a bound."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if met():
                return
            time.sleep(0.01)
        last = self.reports[-1]["containers"] if self.reports else None
        raise AssertionError(f"not within {seconds} s: {what or met}; last report {last}")

    def until_reports(self, count: int = 2) -> None:
        """Waits for so many more reports. The agent has taken in the answers to all of them but the last one."""
        before = len(self.reports)
        self.until(lambda: len(self.reports) >= before + count, what=f"{count} more reports")

    def until_asked(self, request: str, count: int = 2) -> None:
        """Waits for so many more requests ("METHOD /path"), whether they are answered or not."""
        before = self.requests[request]
        self.until(lambda: self.requests[request] >= before + count, what=f"{count} more of {request}")

    def until_anything_asked(self, count: int = 2) -> None:
        """Waits for so many more requests of any kind: what is sent first to a portal that is away is not certain."""
        before = self.requests.total()
        self.until(lambda: self.requests.total() >= before + count, what=f"{count} more requests")

    # what the agent asks

    def sync(self, report: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            self.reports.append(report)
            self.on_report(report)
            return {
                "approved": True,
                "lease_seconds": 30,
                "seen": str(self.version),
                "containers": self.desired,
                "environments": self.environments,
            }

    def wait(self, seen: str, seconds: float = 0.4) -> dict[str, Any]:
        with self._changed:
            self._changed.wait_for(lambda: str(self.version) != seen, seconds)
            return {"seen": str(self.version)}

    def append(
        self, container: str, stream: str, query: dict[str, str], marks: str, body: bytes
    ) -> tuple[int, dict[str, Any]]:
        if len(body) > MOST_BATCH:
            return 413, {"error": {"code": "too_large", "message": "At most 1 MiB at once."}}
        with self.lock:
            kept = self.logs.setdefault((container, stream), Stream())
            offset = int(query["offset"])
            if offset != len(kept.data):
                return 409, {"size": len(kept.data)}
            pairs = [tuple(map(int, mark.split(":"))) for mark in marks.split(",") if mark]
            assert len(pairs) <= 200 and all(offset <= at < offset + len(body) for at, _ in pairs), pairs
            kept.data += body
            kept.marks += pairs  # type: ignore[arg-type]
            kept.label = query.get("label", kept.label)
            kept.closed = kept.closed or query.get("final") == "1"
            self.posts.append((time.monotonic(), container, stream, len(body)))
            return 200, {"size": len(kept.data), "watched": self.watched}

    def offer(self, path: str, size: int) -> tuple[int, dict[str, Any]]:
        if size > self.largest_output:
            return 413, {"error": {"code": "too_large", "message": f"{path} is over the limit."}}
        return 200, {}

    def put(self, container: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        if len(body) > self.largest_output:
            return 413, {"error": {"code": "too_large", "message": f"{path} is over the limit."}}
        with self.lock:
            self.outputs[container, path] = body
        return 201, {}

    def newest(self) -> tuple[int, dict[str, Any]]:
        if self.waiting_for:
            message = CheckpointsComing(self.waiting_for)
            return 425, {"error": {"code": "coming", "message": message.text, "reason": message.data()}}
        return 200, {"version": self.checkpoint_version, "files": self.checkpoints, "through_portal": True}

    def change(self, changed: dict[str, Any], deleted: dict[str, int]) -> tuple[int, dict[str, Any]]:
        with self.lock:
            before = self.checkpoint_version
            missing = sorted({sha for entry in changed.values() for sha in entry[2]} - set(self.pieces))
            files = {path: entry for path, entry in self.checkpoints.items() if path not in deleted} | changed
            if not missing and files != self.checkpoints:
                self.checkpoints, self.checkpoint_version = files, before + 1
            answer = {"before": before, "version": self.checkpoint_version, "missing": missing}
            return 200, {**answer, "outdated": False, "through_portal": True, "most_bytes": self.most_checkpoint_bytes}

    def piece(self, sha256: str, body: bytes) -> tuple[int, Any]:
        """Takes one when there is a body, gives it otherwise."""
        if body:
            assert hashlib.sha256(body).hexdigest() == sha256
            self.pieces[sha256] = body
            return 201, {}
        if sha256 not in self.pieces:
            return 404, {"error": {"code": "not_found", "message": "There is nothing here."}}
        return 200, self.pieces[sha256]


def _input(path: str, content: bytes) -> dict[str, Any]:
    return {"path": path, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    portal: FakePortal

    def log_message(self, *_: object) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError, ssl.SSLError):
            self.close_connection = True

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def answer(self) -> None:
        portal = self.portal
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        announced = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(announced)
        if len(body) < announced:
            self.close_connection = True
            return
        with portal.lock:
            portal.requests[f"{self.command} {path}"] += 1
            fault = "down" if portal.down else portal.faults(f"{self.command} {path}")
            if not fault and path != "/agent/v1/wait":
                if portal.fail_next:
                    portal.fail_next -= 1
                    fault = "500"
                elif portal.lose_next:
                    portal.lose_next -= 1
                    fault = "lose"
        if portal.slow_seconds:
            time.sleep(portal.slow_seconds)
        if fault == "down":
            self.close_connection = True
            return
        if fault == "500":
            self.reply(500, {"error": {"code": "error", "message": "Something went wrong here."}})
            return
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        status, answer = self.route(path, query, body)
        if fault == "lose":
            self.close_connection = True
            return
        if isinstance(answer, bytes):
            self.send(status, answer, "application/x-tar")
        else:
            self.reply(status, answer)

    def route(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        portal = self.portal
        if path == "/agent/v1/join":
            asked = json.loads(body)
            if asked["join_token"] not in portal.join_tokens:
                return 403, {"error": {"code": "join_token", "message": "This join token is unknown, used or expired."}}
            portal.join_tokens.remove(asked["join_token"])
            portal.tokens.add("sln_joined")
            return 201, {"node": 3, "token": "sln_joined"}
        if self.headers.get("Authorization", "").removeprefix("Bearer ") not in portal.tokens:
            return 401, {"error": {"code": "token", "message": "This node is unknown here."}}
        if path == "/agent/v1/sync":
            return 200, portal.sync(json.loads(body))
        if path == "/agent/v1/wait":
            return 200, portal.wait(query.get("seen", ""))
        if found := re.fullmatch(r"/agent/v1/code/(\w+)", path):
            code = portal.code.get(found[1])
            return (
                (200, code) if code is not None else (404, {"error": {"code": "not_found", "message": "No such code."}})
            )
        if found := re.fullmatch(r"/agent/v1/containers/([^/]+)/logs/(\w+)", path):
            return portal.append(found[1], found[2], query, self.headers.get("Marks", ""), body)
        if found := re.fullmatch(r"/agent/v1/containers/([^/]+)/outputs/(.+)", path, re.DOTALL):
            if self.command == "POST":
                return portal.offer(found[2], int(query["size"]))
            return portal.put(found[1], found[2], body)
        found = re.fullmatch(r"/agent/v1/containers/([^/]+)/identity", path)
        if found and (lineage := portal.lineages.get(found[1])):
            return 200, lineage
        if found := re.fullmatch(r"/agent/v1/containers/([^/]+)/network", path):
            portal.networks[found[1]] = json.loads(body)["hosts"]
            return 200, {}
        if portal.inputs is not None and re.fullmatch(r"/agent/v1/containers/[^/]+/inputs", path):
            return 200, {"files": [_input(name, content) for name, content in portal.inputs.items()]}
        if re.fullmatch(r"/agent/v1/containers/[^/]+/secrets", path):
            if portal.secrets is not None:
                return 200, {"secrets": portal.secrets}
            return 409, {"error": {"code": "secret_gone", "message": "The secret HF_TOKEN was deleted."}}
        if found := re.fullmatch(r"/agent/v1/containers/[^/]+/datasets/(\w+)/(manifest|contents)", path):
            if (made := portal.datasets.get(found[1])) is None:
                return 403, {"error": {"code": "refused", "message": "The dataset “digits” was archived."}}
            at = {name: int(value) for name, value in query.items()}
            return 200, made.manifest[at["offset"] :] if found[2] == "manifest" else made.contents(**at)
        if found := re.fullmatch(r"/agent/v1/containers/[^/]+/inputs/(\w+)", path):
            by_hash = {_input(name, content)["sha256"]: content for name, content in (portal.inputs or {}).items()}
            if found[1] in by_hash:
                return 200, by_hash[found[1]]
        if re.fullmatch(r"/agent/v1/containers/[^/]+/checkpoints", path):
            update = json.loads(body) if body else None
            return portal.change(update["changed"], update["deleted"]) if update else portal.newest()
        if found := re.fullmatch(r"/agent/v1/containers/[^/]+/checkpoints/(\w+)", path):
            return portal.piece(found[1], body)
        return 404, {"error": {"code": "not_found", "message": "There is nothing here."}}

    def reply(self, status: int, answer: dict[str, Any]) -> None:
        self.send(status, json.dumps(answer).encode(), "application/json")

    def send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
