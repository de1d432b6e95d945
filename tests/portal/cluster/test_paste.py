"""The pasted line, for real: a shell, a portal behind a certificate that no authority signed, and an agent that joins."""

import inspect
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from portal.cluster import agent_package, services
from portal.cluster.models import Node
from runners.agent import settings as agent_settings
from tests.cluster.authority import make_authority

pytestmark = pytest.mark.django_db(transaction=True)


class TlsProxy:
    """Passes on what comes over TLS. Its certificate is for another address, and its authority is unknown."""

    def __init__(self, folder: Path, behind: str) -> None:
        _, cert, key = make_authority(folder, ["192.0.2.1"])
        host, _, port = behind.removeprefix("http://").partition(":")
        self._behind = (host, int(port))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(caller,), daemon=True).start()

    def _carry(self, caller: socket.socket) -> None:
        with suppress(OSError):
            secure = self._context.wrap_socket(caller, server_side=True)
            portal = socket.create_connection(self._behind)
            threading.Thread(target=_pump, args=(secure, portal), daemon=True).start()
            _pump(portal, secure)

    def close(self) -> None:
        self._listener.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65_536):
            sink.sendall(piece)
    for end in (sink, source):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)  # also wakes the other direction's thread, which a close would not


@pytest.fixture
def portal(live_server: Any, tmp_path: Path) -> Iterator[TlsProxy]:
    proxy = TlsProxy(tmp_path, live_server.url)
    yield proxy
    proxy.close()


def paste(line: str, folder: Path, *places_set: str, **more: str) -> subprocess.CompletedProcess[str]:
    """In a shell that knows nothing of this one. Its environment of packages is ours, so that pip has nothing to fetch.

    The places named by ``places_set`` are set, all three without it; ``more`` are other variables.
    """
    python = folder / "program" / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    places = {"SCHEDULEARN_AGENT_PREFIX": "program", "AGENT_HOME": "state", "SCHEDULEARN_CACHE": "cache", "HOME": "."}
    places = {name: place for name, place in places.items() if not places_set or name in {*places_set, "HOME"}}
    env = {name: str(folder / place) for name, place in places.items()}
    env |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RUNTIME": "fake",
        "NODE_NAME": "new-one",
    } | more
    return subprocess.run(["bash", "-c", line], env=env, cwd=folder, capture_output=True, text=True, timeout=120)


def test_the_pasted_line_makes_a_machine_a_node_of_the_pinned_portal(portal: TlsProxy, tmp_path: Path) -> None:
    certificate = agent_package.check_certificate(portal.url)
    assert not certificate.trusted and len(certificate.pin) == 64
    token = services.issue_join_token(None)
    done = paste(agent_package.join_command(portal.url, token, certificate), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"This machine is node {Node.objects.get().pk} (new-one)" in done.stdout
    kept = tmp_path / "program" / "agent.env"
    assert kept.stat().st_mode & 0o777 == 0o600 and f"SCHEDULEARN_PIN={certificate.pin}" in kept.read_text()
    assert token not in kept.read_text()
    # Pasted again it brings the agent and keeps the node, though its token is used up.
    again = paste(agent_package.join_command(portal.url, token, certificate), tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert Node.objects.count() == 1


def test_a_portal_with_another_certificate_gets_no_token(portal: TlsProxy, tmp_path: Path) -> None:
    other = agent_package.Certificate(False, "ab" * 32)
    done = paste(agent_package.join_command(portal.url, services.issue_join_token(None), other), tmp_path)
    assert done.returncode != 0 and "another certificate" in done.stderr
    assert not Node.objects.exists()


def test_a_script_that_is_not_the_announced_one_does_not_run(portal: TlsProxy, tmp_path: Path) -> None:
    line = agent_package.join_command(portal.url, services.issue_join_token(None), agent_package.Certificate(False))
    done = paste(line.replace(agent_package.script_sha256(), "0" * 64), tmp_path)
    assert done.returncode != 0 and done.stdout == ""
    assert not (tmp_path / "state").exists()


@pytest.fixture
def line(portal: TlsProxy) -> str:
    token = services.issue_join_token(None)
    return agent_package.join_command(portal.url, token, agent_package.check_certificate(portal.url))


def stored(folder: Path) -> dict[str, str]:
    """Return the settings as the agent gets them."""
    script = 'set -a; . "$1"; env -0'
    done = subprocess.run(
        ["sh", "-c", script, "-", folder / "program" / "agent.env"], env={}, capture_output=True, text=True
    )
    return dict(each.split("=", 1) for each in done.stdout.split("\0") if "=" in each)


def test_settings_are_copied_and_stay_until_others_are_given(line: str, tmp_path: Path) -> None:
    data, shared = tmp_path / "all data's", tmp_path / "100% shared"
    data.mkdir()
    shared.mkdir()
    given = {
        "SCHEDULEARN_DATASETS": str(data),
        "SCHEDULEARN_SHARED": str(shared),
        "SCHEDULEARN_BUILD_IMAGE": "debian:12",
        "SCHEDULEARN_CONFINE": "no",
        "PIP_INDEX_URL": "https://mirror.example/simple?a=b&c",
        "HTTPS_PROXY": "http://u:p$x@proxy:3128",
        "NO_PROXY": "127.0.0.1, .example",
    }
    assert paste(line, tmp_path, **given).returncode == 0
    assert stored(tmp_path).items() >= given.items()
    with (tmp_path / "program" / "agent.env").open("a") as settings:
        settings.write("# by hand\nOF_MINE='1 2'\n")
    # Neither places nor settings are given the next time, but one that is to change.
    done = paste(line, tmp_path, "SCHEDULEARN_AGENT_PREFIX", SCHEDULEARN_CONFINE="yes")
    assert done.returncode == 0, done.stdout + done.stderr
    wanted = {**given, "SCHEDULEARN_CONFINE": "yes", "OF_MINE": "1 2", "AGENT_HOME": str(tmp_path / "state")}
    assert stored(tmp_path).items() >= wanted.items()
    assert stored(tmp_path)["SCHEDULEARN_CACHE"] == str(tmp_path / "cache")
    assert "# by hand" in (tmp_path / "program" / "agent.env").read_text()
    assert Node.objects.count() == 1


def test_a_setting_that_cannot_work_is_refused_before_anything_is_installed(line: str, tmp_path: Path) -> None:
    for name, value, why in (
        ("SCHEDULEARN_SHARED", "shared", "whole path"),
        ("SCHEDULEARN_SHARED", '/a"b', "characters"),
        ("SCHEDULEARN_AGENT_PREFIX", "rel/program", "whole paths"),
        ("AGENT_HOME", "../state", "whole paths"),
        ("SCHEDULEARN_CACHE", "/srv/a%h/cache", "characters"),
    ):
        done = paste(line, tmp_path, **{name: value})
        assert done.returncode != 0 and why in done.stderr, done.stderr
        assert (name if name == "SCHEDULEARN_SHARED" else value) in done.stderr
    assert not (tmp_path / "state").exists()
    done = paste(line, tmp_path, NO_PROXY="a\nSCHEDULEARN_URL=https://elsewhere")
    assert done.returncode != 0 and "NO_PROXY has more than one line" in done.stderr


def test_settings_that_no_shell_can_read_are_named_and_kept(line: str, tmp_path: Path) -> None:
    settings = tmp_path / "program" / "agent.env"
    settings.parent.mkdir()
    settings.write_text("AGENT_HOME='/srv/agent\n")
    done = paste(line, tmp_path)
    assert done.returncode != 0 and "agent.env cannot be read by a shell" in done.stderr
    assert settings.read_text() == "AGENT_HOME='/srv/agent\n" and not (tmp_path / "state").exists()


def test_an_exported_setting_is_replaced(line: str, tmp_path: Path) -> None:
    settings = tmp_path / "program" / "agent.env"
    settings.parent.mkdir()
    settings.write_text("export NODE_NAME=older\nOWN=1\n")
    assert paste(line, tmp_path).returncode == 0
    assert "older" not in settings.read_text() and "OWN=1\n" in settings.read_text()
    assert stored(tmp_path)["NODE_NAME"] == "new-one"


def test_every_variable_that_the_agent_reads_is_copied() -> None:
    read = set(re.findall(r'"((?:SCHEDULEARN|AGENT)_[A-Z_]+|RUNTIME|NODE_NAME)"', inspect.getsource(agent_settings)))
    read |= {"SCHEDULEARN_CPU_SLOTS", "SCHEDULEARN_BASE_IMAGE", "SCHEDULEARN_BUILD_IMAGE", "SCHEDULEARN_TORCH_INDEX"}
    copied = set(re.findall(r"[A-Z_]+", agent_package.install_script().partition("# 5.")[2].partition("# 6.")[0]))
    assert len(read) > 12 and read - copied == {"SCHEDULEARN_HOME", "SCHEDULEARN_JOIN_TOKEN"}


HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(120)
"""


@contextmanager
def working_agent(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Hold the lock of a working agent."""
    (folder / "state").mkdir(exist_ok=True)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, folder / "state" / "agent.lock"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_beside_an_agent_that_was_started_by_hand_nothing_is_installed(line: str, tmp_path: Path) -> None:
    with working_agent(tmp_path) as agent:
        done = paste(line, tmp_path)
        assert done.returncode != 0 and f"kill {agent.pid}\n" in done.stderr and "paste the line again" in done.stderr
        assert not list((tmp_path / "program").glob("code-*")) and agent.poll() is None
    assert not Node.objects.exists()


SYSTEMCTL = """#!/bin/sh
echo "$*" >>{folder}/calls
case "$1" in
    is-active) test -e {folder}/active ;;
    stop) rm {folder}/active; kill "$(cat {folder}/pid)"; sleep 0.5 ;;
    start|restart) touch {folder}/active ;;
esac
"""


def as_service(
    portal: TlsProxy, folder: Path, systemctl: str = SYSTEMCTL, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run the install script as root on a machine with systemd, of which only the command and its folders are pretended."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "systemctl").write_text(systemctl.format(folder=folder))
    (folder / "bin" / "systemctl").chmod(0o755)
    script = agent_package.install_script().replace('"$(id -u)" = 0', "0 = 0")
    script = script.replace("/run/systemd/system", str(folder)).replace("/etc/systemd/system", str(folder))
    (folder / "install.sh").write_text(script.replace("/opt/schedulearn-agent", str(folder / "program")))
    pin = agent_package.check_certificate(portal.url).pin
    line = f"PATH={folder}/bin:$PATH sh install.sh --url {portal.url} --pin {pin}"
    return paste(line, folder, "AGENT_HOME", SCHEDULEARN_CACHE=str(folder / "cache"), **more)


def test_a_service_is_stopped_at_the_last_moment_and_started_again(portal: TlsProxy, tmp_path: Path) -> None:
    shared = tmp_path / "shared 100%"
    shared.mkdir()
    token = services.issue_join_token(None)
    done = as_service(portal, tmp_path, SCHEDULEARN_JOIN_TOKEN=token, SCHEDULEARN_SHARED=str(shared))
    assert done.returncode == 0, done.stdout + done.stderr
    unit = (tmp_path / "schedulearn-agent.service").read_text()
    assert f'ReadWritePaths={tmp_path}/state {tmp_path}/cache "-{tmp_path}/shared 100%%" /run\n' in unit
    with working_agent(tmp_path) as agent:
        (tmp_path / "pid").write_text(str(agent.pid))
        (tmp_path / "calls").unlink()
        done = as_service(portal, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    changes = [each for each in (tmp_path / "calls").read_text().splitlines() if not each.startswith("is-active")]
    assert changes == [
        "stop schedulearn-agent.service",
        "daemon-reload",
        "enable --quiet schedulearn-agent.service",
        "restart schedulearn-agent.service",
    ]
    assert f'"-{tmp_path}/shared 100%%" /run\n' in (tmp_path / "schedulearn-agent.service").read_text()
    assert done.stdout.index("Installing its packages") < done.stdout.index("Stopping the agent")
    assert Node.objects.count() == 1


def test_a_service_that_cannot_join_again_is_started_with_what_it_has(portal: TlsProxy, tmp_path: Path) -> None:
    token = services.issue_join_token(None)
    assert as_service(portal, tmp_path, SCHEDULEARN_JOIN_TOKEN=token).returncode == 0
    with working_agent(tmp_path) as agent:
        (tmp_path / "pid").write_text(str(agent.pid))
        done = as_service(portal, tmp_path, RUNTIME="process")  # it joined with another
    assert done.returncode != 0 and "Not joined" in done.stderr
    assert (tmp_path / "calls").read_text().splitlines()[-1] == "start schedulearn-agent.service"


def test_an_update_that_is_cut_off_starts_the_service_again(portal: TlsProxy, tmp_path: Path) -> None:
    token = services.issue_join_token(None)
    assert as_service(portal, tmp_path, SCHEDULEARN_JOIN_TOKEN=token).returncode == 0
    unit = (tmp_path / "schedulearn-agent.service").read_text()
    with working_agent(tmp_path) as agent:
        (tmp_path / "pid").write_text(str(agent.pid))
        # Not a hang-up, which a test that runs under nohup could not send.
        ends = SYSTEMCTL.replace("sleep 0.5", "kill -TERM $PPID")
        done = as_service(portal, tmp_path, systemctl=ends)
    assert done.returncode == 1
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[-2:] == ["stop schedulearn-agent.service", "start schedulearn-agent.service"]
    assert (tmp_path / "schedulearn-agent.service").read_text() == unit


def test_a_unit_that_cannot_be_written_leaves_the_agent_running(portal: TlsProxy, tmp_path: Path) -> None:
    token = services.issue_join_token(None)
    assert as_service(portal, tmp_path, SCHEDULEARN_JOIN_TOKEN=token).returncode == 0
    (tmp_path / "schedulearn-agent.service.new").mkdir()
    with working_agent(tmp_path) as agent:
        (tmp_path / "pid").write_text(str(agent.pid))
        assert as_service(portal, tmp_path).returncode != 0
        assert agent.poll() is None
    assert "stop" not in (tmp_path / "calls").read_text().splitlines()[-1]


def test_a_portal_that_does_not_answer_keeps_the_agent_away_for_seconds(portal: TlsProxy, tmp_path: Path) -> None:
    token = services.issue_join_token(None)
    assert as_service(portal, tmp_path, SCHEDULEARN_JOIN_TOKEN=token).returncode == 0
    (code,) = (tmp_path / "program").glob("code-*")
    (code / "in-use").touch()
    with working_agent(tmp_path) as agent:
        (tmp_path / "pid").write_text(str(agent.pid))
        # As if the time were over; that it is bounded is what the script asks of this command.
        (tmp_path / "bin" / "timeout").write_text('#!/bin/sh\necho "$@" >>"$HOME/bounds"\nexit 124\n')
        (tmp_path / "bin" / "timeout").chmod(0o755)
        done = as_service(portal, tmp_path)
    assert done.returncode == 1 and "within 20 s" in done.stderr
    assert (tmp_path / "bounds").read_text().startswith("-k 3 20 ")
    assert (tmp_path / "calls").read_text().splitlines()[-1] == "start schedulearn-agent.service"
    assert (code / "in-use").exists(), "the code that runs was replaced by the same"
