"""The proxies of containers: what is counted, kept and reported."""

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from runners.agent.job_proxies import MAX_HOSTS, OTHERS, HostUse, JobProxies, NetworkUse
from runners.agent.portal_client import PortalRefusedError, PortalUnavailableError
from runners.host.egress import Connection
from runners.host.node_files import NodeFiles
from runners.messages import Quotation
from tests.runners.conftest import make_spec

SPEC = replace(make_spec(), allowed_hosts=("pypi.org",))


class Portal:
    def __init__(self) -> None:
        self.reports: list[tuple[str, list[Any]]] = []
        self.failure: Exception | None = None

    def report_network(self, container: str, hosts: list[Any]) -> None:
        if self.failure:
            raise self.failure
        self.reports.append((container, hosts))


@pytest.fixture
def files() -> Iterator[NodeFiles]:
    with TemporaryDirectory(prefix="sl-") as folder:  # a short path: clients of a socket cannot use one of 107 bytes
        made = NodeFiles(Path(folder) / "agent")
        made.make()
        made.make_container(SPEC)
        yield made


@pytest.fixture
def portal() -> Portal:
    return Portal()


def ask(files: NodeFiles, host: str, port: int = 443) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(files.network(SPEC.name) / "proxy"))
        client.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\n\r\n".encode())
        return client.recv(1000)


def proxies(files: NodeFiles, portal: Portal) -> JobProxies:
    return JobProxies(files, portal, lambda: None)


def test_counts_continue_with_the_next_agent(files: NodeFiles, portal: Portal) -> None:
    for _ in range(2):
        made = proxies(files, portal)
        made.open(SPEC)
        made.open(SPEC)
        assert b"403 Forbidden" in ask(files, "huggingface.co")
        made.close_all()
    made.send(SPEC)
    ((name, (host,)),) = portal.reports
    assert (name, host["host"], host["port"], host["refused"], host["connections"]) == (
        SPEC.name,
        "huggingface.co",
        443,
        2,
        0,
    )
    assert host["reason"] == "not_allowed" and 0 < host["first_at"] <= host["last_at"]


def test_a_report_is_sent_when_it_has_changed(files: NodeFiles, portal: Portal) -> None:
    made = proxies(files, portal)
    made.open(SPEC)
    made.send_all([SPEC, make_spec("sl-2-a1-0")])
    assert not portal.reports
    ask(files, "a.example")
    portal.failure = PortalUnavailableError(Quotation("away"))
    made.send_all([SPEC])
    portal.failure = None
    for _ in range(3):
        made.send_all([SPEC])
    ask(files, "b.example")
    made.send_all([SPEC])
    assert [[host["host"] for host in hosts] for _, hosts in portal.reports] == [
        ["a.example"],
        ["a.example", "b.example"],
    ]
    made.forget(SPEC.name)
    assert not (files.network(SPEC.name) / "proxy").exists()


def test_a_portal_of_an_earlier_release_is_not_asked_again(files: NodeFiles, portal: Portal) -> None:
    made = proxies(files, portal)
    made.open(SPEC)
    ask(files, "a.example")
    portal.failure = PortalRefusedError(404, Quotation("There is nothing here."))
    made.send_all([SPEC])
    portal.failure = None
    made.send_all([SPEC])
    assert not portal.reports
    made.close_all()


def test_a_container_without_hosts_has_no_socket(files: NodeFiles, portal: Portal) -> None:
    made = proxies(files, portal)
    made.open(make_spec("sl-2-a1-0"))
    assert not files.container("sl-2-a1-0").exists()


def test_a_socket_that_cannot_be_given_to_its_job_is_not_served(
    files: NodeFiles, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = proxies(files, portal)

    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "chmod", refuse)
        with pytest.raises(PermissionError):
            made.open(SPEC)
    assert not (files.network(SPEC.name) / "proxy").exists()
    made.open(SPEC)
    assert b"403 Forbidden" in ask(files, "huggingface.co")
    made.close_all()


def test_many_hosts_are_counted_together() -> None:
    use = NetworkUse()
    for number in range(MAX_HOSTS + 50):
        use.record(Connection(f"host-{number}.example", 443, 10, 1))
    use.record(Connection("x" * 1000, 443, reason="not_allowed", refusal="r" * 1000))
    hosts = use.take()[0]
    assert len(hosts) == MAX_HOSTS + 1
    assert (hosts[-1]["host"], hosts[-1]["connections"], hosts[-1]["received_bytes"]) == (OTHERS, 50, 500)
    assert len(hosts[-1]["detail"]) <= 200
    assert NetworkUse.from_json(json.loads(json.dumps(hosts))).take()[0] == hosts


@pytest.mark.parametrize("content", [None, {}, "text", [1], [{"host": "a"}], [{"unknown": 1}]])
def test_a_file_that_is_not_a_record_counts_as_empty(content: Any) -> None:
    assert NetworkUse.from_json(content).take()[0] == []


def test_what_was_opened_and_cut_off_counts_as_both() -> None:
    use = HostUse("a.example", 443)
    use.add(Connection("a.example", 443, 5, 6, "idle for 180 s", reason="cut_off"), 1.0)
    use.add(Connection("a.example", 443, error="no route", reason="unreachable"), 2.0)
    assert (use.connections, use.refused, use.reason, use.first_at, use.last_at) == (1, 2, "unreachable", 1.0, 2.0)
