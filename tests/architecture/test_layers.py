"""Dependencies that import contracts do not see: models looked up by name, lookups through relations, raw SQL."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from django.apps import apps
from django.db import models

from portal.agents import queries
from tests.architecture.test_house import ROOT, tracked

RAW_SQL = {
    "portal/agents/queries.py": queries.TABLES,
    "portal/ops/demo/inserts.py": (),
    "portal/ops/demo/month.py": (),
    "portal/scheduler/cycle.py": (),
    "portal/scheduler/leader_election.py": (),
}
"""The files that execute SQL, and the tables that they name. The others take names from models, or use none."""
EXECUTING = {"execute", "executemany", "raw", "RawSQL", "extra"}
TABLE = re.compile(r"\b(?:FROM|JOIN|UPDATE|INTO) ([a-z]+_[a-z]+)\b")


@cache
def layers() -> list[set[str]]:
    """The portal's apps from the top down; those of one layer do not know each other."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    names = next(each["layers"] for each in contracts if each["name"] == "the portal's apps are layered")
    return [{name.strip() for name in re.split(r"[|:]", layer)} for layer in names]


@cache
def level_of(module: str) -> int | None:
    for level, names in enumerate(layers()):
        if any(module == name or module.startswith(f"{name}.") for name in names):
            return level
    return None


@cache
def upward_relations(level: int) -> frozenset[str]:
    """Names by which models at or below this layer are related to models of the layers above it."""
    found = set()
    for model in apps.get_models():
        above = level_of(model.__module__)
        if above is None or above >= level:
            continue
        for field in model._meta.get_fields():
            if isinstance(field, models.ForeignKey | models.ManyToManyField) and not field.remote_field.hidden:
                target = level_of(field.related_model.__module__)
                if target is None or target >= level:
                    found.add(field.related_query_name())
    return frozenset(found)


def lookups(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Names that may be lookups: keywords and texts that contain ``__``, and arguments of prefetches."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg and "__" in node.arg:
            yield node.value.lineno, node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"-?\w+__\w+", node.value):
            yield node.lineno, node.value
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            *("Prefetch", "prefetch_related", "select_related", "Exists", "Count"),
        ):
            for each in node.args:
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield node.lineno, each.value


def modules() -> Iterator[tuple[Path, str]]:
    for path in tracked("portal/*.py"):
        if "migrations" not in path.parts:
            yield path, ".".join(path.relative_to(ROOT).with_suffix("").parts)


def test_no_model_is_looked_up_by_its_name() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path, _ in modules()
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if "get_model(" in line
    ]
    assert not found


def test_no_lookup_goes_through_a_relation_to_an_app_above() -> None:
    found = []
    for path, module in modules():
        level = level_of(module)
        if level is None:
            continue
        forbidden = upward_relations(level)
        for number, name in lookups(ast.parse(path.read_text())):
            if forbidden.intersection(name.removeprefix("-").split("__")):
                found.append(f"{path.relative_to(ROOT)}:{number} {name}")
    assert not found


def test_relations_to_apps_above_are_found() -> None:
    level = level_of("portal.accounts.limits")
    assert level is not None and {"jobs"} <= upward_relations(level)
    assert "allocations" in upward_relations(level_of("portal.cluster.services") or 0)
    assert not upward_relations(0)


@pytest.mark.parametrize(
    "text", ["rows.filter(jobs__state='QUEUED')", "rows.values_list('-jobs__attempts')", "Prefetch('jobs', live)"]
)
def test_lookups_are_found_in_code(text: str) -> None:
    assert any("jobs" in name.lstrip("-").split("__") for _, name in lookups(ast.parse(text)))


def test_sql_is_executed_in_named_files_only() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path, _ in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in EXECUTING
    }
    assert found == set(RAW_SQL)


def test_sql_names_tables_of_models_only() -> None:
    known = {model._meta.db_table for model in apps.get_models()}
    for name, tables in RAW_SQL.items():
        assert set(TABLE.findall((ROOT / name).read_text())) == set(tables)
        assert set(tables) <= known
