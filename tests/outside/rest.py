"""Requests to the REST API, each recorded: by one of the laws, none may fail because of the portal."""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.system.product import PLAIN

TIMEOUT_SECONDS = 20.0
PAGE_SIZE = 200
THROTTLED = 429


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that got no answer, or one with a status of 500 and above."""

    at: float
    request: str
    answer: str


@dataclass
class Journal:
    """Of all clients of a run."""

    requests: int = 0
    failures: list[Failure] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, failure: Failure | None) -> None:
        with self._lock:
            self.requests += 1
            if failure is not None:
                self.failures.append(failure)


class RefusedError(Exception):
    """A status of 400 and above; 0 for no answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Rest:
    """One person's view of the API. Use an instance in one thread only."""

    def __init__(self, url: str, token: str, journal: Journal) -> None:
        self.token = token
        headers = {"Authorization": f"Bearer {token}"}
        self._client = httpx.Client(base_url=f"{url}/api/v1/", headers=headers, timeout=TIMEOUT_SECONDS, **PLAIN)
        self._journal = journal

    def close(self) -> None:
        self._client.close()

    def call(self, method: str, path: str, **options: Any) -> Any:
        """The answer's JSON, None for an empty one. Raises RefusedError."""
        at, request = time.time(), f"{method} {path}"
        try:
            answer = self._client.request(method, path, **options)
        except httpx.HTTPError as error:
            self._journal.note(Failure(at, request, f"{type(error).__name__}: {error}"))
            raise RefusedError(0, str(error)) from error
        if answer.status_code == THROTTLED and (wait := answer.headers.get("Retry-After")):
            time.sleep(float(wait))
            return self.call(method, path, **options)
        failed = answer.status_code >= 500
        self._journal.note(Failure(at, request, f"{answer.status_code}: {answer.text[:300]}") if failed else None)
        if answer.status_code >= 400:
            raise RefusedError(answer.status_code, answer.text[:300])
        return answer.json() if answer.content else None

    def get(self, path: str, **params: Any) -> Any:
        return self.call("GET", path, params=params)

    def pages(self, path: str, **params: Any) -> list[Any]:
        """All rows of a list that comes in pages."""
        rows: list[Any] = []
        while True:
            page = 1 + len(rows) // PAGE_SIZE
            answer = self.get(path, page=page, page_size=PAGE_SIZE, **params)
            rows += answer["results"]
            if answer["next"] is None:
                return rows
