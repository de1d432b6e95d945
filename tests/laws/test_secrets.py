"""A copy of the database, the log of the portal and its pages hold no key that opens anything."""

import logging
import re

import pytest
from django.conf import settings
from django.core import mail
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.urls import reverse

from portal.accounts import services
from portal.accounts.models import User
from portal.cluster import services as cluster
from tests.laws.people import PASSWORD, make_people
from tests.portal.outbox import deliver

pytestmark = pytest.mark.django_db
NEW_PASSWORD = "weathered-lighthouse-7"


def dump() -> str:
    """Return every value of every table, as a thief of the file would read it."""
    parts = []
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            parts.append(repr(cursor.fetchall()))
    return "\n".join(parts)


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match, pattern
    return match[0]


def test_no_key_is_in_the_database_or_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    cache.clear()
    caplog.set_level(logging.DEBUG)
    first = services.setup_link("http://x")
    people = make_people()
    keys: dict[str, str] = {"the set-up link": found(r"[\w-]{43}", first or ""), "a password": PASSWORD}

    browser = Client()
    browser.post(reverse("accounts:sign-in"), {"username": "alice", "password": PASSWORD})
    keys["a session"] = browser.cookies[settings.SESSION_COOKIE_NAME].value
    page = browser.post(reverse("accounts:tokens"), {"name": "laptop", "scope": "write", "days": "90"})
    keys["an API token"] = found(r"sl_[\w-]{43}", page.content.decode())
    made = browser.post("/api/v1/tokens/", {"name": "another"}, content_type="application/json")
    keys["an API token made by API"] = made.json()["token"]
    Client().post(reverse("accounts:password-reset"), {"email": "bob@example.org"})
    stolen_before = dump()
    deliver()
    keys["a reset link"] = found(r"(?<=/)[\w]+-[0-9a-f]{32}(?=/)", str(mail.outbox[0].body))

    admin = Client()
    admin.force_login(people["ada"])
    invited = admin.post(reverse("accounts:invites"), {"email": "new@example.org"}).content.decode()
    keys["an invitation"] = found(r"(?<=invite/)[\w-]{43}", invited)  # its mail waits
    keys["another reset link"] = found(
        r"(?<=/)[\w]+-[0-9a-f]{32}(?=/)",
        admin.post(reverse("accounts:user-reset-link", args=[people["bob"].pk])).content.decode(),
    )
    keys["a join token"] = cluster.issue_join_token(people["ada"])
    joined = cluster.join(keys["a join token"], "box", "docker", {})
    keys["a node's token"] = joined.token

    stolen, log = stolen_before + dump(), caplog.text
    for what, key in keys.items():
        assert key not in stolen, f"{what} is in the database"
        assert key not in log, f"{what} is in the log"


def test_what_is_stored_opens_nothing() -> None:
    """Each stored digest, sent as if it were the key, is refused."""
    people = make_people()
    browser = Client()
    browser.force_login(people["alice"])
    row, _ = services.create_token(people["alice"], "laptop")
    invite, _ = services.create_invite(people["ada"])
    node = cluster.join(cluster.issue_join_token(people["ada"]), "box", "docker", {}).node
    for stored in (row.token_digest, row.prefix, invite.token_digest, node.token_digest):
        assert Client().get("/api/v1/me/", headers={"Authorization": f"Bearer {stored}"}).status_code == 401
        assert services.find_invite(stored) is None
        assert cluster.node_for(stored) is None
    keys = re.findall(r"'([0-9a-f]{40})'", dump())
    assert keys
    for key in keys:
        thief = Client()
        thief.cookies[settings.SESSION_COOKIE_NAME] = key
        assert thief.get(reverse("accounts:profile")).status_code == 302


def test_no_account_exists_that_was_not_made() -> None:
    """There is no default user or password: the first admin signs in by the set-up link."""
    assert not User.objects.exists()


def test_keys_have_enough_randomness() -> None:
    ada = make_people()["ada"]
    tokens = {services.create_token(ada, f"t{n}")[1] for n in range(20)} | {
        services.create_invite(ada)[1] for _ in range(20)
    }
    assert len(tokens) == 40
    assert all(len(token.removeprefix("sl_")) >= 43 for token in tokens), "256 bits"
