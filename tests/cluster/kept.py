"""What a run of the fault matrix found so far, kept in a file, so that an interrupted one can be continued."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.cluster.matrix import Row
from tests.cluster.scene import Fault

BESIDE_SECONDS = 45.0
"""About the time that a row takes in addition to its injections: its jobs end, every GPU is tried, nothing is left."""


def save(path: Path, seed: int, rows: Iterable[Row]) -> None:
    kept = {"seed": seed, "rows": [{**asdict(row), "fault": row.fault.key} for row in rows]}
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(kept, indent=1))
    new.rename(path)


def load(path: Path, faults: Iterable[Fault]) -> tuple[int, list[Row]]:
    """Seed and rows. Rows of faults that are no longer there are left out."""
    kept = json.loads(path.read_text())
    known = {fault.key: fault for fault in faults}
    rows: list[Mapping[str, Any]] = [row for row in kept["rows"] if row["fault"] in known]
    return int(kept["seed"]), [Row(**{**row, "fault": known[row["fault"]]}) for row in rows]


def seconds_of(fault: Fault, times: int) -> float:
    """About what its row takes."""
    return fault.seconds * times + BESIDE_SECONDS
