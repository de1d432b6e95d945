"""What an agent accepts as an order of the portal."""

from typing import Any

import pytest

from runners.sources.order import FetchOrder

ORDER = {
    "fetch": 3,
    "address": "ssh://git@git.example.org:2222/lab/train.git",
    "branch": "main",
    "hosts": ["git.example.org:2222 internal"],
    "max_mib": 10,
    "max_tree_mib": 5,
    "seconds": 60,
    "token": "t0ken",
    "key": "private",
    "new": "of a later release",
}


def test_an_order() -> None:
    order = FetchOrder.from_json(ORDER)
    assert (order.host, order.port, order.place, order.is_ssh) == (
        "git.example.org",
        2222,
        "git.example.org:2222",
        True,
    )
    assert order.host_rules()[0].internal and not order.extras
    assert "t0ken" not in repr(order) and "private" not in repr(order)
    https = FetchOrder.from_json(ORDER | {"address": "https://git.example.org/x.git"})
    assert (https.port, https.place) == (443, "git.example.org")


@pytest.mark.parametrize(
    "changes",
    [
        {"address": "ext::sh -c x"},
        {"address": "file:///etc"},
        {"address": "https://robot:t@git.example.org/x"},
        {"address": "ssh://git@git.example.org/x y"},
        {"branch": "--upload-pack=x"},
        {"branch": "a b"},
        {"branch": ""},
        {"hosts": ["a b c"]},
        {"max_mib": None},
    ],
)
def test_what_is_no_order(changes: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        FetchOrder.from_json(ORDER | changes)
