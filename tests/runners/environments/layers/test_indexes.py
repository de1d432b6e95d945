"""What a build may reach, from pip's configuration and from the recipe."""

import os
from pathlib import Path

import pytest

from runners.environments import pip_settings
from runners.environments.layers.indexes import IndexAccess, find_access, local_folders
from runners.environments.layers.recipe import Recipe
from runners.environments.preparing import PrepareError
from runners.host.upstream import Upstream
from runners.messages.environment_failures import SystemRefused


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without proxies, certificates or settings."""
    for name in list(os.environ):
        if (
            name.upper().endswith(("_PROXY", "_CA_BUNDLE"))
            or name.startswith("SSL_")
            or name == "SCHEDULEARN_TORCH_INDEX"
        ):
            monkeypatch.delenv(name)


def access(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, str], **options: tuple[str, ...]
) -> IndexAccess:
    monkeypatch.setattr(pip_settings, "read", lambda: config)
    inputs = tmp_path / "inputs"
    inputs.mkdir(exist_ok=True)
    return find_access(Recipe("pytorch", ("rich",), **options), inputs)  # type: ignore[arg-type]


def reach(found: IndexAccess, host: str, port: int = 443) -> str:
    """Return whether a host may be reached, and whether it may be an internal one."""
    rules = [rule for rule in found.rules if rule.allows(host, port)]
    return "no" if not rules else "internal" if any(rule.internal for rule in rules) else "public"


def test_pip_without_settings_reaches_pypi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = access(tmp_path, monkeypatch, {})
    assert reach(found, "pypi.org") == reach(found, "files.pythonhosted.org") == "internal", (
        "the machine's resolver decides"
    )
    assert reach(found, "download.pytorch.org") == reach(found, "download-r2.pytorch.org") == "public"
    assert reach(found, "example.org") == reach(found, "evil-pypi.org") == reach(found, "pypi.org", 8080) == "no"
    assert found.upstream is None and found.folders == () and found.constraints == ()


def test_hosts_of_pip_s_settings_replace_pypi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {
        "index-url": "https://ada:secret@index.lab:8443/simple",
        "extra-index-url": "http://more.lab/simple",
        "find-links": f"https://wheels.lab/x {tmp_path}",
    }
    found = access(tmp_path, monkeypatch, config)
    assert reach(found, "index.lab", 8443) == reach(found, "more.lab", 80) == reach(found, "wheels.lab") == "internal"
    assert reach(found, "pypi.org") == "no" and reach(found, "index.lab", 22) == "no"
    assert found.folders == (tmp_path,)


def test_hosts_and_indexes_of_a_recipe_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = access(
        tmp_path,
        monkeypatch,
        {"no-index": "true", "find-links": str(tmp_path)},
        indexes=("https://index.example/simple",),
        hosts=("*.files.example", "lab.example:9000"),
    )
    assert reach(found, "index.example") == "public"
    assert reach(found, "a.files.example") == reach(found, "lab.example", 9000) == "internal"
    assert reach(found, "pypi.org") == reach(found, "lab.example") == "no"
    assert found.variables["UV_INDEX"] == "https://index.example/simple"
    assert found.with_index("https://cpu.example")["UV_INDEX"] == "https://index.example/simple https://cpu.example"


def test_certificates_and_constraints_are_copied_for_the_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "certificates.pem").write_text("certificate")
    (tmp_path / "limits.txt").write_text("rich<99")
    (tmp_path / "a" / "limits.txt").write_text("six<99")
    limits = f"{tmp_path / 'limits.txt'} {tmp_path / 'a' / 'limits.txt'}"
    found = access(tmp_path, monkeypatch, {"cert": str(tmp_path / "certificates.pem"), "constraint": limits})
    copies = [*found.constraints, Path(found.variables["SSL_CERT_FILE"])]
    assert [copy.read_text() for copy in copies] == ["rich<99", "six<99", "certificate"]
    assert {copy.parent for copy in copies} == {tmp_path / "inputs"} and "UV_CONSTRAINT" not in found.variables


def test_a_file_of_pip_s_settings_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PrepareError, match="gone.pem") as error:
        access(tmp_path, monkeypatch, {"cert": str(tmp_path / "gone.pem")})
    assert isinstance(error.value.failure, SystemRefused)


def test_the_machine_s_proxy_is_ours_to_use_and_not_the_build_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = access(tmp_path, monkeypatch, {"proxy": "http://ada:secret@proxy.lab:3128"})
    assert found.upstream == Upstream("proxy.lab", 3128, "Basic YWRhOnNlY3JldA==")
    assert not {"HTTP_PROXY", "HTTPS_PROXY"} & set(found.variables)


def test_settings_that_build_from_source_apply_only_where_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"no-binary": "rich", "only-binary": "six"}
    assert not [each for each in access(tmp_path, monkeypatch, config).options if "no-binary" in each]
    allowed = access(tmp_path, monkeypatch, config, source_builds=True)  # type: ignore[arg-type]
    assert "--no-binary=rich" in allowed.options and "--only-binary=six" in allowed.options


def test_folders_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "index" / "simple").mkdir(parents=True)
    (tmp_path / "index" / "page.html").touch()
    assert local_folders(f"file://{tmp_path}/index/simple") == [tmp_path / "index"], "its files are beside it"
    assert local_folders(str(tmp_path / "index" / "page.html")) == [tmp_path / "index"]
    for address in ("https://index.example/simple", "/", "/home", "/simple", str(tmp_path / "gone" / "x")):
        assert local_folders(address) == []
