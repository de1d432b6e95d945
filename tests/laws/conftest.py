"""The world that visits share, made once for a module, since every visit undoes what it did (``visits.undone``)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.db import transaction

from portal.rest import StrangerThrottle
from tests.laws.people import World, make_world
from tests.laws.route_matrix import names


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: Any) -> Iterator[World]:
    cache.clear()
    with django_db_blocker.unblock(), transaction.atomic():
        yield make_world()
        transaction.set_rollback(True)


@pytest.fixture(autouse=True)
def documentation(tmp_path: Path, settings: Any) -> None:
    """Let /help/ have a page, whether the documentation was built or not."""
    (tmp_path / "index.html").write_text("<h1>Schedulearn</h1>")
    settings.DOCUMENTATION = tmp_path


@pytest.fixture(autouse=True)
def strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every visit have an answer of its own: hundreds of refused ones come from one address in a minute."""
    monkeypatch.setattr(StrangerThrottle, "THROTTLE_RATES", {"user": None, "anon": None})


@pytest.fixture(scope="module")
def known(world: World) -> dict[str, Any]:
    """Return the values of the names in the addresses of the table."""
    return names(world)
