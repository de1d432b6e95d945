"""Results as a file that a run continues, and as a Markdown table that compares two of them."""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.mutation.catalogue import Mutant, by_subject
from tests.mutation.runner import Verdict

Results = dict[str, Verdict]
FALSE_ALARM = "false alarm"


def read(path: Path) -> Results:
    """Return the verdicts by mutant; none when the file is not there yet."""
    if not path.exists():
        return {}
    return {name: Verdict(**entry) for name, entry in json.loads(path.read_text()).items()}


def write(path: Path, results: Results) -> None:
    """Replace the file as a whole, so that a run that is killed leaves the one before."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({name: asdict(results[name]) for name in sorted(results)}, indent=1) + "\n")
    new.rename(path)


def caught(verdict: Verdict | None) -> bool:
    """Whether a test failed because of the mutant. One that fails without it, too, does not count."""
    return verdict is not None and verdict.outcome == "caught" and verdict.confirmed is not False


def lost(before: Results, after: Results, layers: Collection[str] = ()) -> list[str]:
    """Return the mutants that were caught before and are not any more: by no layer, or by none of ``layers``."""
    return [
        name
        for name, verdict in sorted(before.items())
        if caught(verdict)
        and not (caught(now := after.get(name)) and now is not None and (not layers or now.layer in layers))
    ]


def summary(results: Results) -> str:
    """Return one line: how many were caught by which layer, and what became of the others."""
    counts = Counter(_layer(verdict) for verdict in results.values())
    return f"{len(results)} mutants: " + ", ".join(f"{count} {layer}" for layer, count in counts.most_common())


def table(mutants: Sequence[Mutant], runs: Mapping[str, Results]) -> str:
    """Return a Markdown table with a row for each mutant, and a layer and test for each run."""
    titles = ["subject", "fault", "function", *(f"{title}: {what}" for title in runs for what in ("layer", "test"))]
    rows = [titles, ["---"] * len(titles)]
    for mutant in mutants:
        cells = [mutant.subject, f"{mutant.name}: {mutant.breaks}", f"`{mutant.function}`"]
        for results in runs.values():
            verdict = results.get(mutant.name)
            cells += [_layer(verdict), f"`{_short(verdict.test)}`" if verdict and verdict.test else ""]
        rows.append(cells)
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)


def counts(mutants: Sequence[Mutant], runs: Mapping[str, Results]) -> str:
    """Return a Markdown table with a row for each subject: how many were caught in each run, of how many."""
    titles = ["subject", "faults", *(f"caught {title}" for title in runs)]
    rows = [titles, ["---"] * len(titles)]
    groups = {**by_subject(mutants), "all": mutants}
    for subject, group in groups.items():
        caught_in = (str(sum(caught(results.get(each.name)) for each in group)) for results in runs.values())
        rows.append([subject, str(len(group)), *caught_in])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _layer(verdict: Verdict | None) -> str:
    if verdict is None:
        return "not run"
    if verdict.outcome == "caught":
        return verdict.layer if caught(verdict) else FALSE_ALARM
    return f"not by in-process tests ({verdict.layer})" if verdict.outcome == "heavy" else verdict.outcome


def _short(test: str) -> str:
    """A test's id without the folder that all have."""
    return test.removeprefix("tests/")
