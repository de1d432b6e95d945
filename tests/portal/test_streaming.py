"""Downloads of one user at once are limited, and end when they are read or left."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from io import BytesIO
from typing import Any, cast

import pytest
from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponseBase, StreamingHttpResponse
from django.test import AsyncClient

from portal import streaming
from portal.accounts.models import User
from portal.downloads import download


def request_of(user: Any) -> ASGIRequest:
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
    request = ASGIRequest(scope, BytesIO())
    request.user = user
    return request


def begin(user: Any) -> HttpResponseBase:
    return download(request_of(user), "weights.pt", iter([b"a", b"b"]), size=2)


async def first(response: HttpResponseBase) -> AsyncIterator[bytes]:
    """Its pieces, of which the first was read."""
    assert isinstance(response, StreamingHttpResponse)
    pieces = aiter(cast(AsyncIterator[bytes], response.streaming_content))
    assert await anext(pieces) == b"a"
    return pieces


async def leave(pieces: AsyncIterator[bytes]) -> None:
    """As the server does: what Django wraps is closed once no one refers to it, which takes a turn of the loop."""
    await pieces.aclose()  # type: ignore[attr-defined]
    gc.collect()
    await asyncio.sleep(0.01)


async def test_a_user_reads_so_many_files_at_once_and_others_are_not_kept_waiting() -> None:
    ada, ben, node = User(pk=1), User(pk=2), AnonymousUser()
    reading = [await first(begin(ada)) for _ in range(streaming.MAX_DOWNLOADS)]
    refused = begin(ada)
    assert refused.status_code == 429
    assert "Content-Disposition" not in refused
    others = [await first(begin(user)) for user in (ben, *[node] * 20)]
    assert [piece async for piece in reading[0]] == [b"b"]
    reading.append(await first(begin(ada)))
    await leave(reading[1])
    reading.append(await first(begin(ada)))
    for pieces in (*reading, *others):
        await leave(pieces)
    assert not any(streaming._downloads.values())


async def test_pieces_of_one_user_are_made_in_turn_and_those_of_others_meanwhile() -> None:
    made, going_on = threading.Event(), threading.Event()
    under_way: list[str] = []
    most: list[int] = []

    def slow(name: str) -> Iterator[bytes]:
        for _ in range(3):
            under_way.append(name)
            most.append(under_way.count(name))
            made.set()
            going_on.wait(30)
            under_way.remove(name)
            yield name.encode()

    def reads(user: Any, pieces: Iterator[bytes]) -> asyncio.Task[list[bytes]]:
        response = download(request_of(user), "log.txt", pieces)
        assert isinstance(response, StreamingHttpResponse)
        content = cast(AsyncIterator[bytes], response.streaming_content)

        async def read() -> list[bytes]:
            return [piece async for piece in content]

        return asyncio.create_task(read())

    ada, ben = User(pk=1), User(pk=2)
    costly = [reads(ada, slow("ada")) for _ in range(4)]
    await asyncio.to_thread(made.wait, 30)
    assert await asyncio.wait_for(reads(ben, iter([b"ben"])), 30) == [b"ben"]
    going_on.set()
    assert await asyncio.wait_for(asyncio.gather(*costly), 30) == [[b"ada"] * 3] * 4
    assert set(most) == {1}


async def test_a_client_that_leaves_while_a_piece_is_made_leaves_nothing_open() -> None:
    made, going_on, closed = threading.Event(), threading.Event(), threading.Event()

    def slow() -> Iterator[bytes]:
        try:
            while True:
                made.set()
                going_on.wait(30)
                yield b"x"
        finally:
            closed.set()

    response = download(request_of(User(pk=1)), "log.txt", slow())
    assert isinstance(response, StreamingHttpResponse)
    pieces = cast(AsyncIterator[bytes], response.streaming_content)
    reading = asyncio.ensure_future(anext(pieces))
    await asyncio.to_thread(made.wait, 30)
    reading.cancel()
    await asyncio.sleep(0)
    assert not reading.done() and not closed.is_set()
    going_on.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(reading, 30)
    assert await asyncio.to_thread(closed.wait, 30)
    assert not any(streaming._downloads.values())


async def test_a_file_of_the_pages_is_read_piece_by_piece_and_without_a_warning() -> None:
    """Django warns of files that it has to read as a whole, and warnings reach the terminal of the portal."""
    response = await AsyncClient().get("/static/css/base.css")
    assert isinstance(response, StreamingHttpResponse) and response.is_async
    pieces = cast(AsyncIterator[bytes], response.streaming_content)
    assert b"".join([piece async for piece in pieces]) == (settings.BASE_DIR / "static/css/base.css").read_bytes()
    unchanged = await AsyncClient().get("/static/css/base.css", headers={"If-None-Match": response.headers["ETag"]})
    assert unchanged.status_code == 304
