"""The problems of a machine apart from its engine."""

from typing import Any

import pytest

from runners.host.checks import (
    clock_problem,
    compare_versions,
    containerd_problem,
    envvar_problem,
    runc_problem,
    toolkit_problem,
)

# In the order that Debian's policy gives.
ORDERED = [
    "1.0~rc1-1",
    "1.0-1",
    "1.0-1+deb12u1",
    "1.0-1+deb12u2",
    "1.0-1+deb12u10",
    "1.0+ds1-1",
    "1.0.1-0ubuntu1~20.04.2",
    "1.0.1-0ubuntu1~22.04.1",
    "1.0.1-0ubuntu1",
    "1.0.1-1",
    "1.0.10-1",
    "1:0.1-1",
]


@pytest.mark.parametrize("later", range(1, len(ORDERED)))
def test_versions_are_ordered_as_dpkg_orders_them(later: int) -> None:
    for earlier in range(later):
        assert (
            compare_versions(ORDERED[earlier], ORDERED[later]) < 0 < compare_versions(ORDERED[later], ORDERED[earlier])
        )
    assert compare_versions(ORDERED[later], ORDERED[later]) == 0


@pytest.mark.parametrize(
    ("version", "package", "verdict"),
    [
        ("1.1.11", "", "blocking"),
        ("v1.2.7", "", "flagged"),
        ("1.1.12", "", "flagged"),
        ("1.2.8", "", "fine"),
        ("1.3.2", "", "flagged"),
        ("1.3.3", "", "fine"),
        ("1.4.0", "", "fine"),
        ("1.0.0-rc95", "", "blocking"),
        ("", "", "fine"),
        ("1.1.5+ds1-1+deb12u1", "", "fine"),  # a distribution's word without its package: nothing to compare
        ("1.1.5+ds1", "1.1.5+ds1-1+deb12u1", "fine"),
        ("1.1.5+ds1", "1.1.5+ds1-1", "blocking"),
        ("1.0.0~rc93+ds1", "1.0.0~rc93+ds1-5+deb11u2", "blocking"),
        ("1.0.0~rc93+ds1", "1.0.0~rc93+ds1-5+deb11u3", "fine"),
        ("1.1.7-0ubuntu1~22.04.1", "1.1.7-0ubuntu1~22.04.1", "blocking"),
        ("1.1.7-0ubuntu1~22.04.2", "1.1.7-0ubuntu1~22.04.2", "fine"),
        ("1.1.12-0ubuntu2~22.04.1", "1.1.12-0ubuntu2~22.04.1", "fine"),
        ("1.1.15+ds1", "1.1.15+ds1-2", "fine"),
    ],
)
def test_it_knows_which_runc_lets_people_out(version: str, package: str, verdict: str) -> None:
    found = runc_problem(version, package)
    assert verdict == ("fine" if found is None else "blocking" if found.blocking else "flagged")
    assert found is None or found.fix


@pytest.mark.parametrize(
    ("version", "flagged"),
    [("v1.7.28", True), ("1.7.29", False), ("2.0.6", True), ("2.2.0", False), ("1.6.20~ds1", False), ("", False)],
)
def test_it_knows_which_containerd_is_open_to_users_of_the_machine(version: str, flagged: bool) -> None:
    assert (containerd_problem(version) is not None) is flagged


@pytest.mark.parametrize(
    ("version", "unsafe"), [("1.17.7-1", True), ("1.17.8-1", False), ("1.18.0", False), ("", False)]
)
def test_it_knows_which_toolkit_is_unsafe(version: str, unsafe: bool) -> None:
    assert (toolkit_problem(version) is not None) is unsafe


@pytest.mark.parametrize(
    ("config", "by_cdi", "is_problem"),
    [
        (None, True, False),
        ({}, False, False),
        ({}, True, True),
        ({"accept-nvidia-visible-devices-envvar-when-unprivileged": True}, True, True),
        ({"accept-nvidia-visible-devices-envvar-when-unprivileged": False}, True, False),
    ],
)
def test_gpus_by_a_variable_are_warned_of_where_they_are_not_needed(
    config: dict[str, Any] | None, by_cdi: bool, is_problem: bool
) -> None:
    assert (envvar_problem(config, by_cdi) is not None) is is_problem


@pytest.mark.parametrize(("offset", "words"), [(None, ""), (4.9, ""), (-61.0, "61 s behind"), (7.0, "7 s ahead of")])
def test_a_wrong_clock_is_a_problem(offset: float | None, words: str) -> None:
    found = clock_problem(offset)
    assert (found is None) is (not words) and (found is None or words in found.text)
