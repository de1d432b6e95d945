"""The version of a policy changes with the code that decides, and with no other."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from scheduling import registry
from scheduling.version import version_of


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Return a policy in a separate file."""
    (tmp_path / "own_policy.py").write_text("from scheduling.toolkit import reasons\n\n\nclass Own:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_policy

    yield own_policy
    sys.modules.pop("own_policy")
    version_of.cache_clear()


def test_each_policy_has_its_own() -> None:
    versions = {version_of(policy) for policy in registry.POLICIES.values()}
    assert len(versions) == len(registry.POLICIES) and all(len(each) == 12 for each in versions)


def changed(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> bool:
    """Does the version change when the source of the module ``name`` does."""
    import inspect

    before, real = version_of(module.Own), inspect.getsource
    version_of.cache_clear()
    monkeypatch.setattr(inspect, "getsource", lambda one: real(one) + "# edited" * (one.__name__ == name))
    try:
        return version_of(module.Own) != before
    finally:
        monkeypatch.undo()
        version_of.cache_clear()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("own_policy", True),
        ("scheduling.toolkit.reasons", True),
        ("scheduling.toolkit.capacity", True),  # reasons is built on it
        ("scheduling.decide", True),
        ("scheduling.tiers", True),
        ("scheduling.policies.fifo", False),
        ("scheduling.registry", False),
        ("scheduling.simulate.engine", False),
    ],
)
def test_it_changes_with_what_decides(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, expected: bool
) -> None:
    assert changed(monkeypatch, module, name) is expected
