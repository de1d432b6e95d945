"""uv finds what pip is configured to find, or is not used."""

from pathlib import Path

import pytest

from runners.environments import pip_settings
from runners.environments.pip_settings import UntranslatableError, environment, parse, translate

LISTED = """\
:env:.find-links='/wheels'
global.cert='/etc/ssl/lab.pem'
global.extra-index-url='https://lab.example/simple\\nhttps://other.example/simple'
global.find-links='/older'
global.index-url='https://mirror.example/simple'
install.index-url='https://install.example/simple'
freeze.timeout='1'
"""


def test_variables_override_commands_and_commands_override_the_rest() -> None:
    assert parse(LISTED) == {
        "cert": "/etc/ssl/lab.pem",
        "extra-index-url": "https://lab.example/simple\nhttps://other.example/simple",
        "find-links": "/wheels",
        "index-url": "https://install.example/simple",
    }


def test_without_any_configuration_packages_come_from_the_public_index() -> None:
    settings = translate({})
    assert settings.variables == {}
    assert "--no-config" in settings.options and "--index-strategy=unsafe-best-match" in settings.options


def test_indexes_and_folders_are_passed_on(tmp_path: Path) -> None:
    config = {
        "index-url": "https://user:secret@mirror.example/simple",
        "extra-index-url": "https://a.example/simple https://b.example/simple",
        "find-links": f"{tmp_path} {tmp_path}/absent https://wheels.example/",
        "constraint": "/etc/constraints.txt",
        "trusted-host": "a.example",
    }
    settings = translate(config, extra_index="https://torch.example/cpu")
    assert settings.variables == {
        "UV_DEFAULT_INDEX": "https://user:secret@mirror.example/simple",
        "UV_INDEX": "https://a.example/simple https://b.example/simple https://torch.example/cpu",
        "UV_FIND_LINKS": f"{tmp_path},https://wheels.example/",
        "UV_CONSTRAINT": "/etc/constraints.txt",
        "UV_INSECURE_HOST": "a.example",
    }
    assert "secret" not in " ".join(settings.options)  # other users of the machine see command lines


def test_network_settings_become_variables() -> None:
    config = {"cert": "/lab.pem", "proxy": "http://proxy:3128", "default-timeout": "180", "retries": "2"}
    variables = translate(config).variables
    assert variables["SSL_CERT_FILE"] == "/lab.pem" and variables["UV_HTTP_TIMEOUT"] == "180"
    assert variables["HTTP_PROXY"] == variables["HTTPS_PROXY"] == "http://proxy:3128"


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({"no-index": "true"}, ["--no-index"]),
        ({"no-index": "0"}, []),
        ({"pre": "yes"}, ["--prerelease=allow"]),
        ({"only-binary": "numpy,scipy"}, ["--only-binary=numpy", "--only-binary=scipy"]),
        ({"disable-pip-version-check": "1", "no-cache-dir": "false", "progress-bar": "off"}, []),
    ],
)
def test_choices_become_options(config: dict[str, str], options: list[str]) -> None:
    assert list(translate(config).options[2:]) == options


@pytest.mark.parametrize("name", ["target", "require-hashes", "user", "platform", "an-option-of-tomorrow"])
def test_what_uv_does_not_know_is_left_to_pip(name: str) -> None:
    with pytest.raises(UntranslatableError, match=name):
        translate({name: "x"})


def test_variables_of_uv_do_not_change_what_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UV_INDEX_URL", "https://elsewhere.example/simple")
    monkeypatch.setenv("UV_LINK_MODE", "copy")
    monkeypatch.delenv("UV_CACHE_DIR", raising=False)
    changes = environment(translate({}), tmp_path / "uv")
    assert changes["UV_INDEX_URL"] is None and "UV_LINK_MODE" not in changes
    assert changes["UV_CACHE_DIR"] == str(tmp_path / "uv")
    monkeypatch.setenv("UV_CACHE_DIR", "/mine")
    assert "UV_CACHE_DIR" not in environment(translate({}), tmp_path)


def test_settings_are_read_from_this_machines_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://named.example/simple")
    assert pip_settings.read()["index-url"] == "https://named.example/simple"
