"""States of jobs, attempts, containers and allocations are written in one module: found by walking the syntax tree."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WRITER = Path("portal/jobs/lifecycle.py")
OWNED = {
    "state",
    "outcome",
    "started_at",
    "ended_at",
    "finished_at",
    "exited_at",
    "running_at",
    "exit_code",
    "exit_reason",
    "stop_reason",
    "stop_requested_at",
    "requested_back_at",
    "released_at",
    "collected_at",
}
BELOW_JOBS = ("environments", "projects", "storage")
"""Apps whose own rows have columns of these names, and that cannot import jobs."""
WRITING_CALLS = {"update", "create", "get_or_create", "update_or_create", "bulk_update", "save", "setattr", "asave"}


def writes(tree: ast.AST, in_models: bool = False) -> Iterator[tuple[int, str]]:
    """Lines that write an owned column of something other than the object's own."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt | ast.expr):
            continue
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            for one in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                if isinstance(one, ast.Attribute) and one.attr in OWNED and (in_models or not _is_self(one.value)):
                    yield node.lineno, one.attr
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in WRITING_CALLS:
                named = {keyword.arg for keyword in node.keywords if keyword.arg} | set(_texts(node))
                yield from ((node.lineno, column) for column in sorted(named & OWNED))


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _texts(call: ast.Call) -> Iterator[str]:
    """Columns named in ``update_fields``, ``bulk_update`` and ``setattr``."""
    for argument in [
        *call.args,
        *(keyword.value for keyword in call.keywords if keyword.arg in ("update_fields", "fields")),
    ]:
        items = argument.elts if isinstance(argument, ast.List | ast.Tuple | ast.Set) else [argument]
        yield from (item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str))


def test_only_lifecycle_writes_states() -> None:
    found = []
    for path in sorted((ROOT / "portal").rglob("*.py")):
        here = path.relative_to(ROOT)
        below = here.parts[1] in BELOW_JOBS
        if here == WRITER or below or "migrations" in here.parts or "gallery" in here.parts:
            continue
        tree = ast.parse(path.read_text())
        found += [f"{here}:{line} writes {column}" for line, column in writes(tree, here.name == "models.py")]
    assert not found, "only portal/jobs/lifecycle.py may write these:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "job.state = 'FAILED'",
        "a, attempt.outcome = 1, 'failed'",
        "Job.objects.filter(pk=1).update(state='FAILED')",
        "job.save(update_fields=['state'])",
        "Container.objects.bulk_update(rows, ['exit_code'])",
        "setattr(job, 'state', x)",
        "Job.objects.create(state='RUNNING')",
    ],
)
def test_the_walk_finds_each_way_to_write(code: str) -> None:
    assert list(writes(ast.parse(code)))


@pytest.mark.parametrize(
    "code", ["if job.state == 'FAILED': pass", "Job.objects.filter(state='QUEUED')", "self.state = 1"]
)
def test_the_walk_lets_readers_be(code: str) -> None:
    assert not list(writes(ast.parse(code)))
