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


TREE = "/agent/datasets/" + "0" * 64 + "/files"
COPY = "/agent/containers/sl-1-a1-0/copies/digits"


@pytest.mark.parametrize(
    ("source", "place", "writable", "broken"),
    [
        (TREE, "/data/digits", False, None),
        (TREE, "/workspace/data", False, None),
        (TREE, "/mnist", False, None),
        (COPY, "/data", True, None),
        ("/agent/containers/sl-1-a1-0/datasets", "/datasets", False, None),
        (TREE, "/data/digits", True, "cannot write to datasets of all"),
        ("/agent/containers/sl-1-a1-0/data", "/data", True, "cannot write to what it only reads"),
        (COPY, "/usr/lib", True, "has no dataset in the place of its other folders"),
        (TREE, "/workspace", False, "has no dataset in the place of its other folders"),
        (COPY, "/outputs/x", True, "has no dataset in the place of its other folders"),
        ("/home/alice", "/workspace/data", False, "sees only its own folders"),
        ("/agent/datasets", "/data/digits", False, "sees only its own folders"),
    ],
)
def test_datasets_are_read_only_and_hide_nothing(source: str, place: str, writable: bool, broken: str | None) -> None:
    mount = {"Source": source, "Destination": place, "RW": writable}
    new = set(violations({**BARE, "Mounts": [mount]})) - set(violations(BARE))
    assert broken in new if broken else not new


@pytest.mark.timeout(20)
def test_a_watch_that_sees_nothing_reports_it() -> None:
    with watching("unix:///nowhere/docker.sock") as watch:
        pass
    assert watch.broken and not watch.seen
