"""What is deployed is what there is: the same five processes by compose and by systemd, and no setting without a reader."""

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


def test_every_variable_of_the_examples_is_read() -> None:
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
    assert (
        {"AGENT_HOME", "SCHEDULEARN_URL"}
        <= agent
        <= read_by("runners/agent/settings.py", "runners/environments/preparing.py")
    )


def test_every_public_image_can_be_pinned_by_a_digest() -> None:
    services = compose()["services"]
    for name in ("postgres", "redis"):
        assert re.fullmatch(rf"\$\{{{name.upper()}_IMAGE:-{name}:[\w.-]+}}", services[name]["image"])
    assert services["web"]["build"]["args"]["BASE_IMAGE"].startswith("${PORTAL_BASE_IMAGE:-python:")
    assert "FROM ${BASE_IMAGE}" in (ROOT / "deploy" / "Dockerfile").read_text()


def test_no_argument_of_a_container_holds_a_password() -> None:
    """Whoever may list processes reads arguments; whoever may inspect a container reads its settings as well."""
    for name, service in compose()["services"].items():
        arguments = f"{service.get('command')} {service.get('healthcheck')}"
        assert not re.search(r"(?<!\$)\$\{?[A-Z_]*(PASSWORD|SECRET|TOKEN)", arguments), name
        if name in ("postgres", "redis"):
            values = service.get("environment", {}).values()
            assert service["secrets"] == [f"{name}_password"]
            assert not any("${" in value for value in values), name


def test_no_command_of_a_unit_holds_a_password_or_token() -> None:
    for path in SYSTEMD.iterdir():
        commands = re.findall(r"^Exec\w+=(.+)$", path.read_text(), re.MULTILINE)
        assert commands and not any(re.search("PASSWORD|SECRET|TOKEN|--join-token", line) for line in commands)


def test_the_agent_is_joined_without_its_token_in_arguments() -> None:
    script = (ROOT / "deploy" / "agent" / "install.sh").read_text()
    assert "--join-token" not in script
    joins, runs = script.index("SCHEDULEARN_PROGRAM=runners.agent.enrol"), script.index('exec "$PREFIX/run"')
    assert joins < script.index("unset SCHEDULEARN_JOIN_TOKEN") < runs
