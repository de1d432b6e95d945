"""Simulations side by side: the tables of ``manage.py simulate``."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from scheduling.simulate.result import Result, Summary, job_to_json
from scheduling.types import Node

Placing = Literal["own", "larger first", "queue order"]
REFERENCE_PLACEMENT: dict[str, Placing] = {"fifo": "larger first", "tiresias": "queue order"}
"""How the reference simulator places the jobs of these policies; the others use their own placement."""

COLUMNS = (
    "policy", "ended", "mean s", "p50", "p95", "p99", "wait s", "makespan h", "util", "useful", "GPU-h", "lost",
    "restarts/job", "preempted", "rho", "rho worst", "rho > 1.25", "decision ms p50 / p99",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """The result of one policy on the workload."""

    name: str
    """The name in the table: the policy with the parameters that were set."""
    policy: str
    params: dict[str, Any]
    summary: Summary
    jobs: Sequence[dict[str, Any]]
    """A row for each job, with at least the keys of ``result.job_to_json``."""

    @classmethod
    def of(cls, name: str, policy: str, params: dict[str, Any], result: Result) -> "PolicyRun":
        return cls(name, policy, params, result.summary(), [job_to_json(job) for job in result.jobs])

    def to_json(self) -> dict[str, Any]:
        about = {"name": self.name, "policy": self.policy, "params": self.params}
        return {**about, "summary": asdict(self.summary), "jobs": self.jobs}


def parse_cluster(text: str) -> list[Node]:
    """Return the nodes of a cluster. Raises ValueError.

    ``16x4`` are 16 nodes with 4 GPUs; ``8x4:T4+2x8:A100`` are of two kinds; ``2x8:A100/40`` have 40 GiB of memory each.
    """
    nodes: list[Node] = []
    for part in text.split("+"):
        shape, _, kind = part.strip().partition(":")
        count, _, gpus = shape.partition("x")
        kind, _, memory = kind.partition("/")
        numbers = ((count, 100_000), (gpus, 1000), (memory or "1", 10_000))
        if not all(number.isdecimal() and 0 < int(number) <= most for number, most in numbers):
            raise ValueError(f"{text!r} is not a cluster: write 16x4, 8x4:T4+2x8:A100, or 8x4:T4/16+2x8:A100/40 (GiB).")
        for _ in range(int(count)):
            id = f"{len(nodes):05}"
            nodes.append(Node(id, id, int(gpus), int(gpus), kind=kind, gpu_memory_mib=1024 * int(memory or 0)))
    return nodes


def row(name: str, summary: Summary) -> list[str]:
    """Return the figures of one run, in the order of ``COLUMNS``."""
    turnaround, decision = summary.turnaround, summary.decision_ms
    return [
        name,
        f"{summary.ended}/{summary.jobs}",
        f"{turnaround.mean:,.0f}",
        f"{turnaround.p50:,.0f}",
        f"{turnaround.p95:,.0f}",
        f"{turnaround.p99:,.0f}",
        f"{summary.waiting.mean:,.0f}",
        f"{summary.makespan / 3600:.1f}",
        f"{summary.utilisation:.0%}",
        f"{summary.useful_utilisation:.0%}",
        f"{summary.gpu_hours:,.0f}",
        f"{summary.lost_gpu_hours:,.1f}",
        f"{summary.restarts:.2f}",
        f"{summary.preemptions}",
        f"{summary.fairness.mean:.2f}",
        f"{summary.fairness.most:.2f}",
        f"{summary.unfair:.0%}",
        f"{decision.p50:.2f} / {decision.p99:.2f}",
    ]


def table(rows: Iterable[Sequence[str]], columns: Sequence[str] = COLUMNS) -> str:
    """Return a table in Markdown that is also aligned for a terminal."""
    lines = [list(columns), *map(list, rows)]
    widths = [max(len(line[number]) for line in lines) for number in range(len(columns))]

    def join(line: Sequence[str]) -> str:
        first = line[0].ljust(widths[0])
        rest = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        return f"| {' | '.join([first, *rest])} |"

    rule = f"|{'|'.join('-' * (width + 1) + (':' if number else '-') for number, width in enumerate(widths))}|"
    return "\n".join([join(lines[0]), rule, *map(join, lines[1:])])
