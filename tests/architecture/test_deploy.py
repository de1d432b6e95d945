"""What is deployed is what there is: the same five processes by compose and by systemd, and no setting nobody reads."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SYSTEMD = ROOT / "deploy" / "systemd"
PORTAL = ("web", "nodes", "scheduler", "worker", "beat")
OPTIONS_OF_A_PLACE = {"-e", "-b", "--loglevel", "-s"}
"""Whose values differ: a container's own folders and addresses are not the machine's."""


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    return loaded


def read_by(*files: str) -> set[str]:
    return {name for file in files for name in re.findall(r"[\"{$]([A-Z][A-Z_]+)", (ROOT / file).read_text())}


def variables_of(path: Path) -> set[str]:
    """Of an environment file, or of ``Environment=`` and the remarks of a unit."""
    return set(re.findall(r"^(?:Environment=|# )?([A-Z][A-Z_]+)=", path.read_text(), re.MULTILINE))


def essence(command: list[str]) -> list[str]:
    words = [Path(word).name for word in command]
    return [word for before, word in zip(["", *words], words, strict=False) if before not in OPTIONS_OF_A_PLACE]


@pytest.mark.parametrize("name", PORTAL)
def test_compose_and_systemd_start_the_same(name: str) -> None:
    unit = (SYSTEMD / f"schedulearn-{name}.service").read_text()
    (started,) = re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)
    assert essence(started.split()) == essence(compose()["services"][name]["command"])


def test_no_process_is_forgotten() -> None:
    assert set(compose()["services"]) == {"postgres", "redis", "migrate", *PORTAL}
    assert {path.stem for path in SYSTEMD.iterdir()} == {f"schedulearn-{name}" for name in (*PORTAL, "agent")}


def test_every_variable_is_read_by_somebody() -> None:
    example = variables_of(ROOT / "deploy" / "lab.env.example")
    assert {"DATABASE_URL", "SECRET_KEY", "EMAIL_HOST_PASSWORD"} <= example
    assert example <= read_by("portal/settings.py", "deploy/compose.yaml")
    for name in PORTAL:
        assert (
            variables_of(SYSTEMD / f"schedulearn-{name}.service")
            == {"SCHEDULEARN_HOME"}
            <= read_by("portal/settings.py")
        )
    agent = variables_of(SYSTEMD / "schedulearn-agent.service")
    assert {"AGENT_HOME", "SCHEDULEARN_URL"} <= agent <= read_by("runners/agent_settings.py", "runners/preparing.py")
