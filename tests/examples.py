"""How many examples property tests draw: a selection in ``make check`` and ``make test``, all in ``make test-all``.

The selection is the same in each run. With HUNT=1 (``make test-all``) examples are new in each run.
"""

import os

HUNT = bool(os.environ.get("HUNT"))


def examples(whole: int, quick: int | None = None) -> int:
    """``whole`` for the whole suite, else ``quick``, which is a quarter of it unless given."""
    return whole if HUNT else quick or max(5, whole // 4)
