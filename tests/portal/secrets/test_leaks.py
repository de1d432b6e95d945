"""A planted value is nowhere but in the encrypted column: in no page, answer, audit entry, log record or table."""

import base64
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client, RequestFactory
from django.views.debug import ExceptionReporter

from portal import sealing
from portal.accounts.models import User
from portal.jobs import secret_views
from portal.projects.models import Membership, Project
from portal.secrets.models import Secret
from tests.portal.api_client import Script
from tests.portal.jobs_world import make_project, make_user

pytestmark = pytest.mark.django_db

VALUE = "planted-Value-93-of-alice-and-her-project"


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> None:
    settings.HOME = tmp_path


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def project(alice: User) -> Project:
    project = make_project(alice)
    Membership.objects.create(project=project, user=make_user("bob"), role="member")
    return project


def forms_of(value: str) -> Iterator[str]:
    """Yield a value as it may have been written: plain, and as the middle of a text in base64 at each offset."""
    yield value
    for offset in range(3):
        yield base64.b64encode(bytes(offset) + value.encode()).decode()[4:-4]


def check_absent(what: str, text: str) -> None:
    for form in forms_of(VALUE):
        assert form not in text, f"the value is in {what}"


def dump() -> str:
    """Return every value of every table, as a thief of the database would read it."""
    parts = []
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            parts.append(repr(cursor.fetchall()))
    return "\n".join(parts)


def test_a_planted_value_is_nowhere(alice: User, project: Project, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    own, shared = "/accounts/secrets/", f"/projects/{project.pk}/secrets/"
    browser, script = Client(), Script(alice)
    browser.force_login(alice)
    seen = [
        browser.post(own, {"kind": "variable", "name": "BY_PAGE", "value": VALUE}, follow=True),
        browser.post(own, {"kind": "variable", "name": "BY_PAGE", "value": VALUE}),  # refused: it exists
        browser.post(own, {"kind": "file", "name": "typed", "value": VALUE}, follow=True),
        browser.post(shared, {"kind": "file", "name": "sent", "upload": SimpleUploadedFile("x", VALUE.encode())}),
        browser.post(shared, {"kind": "variable", "name": "PATH", "value": VALUE}),
        script.send("post", "secrets/", {"name": "BY_API", "value": VALUE}),
        script.send("post", "secrets/", {"name": "BY_API", "value": VALUE}),
        script.send("post", "secrets/", {"name": "a b", "value": VALUE}),
        script.send("put", "secrets/BY_API/", {"value": VALUE}),
        script.send("put", "secrets/BY_API/", {"valeu": VALUE}),
        script.send("post", f"projects/{project.pk}/secrets/", {"name": "BY_API", "value": VALUE}),
    ]
    assert Secret.objects.count() == 5
    ada = Client()
    ada.force_login(make_user("ada", is_staff=True))
    for row in Secret.objects.all():
        address = f"{own}{row.pk}/" if row.user_id else f"{shared}{row.pk}/"
        seen += [browser.get(address), browser.post(address, {"value": f"{VALUE}\0"})]
        seen += [ada.get(f"/admin/data/secrets/secret/{row.pk}/change/")]
    seen += [browser.get(place) for place in (own, shared, f"/projects/{project.pk}/", "/api/v1/secrets/")]
    seen += [ada.get(place) for place in ("/admin/data/secrets/secret/", "/admin/audit/", "/api/v1/audit/", shared)]
    assert all(answer.status_code < 500 for answer in seen)
    for answer in seen:
        check_absent(str(answer.request["PATH_INFO"]), answer.content.decode())
    check_absent("the log", caplog.text)
    check_absent("the database", dump())
    assert Secret.objects.exclude(sealed__startswith="gAAAA").count() == 0


def test_the_report_of_an_error_has_no_value(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """Django's reports show what was posted and the variables of the functions: not this field of these pages."""

    def fail(*args: Any, **options: Any) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(sealing, "keys_in", fail)
    request = RequestFactory().post("/", {"kind": "variable", "name": "HF_TOKEN", "value": VALUE})
    request.user = alice
    with pytest.raises(RuntimeError) as caught:
        secret_views.own(request)
    report = ExceptionReporter(request, caught.type, caught.value, caught.tb)
    check_absent("a report", report.get_traceback_text() + report.get_traceback_html())
