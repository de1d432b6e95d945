"""``make lock``: which sources become which lock files, and which options of the local pip configuration apply."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from portal.ops import locks as module
from portal.ops.locks import Lock, find_locking_uv, locks, main, write
from runners.environments.installing import Uv
from runners.environments.pip_settings import UvSettings
from runners.environments.preparing import ProgramError


class Recorder(Uv):
    """A uv that writes one package and records its commands."""

    commands: ClassVar[list[list[str]]] = []
    preferred: ClassVar[list[str]] = []

    def run(self, command: Sequence[str | Path], log: Path, tick: Any = None, seconds: float = 0) -> None:
        words = [str(word) for word in command]
        made = Path(words[words.index("--output-file") + 1])
        self.preferred.append(made.read_text() if made.exists() else "")
        self.commands.append(words)
        made.write_text("six==1.17.0 \\\n    --hash=sha256:00\n")


@pytest.fixture
def uv(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    monkeypatch.setattr(Recorder, "commands", [])
    monkeypatch.setattr(Recorder, "preferred", [])
    return Recorder("uv", UvSettings(("--no-config",), {}))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "requirements.txt").write_text("# the portal\nDjango==5.2.19\nhttpx==0.28.1\nuv==0.13.9\n")
    (tmp_path / "requirements-docs.txt").write_text("-r requirements.txt\nsphinx==9.0.4\n")
    (tmp_path / "requirements-dev.txt").write_text("-r requirements-docs.txt\npytest==9.2.0\n")
    (tmp_path / "deploy" / "agent").mkdir(parents=True)
    return tmp_path


def test_the_tests_lock_contains_the_portals_sources_and_the_agents_only_its_own(root: Path) -> None:
    portal, docs, tests, agent = locks(root)
    assert "Django==5.2.19" in portal.requirements and "sphinx" not in portal.requirements
    assert "Django==5.2.19" in docs.requirements and "pytest" not in docs.requirements
    assert {"Django==5.2.19", "sphinx==9.0.4", "pytest==9.2.0"} <= set(tests.requirements.split())
    assert agent.requirements == "httpx==0.28.1\nuv==0.13.9\n"
    assert not any("-r " in lock.requirements for lock in (portal, docs, tests, agent))


def test_locked_versions_stay_until_an_upgrade_is_asked_for(root: Path, uv: Recorder) -> None:
    lock = Lock("requirements.lock", "requirements.txt", "six\n")
    write(lock, root, uv, root / "log", upgrade=False)
    write(lock, root, uv, root / "log", upgrade=False)
    write(lock, root, uv, root / "log", upgrade=True)
    first, kept, upgraded = uv.preferred
    assert (first, upgraded) == ("", "") and "six==1.17.0" in kept
    text = (root / "requirements.lock").read_text()
    assert text.startswith("# Made by `make lock` from requirements.txt.") and "--hash=sha256:00" in text


def test_the_other_locks_follow_the_portals_versions(root: Path, uv: Recorder) -> None:
    for lock in locks(root):
        write(lock, root, uv, root / "log", upgrade=False)
    portal, *others = uv.commands
    assert "--constraint" not in portal and "--universal" in portal and "--generate-hashes" in portal
    assert all(words[words.index("--constraint") + 1] == str(root / "requirements.lock") for words in others)
    assert not any(str(root / "requirements.txt") in words for words in uv.commands)


def test_only_indexes_that_other_machines_can_reach_decide_what_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"index-url": "https://index.example/simple", "find-links": "/srv/wheels", "constraint": "/etc/c.txt"}
    monkeypatch.setattr(module.pip_settings, "read", lambda: config)
    settings = find_locking_uv().settings
    assert dict(settings.variables) == {"UV_DEFAULT_INDEX": "https://index.example/simple"}


def test_a_failure_shows_what_uv_printed(
    root: Path, uv: Recorder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(lock: Lock, root: Path, uv: Uv, log: Path, upgrade: bool) -> None:
        log.write_text("error: no version of django==99 was found\n")
        raise ProgramError("it failed")

    monkeypatch.setattr(module, "find_locking_uv", lambda: uv)
    monkeypatch.setattr(module, "write", fails)
    assert main([]) == 1
    assert "no version of django==99 was found" in capsys.readouterr().err
