"""Rank groups that drivers report are sent when they have changed, and again until they have arrived."""

import json
from pathlib import Path
from typing import Any

import pytest

from runners.agent.portal_client import PortalRefusedError, PortalUnavailableError
from runners.agent.rank_group_reports import UNAVAILABLE_RETRY_SECONDS, RankGroupReports
from runners.host.node_files import NodeFiles
from tests.runners.conftest import make_spec

DRIVER = make_spec(role="driver", hostname="driver", slots=0)


class Portal:
    def __init__(self) -> None:
        self.heard: list[tuple[str, list[Any]]] = []
        self.mood: Exception | None = None

    def report_rank_groups(self, container: str, rings: list[Any]) -> None:
        if self.mood:
            raise self.mood
        self.heard.append((container, rings))


@pytest.fixture
def portal() -> Portal:
    return Portal()


@pytest.fixture
def files(tmp_path: Path) -> NodeFiles:
    files = NodeFiles(tmp_path / "agent")
    files.scribe(DRIVER.name).mkdir(parents=True)
    return files


def write_status(files: NodeFiles, content: str) -> None:
    (files.scribe(DRIVER.name) / "status.json").write_text(content)


def rings(*numbers: int) -> str:
    return json.dumps({"phase": "running", "rings": [{"number": number} for number in numbers]})


def test_each_change_is_sent_once(files: NodeFiles, portal: Portal) -> None:
    reports = RankGroupReports(files, portal, lambda: [DRIVER, make_spec(name="sl-1-a1-1", hostname="h1")])
    assert reports.send() is None
    write_status(files, rings(1))
    for _ in range(3):
        reports.send()
    write_status(files, rings(1, 2))
    reports.send()
    assert portal.heard == [(DRIVER.name, [{"number": 1}]), (DRIVER.name, [{"number": 1}, {"number": 2}])]


def test_what_did_not_arrive_is_sent_again_and_what_was_refused_is_not(files: NodeFiles, portal: Portal) -> None:
    reports = RankGroupReports(files, portal, lambda: [DRIVER])
    write_status(files, rings(1))
    portal.mood = PortalUnavailableError("away")
    assert reports.send() == UNAVAILABLE_RETRY_SECONDS
    portal.mood = PortalRefusedError(400, "what?")
    assert reports.send() is None
    portal.mood = None
    reports.send()
    assert portal.heard == []
    write_status(files, rings(1, 2))
    reports.send()
    assert len(portal.heard) == 1


@pytest.mark.parametrize("content", ["", "[]", '{"rings": 5}', '{"rings": []}', "{"])
def test_nonsense_is_not_passed_on(files: NodeFiles, portal: Portal, content: str) -> None:
    write_status(files, content)
    assert RankGroupReports(files, portal, lambda: [DRIVER]).send() is None
    assert portal.heard == []


def test_a_driver_that_is_no_longer_listed_is_forgotten(files: NodeFiles, portal: Portal) -> None:
    listed = [DRIVER]
    reports = RankGroupReports(files, portal, lambda: listed)
    write_status(files, rings(1))
    reports.send()
    listed.clear()
    reports.send()
    listed.append(DRIVER)
    reports.send()
    assert len(portal.heard) == 2
