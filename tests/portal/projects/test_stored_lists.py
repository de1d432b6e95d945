"""The package lists of a code version: read at its upload, and again where that was an earlier release or a source is allowed now."""

import io
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache

from portal import sandbox
from portal.accounts.models import User
from portal.projects import inspection, services, store
from portal.projects.models import CodeVersion

pytestmark = pytest.mark.django_db

FILES = {
    "train.py": b"import torch, pandas\n",
    "requirements.txt": b"pandas>=2\n-r more/base.txt\na @ https://good.example.org/whl/a-1-py3-none-any.whl\n",
    "more/base.txt": b"rich\n",
    "environment.yml": b"dependencies: [python=3.11, pytorch]\n",
}


@pytest.fixture(autouse=True)
def own_home(settings: Any, tmp_path: Path) -> None:
    settings.HOME = tmp_path
    cache.clear()


@pytest.fixture
def version() -> CodeVersion:
    alice = User.objects.create_user("alice")
    project = services.create_project(alice, "Vision")
    return services.store_code(alice, project, [(f"x/{name}", io.BytesIO(content)) for name, content in FILES.items()])


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("no process is started")

    monkeypatch.setattr(sandbox, "run", run)


def test_lists_are_stored_with_the_upload(version: CodeVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid(monkeypatch)
    version.refresh_from_db()
    first, second = inspection.package_lists(version)
    assert (first.path, first.kind, first.lines) == ("requirements.txt", "requirements", ("pandas>=2", "rich"))
    assert [(each.line, each.text[:3]) for each in first.refused] == [(3, "a @")]
    assert (second.path, second.lines, second.python) == ("environment.yml", ("torch",), "3.11")
    assert version.guess["requirements"] == ["a", "pandas"]


def test_lists_of_an_earlier_release_are_read_once(version: CodeVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = inspection.package_lists(version)
    del version.guess["package_lists"]
    assert inspection.package_lists(version) == stored
    forbid(monkeypatch)
    assert inspection.package_lists(version) == stored


def test_an_allowed_source_counts_at_once_and_no_longer_than_it_is_allowed(version: CodeVersion) -> None:
    allowed = inspection.package_lists(version, ["https://good.example.org/whl/"])[0]
    assert allowed.lines[2] == "a @ https://good.example.org/whl/a-1-py3-none-any.whl" and not allowed.refused
    assert inspection.package_lists(version, ["https://other.example.org/"])[0].refused
    assert inspection.package_lists(version)[0].refused


def test_lists_without_addresses_are_not_read_again(version: CodeVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid(monkeypatch)
    version.guess["package_lists"] = version.guess["package_lists"][1:]
    assert len(inspection.package_lists(version, ["https://good.example.org/whl/"])) == 1


def test_where_reading_gives_no_answer_the_stored_lists_remain(
    version: CodeVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = inspection.package_lists(version)
    calls = []

    def run(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        raise sandbox.NoAnswerError("stopped")

    monkeypatch.setattr(sandbox, "run", run)
    for _ in range(3):
        assert inspection.package_lists(version, ["https://good.example.org/whl/"]) == stored
    del version.guess["package_lists"]
    for _ in range(3):
        assert inspection.package_lists(version) == []
    assert len(calls) == 2


def test_a_version_whose_files_are_gone_has_no_lists(version: CodeVersion) -> None:
    store.path_of(version.sha256).unlink()
    del version.guess["package_lists"]
    assert inspection.package_lists(version) == []


def test_a_list_that_cannot_be_read_leaves_the_rest_of_the_inspection() -> None:
    alice = User.objects.create_user("alice")
    project = services.create_project(alice, "Vision")
    files = FILES | {
        "pyproject.toml": b"a" + b".a" * 20_000 + b" = 1",
        "requirements.txt": b"\0" * 300_000,
        "environment.yml": b"[" * 60_000,
    }
    version = services.store_code(
        alice, project, [(f"x/{name}", io.BytesIO(content)) for name, content in files.items()]
    )
    assert version.guess["entry"] == "train.py"
    assert [(each.path, len(each.refused)) for each in inspection.package_lists(version)] == [
        ("requirements.txt", 1), ("pyproject.toml", 1), ("environment.yml", 1),
    ]  # fmt: skip
