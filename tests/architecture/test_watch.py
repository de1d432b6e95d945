"""The judge of containers judges: what it cannot see or read is no acquittal."""

import pytest

from tests.watch import violations, watching

BARE = {
    "Name": "/bare",
    "Config": {"User": "", "Env": None},
    "Mounts": [],
    "HostConfig": {
        "CapDrop": None,
        "Privileged": False,
        "SecurityOpt": None,
        "ReadonlyRootfs": False,
        "PidsLimit": None,
        "Memory": 0,
        "MemorySwap": 0,
        "NanoCpus": 0,
        "CpuQuota": 0,
        "IpcMode": "private",
        "NetworkMode": "default",
        "Dns": [],
    },
}
"""What an engine reports of a container from ``docker create IMAGE`` without options."""


def test_a_container_without_any_protection_breaks_the_policy() -> None:
    broken = violations(BARE)
    assert len(broken) >= 9 and {"drops all capabilities", "has /tmp of bounded size", "does not run as root"} <= set(
        broken
    )


def test_a_protection_missing_alone_is_noticed() -> None:
    host = {**BARE["HostConfig"], "CapDrop": ["ALL"], "NetworkMode": "none"}  # type: ignore[dict-item]
    assert set(violations(BARE)) - set(violations({**BARE, "HostConfig": host})) == {
        "drops all capabilities",
        "has no or its attempt's network",
        "asks no name server of the machine",
    }


def test_the_only_group_is_that_of_a_cache_that_is_mounted() -> None:
    cache = {"Destination": "/cache", "Source": "/somewhere", "RW": True}
    rule = "has no group but that of its cache"

    def breaks(groups: list[str], mounts: list[dict[str, object]]) -> bool:
        host = {**BARE["HostConfig"], "GroupAdd": groups}  # type: ignore[dict-item]
        return rule in violations({**BARE, "HostConfig": host, "Mounts": mounts})

    assert not breaks([], []) and not breaks(["2110000007"], [cache])
    assert breaks(["2110000007"], []) and breaks(["0"], [cache]) and breaks(["2110000007", "27"], [cache])


@pytest.mark.timeout(20)
def test_a_watch_that_sees_nothing_reports_it() -> None:
    with watching("unix:///nowhere/docker.sock") as watch:
        pass
    assert watch.broken and not watch.seen
