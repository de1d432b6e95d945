"""The client side of the agent protocol (docs/architecture/agent-protocol.md).

Every call is bounded in time and may be repeated. No call repeats itself: the calling loops do, with ``Backoff``, because
only they know what has changed meanwhile.

PortalError
├── PortalUnavailableError  no answer, or a temporary failure (5xx, 408, 425, 429): try again
└── PortalRefusedError      a refusal (4xx) with the portal's reason: trying again does not help
"""

import errno
import hashlib
import json
import random
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import httpx

from runners.agent.portal_address import checked_url, tls_context
from runners.messages import Message, MessageError, Quotation, message_from
from runners.messages.portal import AnswerNotUnderstood, CodeDamaged, CodeTooLarge, HttpStatus, InputDamaged, NoAnswer

CONNECT_SECONDS = 5.0
SYNC_CONNECT_SECONDS = 2.5
"""Reports renew leases, so a new attempt is better than a long wait for one that began while the network was cut."""
ANSWER_SECONDS = 10.0
SYNC_ANSWER_SECONDS = 15.0
"""Twice this is just below the fence of 34 s: a portal that always takes so long still renews leases in time."""
KEEPALIVE_SECONDS = 8.0
"""An idle connection outlives the pause between two reports, but not the wait for an answer: a network cut breaks all
connections, so the attempt after one without an answer opens a new one."""
WAIT_SECONDS = 60.0
"""The portal answers a long poll after 45 s; a slower one is cancelled."""
UPLOAD_SECONDS = 60.0
"""The longest time between two pieces of an output file, not for the whole file."""
UPLOAD_TIMEOUT = httpx.Timeout(UPLOAD_SECONDS, connect=CONNECT_SECONDS)
STORE_TIMEOUT = httpx.Timeout(180.0, connect=CONNECT_SECONDS)
"""While the portal unpacks, judges and stores the files of a commit."""
PIECE_BYTES = 256 * 1024
LAYER_TRIES = 5
"""One after the other in which nothing of an archive arrives."""
LAYER_PAUSE_SECONDS = 2.0


class PortalError(MessageError):
    """A call to the portal failed; see the tree in the module."""


class PortalUnavailableError(PortalError):
    pass


class PortalRefusedError(PortalError):
    def __init__(self, status: int, message: Message | str, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class LogAnswer:
    """How many bytes of the stream the portal has, and whether it accepted these (if not, continue at ``size``)."""

    size: int
    accepted: bool
    watched: bool = False
    """A user watches the job's log now."""


@dataclass(slots=True)
class Backoff:
    """Growing, jittered pauses between failed attempts, so that a hundred agents do not come back at once."""

    first_seconds: float = 0.5
    max_seconds: float = 15.0
    failures: int = 0

    def next_pause(self) -> float:
        """Count a failure; return how many seconds to wait now."""
        self.failures += 1
        limit: float = min(self.max_seconds, self.first_seconds * 2 ** min(self.failures - 1, 20))
        return limit * random.uniform(0.5, 1.0)  # noqa: S311  a pause is not a secret

    def reset(self) -> None:
        self.failures = 0


class PortalClient:
    """A connection of one node to its portal. Safe to share between threads."""

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        ca_file: Path | None = None,
        pin: str = "",
        allow_http: bool = False,
        use_proxy: bool = False,
    ) -> None:
        self.url = checked_url(url, allow_http)
        headers = {"User-Agent": "schedulearn-agent"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            verify=tls_context(ca_file, pin),
            trust_env=use_proxy,
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=16, max_keepalive_connections=16, keepalive_expiry=KEEPALIVE_SECONDS),
            follow_redirects=False,
        )

    def close(self) -> None:
        self._http.close()

    def use_token(self, token: str) -> None:
        """Use another token from the next call on."""
        self._http.headers["Authorization"] = f"Bearer {token}"

    def join(
        self,
        join_token: str,
        name: str,
        runtime: str,
        facts: dict[str, Any],
        problems: Sequence[dict[str, Any]] = (),
    ) -> tuple[int, str]:
        """Join the portal; return the new node's id and token."""
        body = {
            "join_token": join_token,
            "name": name,
            "runtime": runtime,
            "facts": facts,
            "problems": list(problems),
        }
        answer = self._json("POST", "/agent/v1/join", json=body)
        try:
            return int(answer["node"]), str(answer["token"])
        except (KeyError, TypeError, ValueError) as error:
            raise PortalUnavailableError(AnswerNotUnderstood("POST /agent/v1/join")) from error

    def new_token(self) -> str:
        """Request a new token, as a reply with ``rotate`` asks. The present one works until the new one is first used."""
        answer = self._json("POST", "/agent/v1/token")
        token = answer.get("token")
        if not isinstance(token, str) or not token:
            raise PortalUnavailableError(AnswerNotUnderstood("POST /agent/v1/token"))
        return token

    def sync(self, report: dict[str, Any]) -> dict[str, Any]:
        timeout = httpx.Timeout(SYNC_ANSWER_SECONDS, connect=SYNC_CONNECT_SECONDS)
        # Without a Content-Type: reading that header would be a tenth of the portal's work for a report.
        content = json.dumps(report, separators=(",", ":")).encode()
        return self._json("POST", "/agent/v1/sync", content=content, timeout=timeout)

    def wait_for_change(self, seen: str, timeout_seconds: float = WAIT_SECONDS) -> str:
        """Wait until the digest of the desired state differs from ``seen``, or 45 s; return the digest.

        The answer to ``""`` comes at once, so a shorter ``timeout_seconds`` is enough for it.
        """
        timeout = httpx.Timeout(timeout_seconds, connect=CONNECT_SECONDS)
        return str(self._json("GET", "/agent/v1/wait", params={"seen": seen}, timeout=timeout).get("seen", ""))

    def fetch_code(self, sha256: str, into: BinaryIO, max_bytes: int) -> None:
        """Write the tar into a file. Raises PortalUnavailableError for a damaged one, PortalRefusedError for none."""
        path = f"/agent/v1/code/{quote(sha256, safe='')}"
        self._download(path, sha256, into, max_bytes, CodeTooLarge(max_bytes >> 20), CodeDamaged())

    def inputs(self, container: str) -> dict[str, Any]:
        """Return the files that the job of a container uses as input."""
        return self._json("GET", _inputs_path(container), timeout=UPLOAD_TIMEOUT)

    def fetch_input(self, container: str, sha256: str, into: BinaryIO, max_bytes: int) -> None:
        """Write an input into a file. Raises PortalUnavailableError for a damaged one, PortalRefusedError for none."""
        self._download(_inputs_path(container, sha256), sha256, into, max_bytes, InputDamaged(), InputDamaged())

    def secrets(self, container: str) -> dict[str, Any]:
        """Return the secrets of the job of a container, with their values."""
        return self._json("GET", f"/agent/v1/containers/{quote(container, safe='')}/secrets")

    def dataset_pieces(self, container: str, sha256: str, part: str, **at: int) -> Generator[bytes, None, None]:
        """Yield the bytes of the ``manifest`` of a dataset, or of the ``contents`` of some of its files, as they arrive."""
        path = f"/agent/v1/containers/{quote(container, safe='')}/datasets/{quote(sha256, safe='')}/{part}"
        headers = {"Accept-Encoding": "identity"}
        try:
            with self._http.stream("GET", path, params=at, headers=headers, timeout=UPLOAD_TIMEOUT) as response:
                if response.status_code != 200:
                    response.read()
                    raise response_error(response)
                yield from response.iter_raw()
        except httpx.HTTPError as error:
            raise unavailable_error(error) from error

    def _download(
        self, path: str, sha256: str, into: BinaryIO, max_bytes: int, too_large: Message, damaged: Message
    ) -> None:
        digest, size = hashlib.sha256(), 0
        try:
            with self._http.stream("GET", path, headers={"Accept-Encoding": "identity"}) as response:
                if response.status_code != 200:
                    response.read()
                    raise response_error(response)
                for piece in response.iter_raw(PIECE_BYTES):
                    digest.update(piece)
                    size += len(piece)
                    if size > max_bytes:
                        raise PortalRefusedError(413, too_large)
                    into.write(piece)
        except httpx.HTTPError as error:
            raise unavailable_error(error) from error
        if digest.hexdigest() != sha256:
            raise PortalUnavailableError(damaged)

    def append_log(
        self,
        container: str,
        stream: str,
        offset: int,
        content: bytes,
        *,
        marks: tuple[tuple[int, int], ...] = (),
        label: str = "",
        final: bool = False,
    ) -> LogAnswer:
        params: dict[str, str] = {"offset": str(offset)}
        if label:
            params["label"] = label
        if final:
            params["final"] = "1"
        headers = {"Content-Type": "application/octet-stream"}
        if marks:
            headers["Marks"] = ",".join(f"{at}:{milliseconds}" for at, milliseconds in marks)
        path = f"/agent/v1/containers/{quote(container, safe='')}/logs/{quote(stream, safe='')}"
        response = self._send("POST", path, params=params, content=content, headers=headers)
        if response.status_code not in (200, 409):
            raise response_error(response)
        try:
            answer = response.json()
            size, watched = int(answer["size"]), answer.get("watched") is True
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise PortalUnavailableError(AnswerNotUnderstood(f"POST {path}")) from error
        if size < 0:
            raise PortalUnavailableError(AnswerNotUnderstood(f"POST {path}"))
        return LogAnswer(size, response.status_code == 200, watched)

    def put_output(self, container: str, path: str, file: BinaryIO, size: int) -> None:
        """Send exactly ``size`` bytes of the file. Raises OSError when it turns out shorter: it is being written."""
        response = self._send(
            "PUT",
            _output_path(container, path),
            content=_pieces(file, size),
            headers={"Content-Length": str(size), "Content-Type": "application/octet-stream"},
            timeout=UPLOAD_TIMEOUT,
        )
        if response.status_code not in (200, 201, 204):
            raise response_error(response)

    def offer_output(self, container: str, path: str, size: int) -> None:
        """Ask whether the portal would keep a file of this size. Raises PortalRefusedError when it would not."""
        response = self._send("POST", _output_path(container, path), params={"size": size})
        if (
            not response.is_success and response.status_code != 405
        ):  # a portal of an earlier version has no such endpoint
            raise response_error(response)

    def report_rank_groups(self, container: str, groups: list[Any]) -> None:
        self._json("POST", f"/agent/v1/containers/{quote(container, safe='')}/rings", json={"rings": groups})

    def report_network(self, container: str, hosts: list[Any]) -> None:
        self._json("POST", f"/agent/v1/containers/{quote(container, safe='')}/network", json={"hosts": hosts})

    def erased_jobs(self, uids: Sequence[str]) -> list[str]:
        """Return which of these jobs, by their uid, were erased in the portal."""
        answer = self._json("POST", "/agent/v1/erased-jobs", json={"jobs": list(uids)})
        erased = answer.get("erased")
        if not isinstance(erased, list):
            raise PortalUnavailableError(AnswerNotUnderstood("POST /agent/v1/erased-jobs"))
        return [uid for uid in erased if isinstance(uid, str)]

    def identity(self, container: str) -> dict[str, Any]:
        """Return the facts that may show that a folder of an earlier release belongs to the container's job (claims.py)."""
        return self._json("GET", f"/agent/v1/containers/{quote(container, safe='')}/identity")

    def checkpoints(self, container: str) -> dict[str, Any]:
        """Return the set from which the job continues. Raises PortalUnavailableError until another node has sent it."""
        return self._json("GET", _checkpoints_path(container), timeout=UPLOAD_TIMEOUT)

    def change_checkpoints(self, container: str, changed: dict[str, Any], deleted: dict[str, int]) -> dict[str, Any]:
        body = {"changed": changed, "deleted": deleted}
        return self._json("POST", _checkpoints_path(container), json=body, timeout=UPLOAD_TIMEOUT)

    def put_checkpoint(self, container: str, sha256: str, content: bytes) -> None:
        headers = {"Content-Type": "application/octet-stream"}
        response = self._send(
            "PUT", _checkpoints_path(container, sha256), content=content, headers=headers, timeout=UPLOAD_TIMEOUT
        )
        if not response.is_success:
            raise response_error(response)

    def fetch_checkpoint(self, container: str, sha256: str) -> bytes:
        headers = {"Accept-Encoding": "identity"}
        response = self._send("GET", _checkpoints_path(container, sha256), headers=headers, timeout=UPLOAD_TIMEOUT)
        if not response.is_success:
            raise response_error(response)
        return response.content

    def claim_environment(self, key: str, kind: str, has: str = "") -> dict[str, Any]:
        """Ask what this node does to get an environment with a recipe: fetch it, build it, or wait. ``has``: the digest of the
        image that it has of it."""
        body = {"kind": kind} | ({"has": has} if has else {})
        return self._json("POST", f"/agent/v1/environments/{quote(key, safe='')}/claim", json=body)

    def image_source(self, digest: str, failure: Message | None = None) -> dict[str, Any]:
        """Ask where an image comes from. ``failure``: why its registry did not give it to this node."""
        body = {"failure": failure.data()} if failure else {}
        return self._json("POST", f"/agent/v1/images/{quote(digest, safe='')}/source", json=body)

    def report_build(self, build: int, report: dict[str, Any]) -> int:
        """Send how far a build is and a piece of its log; return how many bytes of the log the portal has."""
        return int(self._json("POST", f"/agent/v1/builds/{build}/progress", json=report).get("size", 0))

    def put_archive_piece(self, build: int, offset: int, content: bytes) -> int:
        """Send a piece of a layer; return how many bytes the portal has, also if it did not expect this piece."""
        return self._put_piece(f"/agent/v1/builds/{build}/archive", offset, content)

    def _put_piece(self, path: str, offset: int, content: bytes) -> int:
        headers = {"Content-Type": "application/octet-stream"}
        response = self._send(
            "PUT", path, params={"offset": offset}, content=content, headers=headers, timeout=UPLOAD_TIMEOUT
        )
        try:
            if response.status_code in (200, 409):
                return int(response.json()["size"])
        except (AttributeError, KeyError, TypeError, ValueError):
            pass  # also 409 for a build that has ended
        raise response_error(response)

    def end_build(self, build: int, result: dict[str, Any]) -> None:
        self._json("POST", f"/agent/v1/builds/{build}/end", json=result, timeout=UPLOAD_TIMEOUT)

    def claim_fetch(self, abilities: dict[str, bool]) -> dict[str, Any]:
        """Ask for the next commit to fetch from Git; empty if there is none for this node. The answer has secrets."""
        return self._json("POST", "/agent/v1/git/claim", json=abilities)

    def report_fetch(self, fetch: int, report: dict[str, Any]) -> int:
        """Send how far a fetch is and a piece of its log; return how many bytes of the log the portal has."""
        return int(self._json("POST", f"/agent/v1/git/{fetch}/progress", json=report).get("size", 0))

    def put_code_piece(self, fetch: int, offset: int, content: bytes) -> int:
        """Send a piece of the archive of a commit; return how many bytes the portal has."""
        return self._put_piece(f"/agent/v1/git/{fetch}/archive", offset, content)

    def end_fetch(self, fetch: int, result: dict[str, Any]) -> None:
        self._json("POST", f"/agent/v1/git/{fetch}/end", json=result, timeout=STORE_TIMEOUT)

    def fetch_layer(self, digest: str, into: BinaryIO, progress: Callable[[int, int], None]) -> str:
        """Write the archive of a layer into a file, and return the hash that it should have. A connection that breaks is
        continued where it broke, as long as more arrives. ``progress`` gets the bytes so far and in all."""
        left = LAYER_TRIES
        while True:
            before = into.tell()
            try:
                return self._fetch_layer(digest, into, progress)
            except PortalUnavailableError:
                left = LAYER_TRIES if into.tell() > before else left - 1
                if not left:
                    raise
                time.sleep(LAYER_PAUSE_SECONDS)

    def _fetch_layer(self, digest: str, into: BinaryIO, progress: Callable[[int, int], None]) -> str:
        done = into.tell()
        try:
            with self._http.stream(
                "GET",
                f"/agent/v1/layers/{quote(digest, safe='')}",
                params={"offset": done},
                headers={"Accept-Encoding": "identity"},
                timeout=UPLOAD_TIMEOUT,
            ) as response:
                if response.status_code != 200:
                    response.read()
                    raise response_error(response)
                total = done + int(response.headers.get("Content-Length", 0))
                for piece in response.iter_raw():  # as they arrive: one that is not complete would be lost
                    into.write(piece)
                    done += len(piece)
                    progress(done, total)
                return str(response.headers.get("Layer-SHA256", ""))
        except httpx.HTTPError as error:
            raise unavailable_error(error) from error

    def _json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        response = self._send(method, path, **options)
        if not response.is_success:
            raise response_error(response)
        try:
            answer = response.json()
        except ValueError as error:
            raise PortalUnavailableError(AnswerNotUnderstood(f"{method} {path}")) from error
        if not isinstance(answer, dict):
            raise PortalUnavailableError(AnswerNotUnderstood(f"{method} {path}"))
        return answer

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise unavailable_error(error) from error


def _output_path(container: str, path: str) -> str:
    return f"/agent/v1/containers/{quote(container, safe='')}/outputs/{quote(path, safe='/')}"


def _checkpoints_path(container: str, sha256: str = "") -> str:
    path = f"/agent/v1/containers/{quote(container, safe='')}/checkpoints"
    return f"{path}/{quote(sha256, safe='')}" if sha256 else path


def _inputs_path(container: str, sha256: str = "") -> str:
    path = f"/agent/v1/containers/{quote(container, safe='')}/inputs"
    return f"{path}/{quote(sha256, safe='')}" if sha256 else path


def response_error(response: httpx.Response) -> PortalError:
    """Return the error for a response that is not a success."""
    code = ""
    try:
        error = response.json()["error"]
        code, message = str(error["code"]), _read_message(error.get("reason"), str(error["message"]))
    except (ValueError, KeyError, TypeError):
        message = HttpStatus(response.status_code, response.reason_phrase)
    if response.status_code >= 500 or response.status_code in (408, 425, 429):
        return PortalUnavailableError(message)
    return PortalRefusedError(response.status_code, message, code)


def _read_message(content: Any, text: str) -> Message:
    """Return the reason of an error as a message; its text if it is none, or one of a later release."""
    try:
        return message_from(content)
    except TypeError:
        return Quotation(text)


def unavailable_error(error: httpx.HTTPError) -> PortalUnavailableError:
    return PortalUnavailableError(NoAnswer(f"{type(error).__name__}: {error}"))


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    left = size
    while left:
        if not (piece := file.read(min(PIECE_BYTES, left))):
            raise OSError(errno.EAGAIN, "the file changed while it was sent")
        left -= len(piece)
        yield piece
