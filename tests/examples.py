"""How many examples and cases a test has: a selection in ``make check`` and ``make test``, all in ``make test-all``.

The selection is the same in each run. With HUNT=1 (``make test-all``) examples are new in each run.
"""

import os
from collections.abc import Iterable
from typing import Any

import pytest

HUNT = bool(os.environ.get("HUNT"))


def examples(whole: int, quick: int | None = None) -> int:
    """``whole`` for the whole suite, else ``quick``, which is a quarter of it unless given."""
    return whole if HUNT else quick or max(5, whole // 4)


def every_fourth(cases: Iterable[Any]) -> list[Any]:
    """Parameters of a test with many like cases: ``make test`` runs a quarter of them, since the others are thorough."""
    return [
        case if number % 4 == 0 else pytest.param(case, marks=pytest.mark.thorough) for number, case in enumerate(cases)
    ]


def mostly_thorough(cases: Iterable[Any], *usual: Any) -> list[Any]:
    """Parameters of a test of which only the ``usual`` ones are not thorough, a policy or two of all, for example."""
    return [
        case
        if case in usual
        else pytest.param(*(case if isinstance(case, tuple) else [case]), marks=pytest.mark.thorough)
        for case in cases
    ]
