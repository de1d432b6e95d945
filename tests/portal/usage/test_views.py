"""Pages and files of usage and ledger: the same numbers for all, limited to what a user may see."""

import csv
import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from portal.usage import reports, rollups
from tests import month
from tests.portal.jobs_world import make_user

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
NOW = datetime(2026, 11, 20, 15, 30, tzinfo=UTC)
WINDOW = "since=2026-10-21&until=2026-11-20"


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    """Clear what is cached of another test's lab."""
    cache.clear()


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> month.Month:
    monkeypatch.setattr(timezone, "now", lambda: NOW)
    return month.make(NOW, count=400)


@pytest.fixture
def browse(client: Client) -> Callable[..., Any]:
    def go(user: Any, address: str) -> Any:
        client.force_login(user)
        return client.get(address)

    return go


def table(response: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(response.content.decode("utf-8-sig"))))


def test_a_member_reads_the_same_line_as_the_admin(lab: month.Month, browse: Callable[..., Any]) -> None:
    def line(reader: str, address: str, **is_: str) -> dict[str, str]:
        rows = table(browse(lab.users[reader], address))
        (found,) = [row for row in rows if is_.items() <= row.items()]
        return found

    for address, is_ in (
        (f"/usage/ledger.csv?{WINDOW}", {"name": "bob", "kind": "user"}),
        (f"/usage/ledger.csv?{WINDOW}", {"name": "vision", "kind": "group"}),
        (f"/usage/ledger.csv?{WINDOW}", {"kind": "capacity"}),
        (f"/usage/usage.csv?{WINDOW}", {"user": "bob"}),
        (f"/usage/usage.csv?by=group&{WINDOW}", {"group": "vision"}),
        (f"/usage/usage.csv?by=project&{WINDOW}", {"project": "Digits from pictures"}),
    ):
        mine = line("bob", address, **is_)
        assert mine == line("alice", address, **is_)
        assert any(Decimal(value) > 0 for key, value in mine.items() if key.endswith("gpu_seconds") and value)


def test_a_member_sees_no_other_users_line(lab: month.Month, browse: Callable[..., Any]) -> None:
    for address in (
        f"/usage/?{WINDOW}",
        f"/usage/?by=group&{WINDOW}",
        f"/usage/?by=project&{WINDOW}",
        f"/usage/?by=month&{WINDOW}",
        f"/usage/ledger/?{WINDOW}",
        f"/usage/ledger.csv?{WINDOW}",
        f"/usage/usage.csv?{WINDOW}",
        f"/api/v1/usage/?{WINDOW}",
        f"/api/v1/ledger/?{WINDOW}",
    ):
        text = browse(lab.users["bob"], address).content.decode()
        assert not [name for name in ("carol", "dana", "heidi", "speech", "theory", "Dialects") if name in text], (
            address
        )


def test_months_are_ones_own_but_for_a_project_one_is_in(lab: month.Month, browse: Callable[..., Any]) -> None:
    def held(user: str, query: str) -> Decimal:
        rows = table(browse(lab.users[user], f"/usage/usage.csv?by=month&{WINDOW}&{query}"))
        return sum((Decimal(row["allocated_gpu_seconds"]) for row in rows if row["id"]), Decimal())

    digits = f"project={lab.projects[0].pk}"
    assert 0 < held("bob", "") < held("bob", digits) == held("alice", digits) < held("alice", "")


@pytest.mark.parametrize("page", ["/usage/", "/usage/ledger/", "/usage/usage.csv", "/usage/ledger.csv"])
@pytest.mark.parametrize(
    "query",
    [
        "until=0001-01-01",
        "since=0001-01-01&until=0001-01-02",
        "since=1999-12-31",
        "until=9999-12-31",
        "since=2200-01-02",
        "since=10000-01-01",
        "since=2026-02-30",
        "since=1e3",
    ],
)
def test_a_day_that_no_report_is_about_is_refused_with_a_sentence(
    browse: Callable[..., Any], page: str, query: str
) -> None:
    user = make_user("bob")
    seen = browse(user, f"{page}?{query}")
    assert seen.status_code == 400 and (
        "Choose a day from 2000-01-01" in seen.text or "Enter a valid date" in seen.text
    )
    for address in (f"/api/v1/usage/?{query}", f"/api/v1/ledger/?{query}"):
        refused = browse(user, address)
        assert refused.status_code == 400 and set(refused.json()["error"]["fields"]) <= {"since", "until"}


def test_files_are_read_as_utf_8_by_spreadsheets(lab: month.Month, browse: Callable[..., Any]) -> None:
    for name in ("usage", "ledger"):
        assert browse(lab.users["alice"], f"/usage/{name}.csv?{WINDOW}").content.startswith("\ufeff".encode())


def test_another_users_project_or_person_cannot_be_requested(lab: month.Month, browse: Callable[..., Any]) -> None:
    for query in (
        f"project={lab.projects[2].pk}",
        f"user={lab.users['dana'].pk}",
        f"group={lab.groups['speech'].pk}",
        "by=nonsense",
    ):
        assert browse(lab.users["bob"], f"/usage/?{query}").status_code == 400
        refused = browse(lab.users["bob"], f"/api/v1/usage/?{query}")
        assert refused.status_code == 400 and refused.json()["error"]["fields"]


def test_the_csv_of_the_ledger_sums_to_the_capacity_to_the_last_digit(
    lab: month.Month, browse: Callable[..., Any]
) -> None:
    for reader in ("alice", "bob", "charlie"):
        rows = table(browse(lab.users[reader], f"/usage/ledger.csv?{WINDOW}"))

        def of(column: str, *kinds: str, rows: list[dict[str, str]] = rows) -> Decimal:
            return sum(
                (Decimal(row[column]) for row in rows if row["kind"] in kinds and row["name"] != "No group"), Decimal()
            )

        (capacity,) = [Decimal(row["used_gpu_seconds"]) for row in rows if row["kind"] == "capacity"]
        assert of("used_gpu_seconds", "user", "others", "idle") == capacity > 0
        assert of("entitled_gpu_seconds", "user", "others", "unclaimed") == capacity
        assert of("lent_gpu_seconds", "user", "others") == of("borrowed_gpu_seconds", "user", "others")


def test_balances_sum_to_nothing(lab: month.Month) -> None:
    report = reports.ledger(reports.visibility_of(lab.users["alice"]), lab.start.date(), NOW.date(), NOW)
    assert abs(sum(one.balance for one in report.people)) < 1e6
    assert any(abs(one.balance) > 3.6e9 for one in report.people)


def test_waiting_times_are_those_of_the_jobs(lab: month.Month) -> None:
    report = reports.usage(reports.visibility_of(lab.users["alice"]), lab.start.date(), NOW.date(), NOW)
    started = [job for job in lab.jobs if job.started_at]
    waits = sorted((job.started_at - job.submitted_at).total_seconds() for job in started)
    assert len(report.total.spent.waits) == len(started)
    assert report.total.spent.submitted == len(lab.jobs)
    assert report.total.p95 is not None and report.total.p95 <= waits[-1]
    assert report.total.mean == pytest.approx(sum(report.total.spent.waits) / len(started))


def test_rest_answers_in_pages_with_exact_numbers(lab: month.Month, browse: Callable[..., Any]) -> None:
    answer = browse(lab.users["alice"], f"/api/v1/usage/?by=user&page_size=3&{WINDOW}").json()
    assert (answer["count"], len(answer["results"]), answer["by"]) == (10, 3, "user") and answer["next"]
    first = answer["results"][0]
    parts = ("useful", "starting", "failed", "interrupted")
    assert sum(Decimal(first[f"{part}_gpu_seconds"]) for part in parts) == Decimal(first["allocated_gpu_seconds"])
    total = browse(lab.users["bob"], f"/api/v1/ledger/?{WINDOW}").json()["total"]
    used, idle = Decimal(total["used_gpu_seconds"]), Decimal(total["idle_gpu_seconds"])
    assert used + idle == Decimal(total["capacity_gpu_seconds"]) > 0


def test_nonsense_in_the_dates_is_answered_with_a_sentence(lab: month.Month, browse: Callable[..., Any]) -> None:
    for query in ("since=tomorrow", "since=2026-11-10&until=2026-11-01", "since=1999-01-01"):
        page = browse(lab.users["bob"], f"/usage/ledger/?{query}")
        assert page.status_code == 400 and b"The last 30 days are shown instead" in page.content
        assert browse(lab.users["bob"], f"/api/v1/ledger/?{query}").json()["error"]["code"] == "invalid"


def test_a_new_user_finds_a_page_without_usage(lab: month.Month, browse: Callable[..., Any]) -> None:
    new = make_user("zoe")
    assert b"No usage in these days" in browse(new, f"/usage/?{WINDOW}").content
    assert b"zoe" in browse(new, f"/usage/ledger/?{WINDOW}").content


def test_names_that_look_like_formulas_stay_names(lab: month.Month, browse: Callable[..., Any]) -> None:
    lab.projects[0].name = '=HYPERLINK("http://x")'
    lab.projects[0].save()
    rows = table(browse(lab.users["bob"], f"/usage/usage.csv?by=project&{WINDOW}"))
    assert rows[0]["project"].startswith("'=")


def test_pages_take_as_many_queries_for_a_year_as_for_a_week(
    lab: month.Month, client: Client, django_assert_max_num_queries: Any
) -> None:
    client.force_login(lab.users["alice"])
    for path in ("/usage/", "/usage/?by=month", "/usage/ledger/", "/api/v1/usage/", "/api/v1/ledger/"):
        mark = "&" if "?" in path else "?"
        for days in (7, 365):
            since = NOW.date() - timedelta(days=days - 1)
            with django_assert_max_num_queries(26):
                assert client.get(f"{path}{mark}since={since}").status_code == 200


def test_charts_have_their_numbers_as_tables(lab: month.Month, browse: Callable[..., Any]) -> None:
    page = browse(lab.users["alice"], f"/usage/?{WINDOW}").content.decode()
    assert "GPU-hours by day" in page and "Waiting times by person" in page and "<summary>Numbers" in page
    assert 'style="' not in page
    assert rollups.today(NOW).strftime("%d %b") in page
