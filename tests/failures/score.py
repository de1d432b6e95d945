"""Judges causes: right, absent or wrong.

A right cause names what the case asks for in its title or in the lines that it quotes, and nothing of a consequence. One
that names something else is wrong; one that only reports an exit code is absent.

python -m tests.failures.score judges all recordings.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
django.setup()

from portal.jobs.causes import Facts, classify  # noqa: E402
from portal.jobs.causes.output import Line, Output, read_lines  # noqa: E402
from portal.jobs.causes.rows import STREAM_BYTES  # noqa: E402
from portal.sentences.causes import explain_cause  # noqa: E402
from tests.failures import cases  # noqa: E402
from tests.failures.cases import Case  # noqa: E402

UNSPECIFIC = {"", "exit_code", "unknown"}
"""Codes of causes that claim nothing."""
OFFERED = {"torch": ["PyTorch with Horovod"], "horovod": ["PyTorch with Horovod"], "numpy": ["PyTorch with Horovod"]}


def verdict(case: dict[str, Any], cause: dict[str, Any]) -> str:
    """Return ``right``, ``absent`` or ``wrong``."""
    shown = f"{cause.get('title', '')}\n{cause.get('detail', '')}"
    wanted = [case["cause"]["contains"], *case["cause"].get("or", [])]
    named = any(all(text in shown for text in texts) for texts in wanted)
    if named and not any(text in shown for text in case["not"]):
        return "right"
    return "absent" if cause.get("code", "") in UNSPECIFIC and not named else "wrong"


def find_cause(case: Case) -> dict[str, Any]:
    """Return the cause of a recorded failure, or of one that is only written down, as a page shows it; empty without either."""
    if case.log:
        facts, outputs = _written(case)
    elif "streams" in case.recorded:
        facts, outputs = _recorded(case.recorded)
    else:
        return {}
    known = replace(
        facts,
        offered_by=OFFERED,
        environment="PyTorch with Horovod",
        files=sorted(case.files),
        read_first_line=lambda path: case.files[path][0].decode(errors="replace").partition("\n")[0],
    )
    return explain_cause(json.loads(json.dumps(asdict(classify(known, outputs)))))


def _recorded(recorded: dict[str, Any]) -> tuple[Facts, list[Output]]:
    """As ``portal.jobs.causes.rows`` reads the rows of a job that is not elastic."""
    containers = {each["index"]: each for each in recorded["containers"]}
    hosts = sorted(
        containers.values(), key=lambda each: (each["exit_code"] == 0, each["role"] == "driver", each["index"])
    )
    ranks = Counter(each["container"] for each in recorded["streams"] if each["name"] != "setup")
    outputs = [
        Output(
            _last_lines(each["text"].encode(), each["marks"]),
            host=each["container"],
            slot=each["name"],
            rank=int(each["label"].split()[1]) if each["label"].startswith("rank ") else None,
            exit_code=containers[each["container"]]["exit_code"] if ranks[each["container"]] == 1 else None,
        )
        for each in recorded["streams"]
    ]
    blamed = hosts[0]
    facts = Facts(
        recorded["outcome"], recorded["stop_reason"], blamed["exit_code"], blamed["exit_reason"], blamed["detail"]
    )
    return facts, outputs


def _last_lines(data: bytes, marks: list[tuple[int, int]]) -> list[Line]:
    start = max(0, len(data) - STREAM_BYTES)
    return read_lines(data[start:], start, marks)


def _written(case: Case) -> tuple[Facts, list[Output]]:
    exits = {int(rank): code for rank, code in case.facts["exits"].items()}
    texts: dict[int, list[str]] = {}
    for line in case.log.splitlines():
        rank, _, text = line.partition("\t")
        texts.setdefault(int(rank), []).append(text)
    outputs = [
        Output(read_lines("\n".join(lines).encode()), slot=str(rank), rank=rank, exit_code=exits.get(rank))
        for rank, lines in sorted(texts.items())
    ]
    failed = next((code for code in exits.values() if code), 1)
    return Facts("failed", exit_code=failed, exit_reason="exited"), outputs


def report(chosen: Iterable[Case]) -> str:
    """Return the verdicts on the causes that are found now, one line each, and the score."""
    lines, counts = [], Counter[str]()
    for case in chosen:
        cause = find_cause(case)
        found = verdict(case.facts, cause)
        wanted = case.facts.get("advice_has", "")
        if found == "right" and wanted not in cause["advice"]:
            found = "advice"
        counts[found] += 1
        quoted = str(cause.get("detail", "")).replace("\n", " / ")[:140]
        lines.append(f"{case.name:40} {found:7} {cause.get('title', '-')} | {quoted}")
    total = sum(counts.values())
    names = ("right", "advice", "absent", "wrong")
    lines.append(", ".join(f"{counts[name]} of {total} {name}" for name in names))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(report(cases.blind()) + report(cases.known()))
