"""Every action that the code records has a sentence, and names for all the values it records."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from portal.sentences import audit, audit_values

PORTAL = Path(__file__).parents[3] / "portal"
KEY = re.compile(r"[a-z_]+\.[a-z_]+")
HOLES = re.compile(r"{(\w+)}")


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield every call that records an action: of these functions, or of the model itself as the demo lab does."""
    for path in sorted(PORTAL.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            passes_on = name == "_change" and path.parent.name == "cluster"
            if name == "audit" or passes_on or ast.unparse(node.func) == "AuditEntry.objects.create":
                yield f"{path.relative_to(PORTAL)}:{node.lineno}", node


def actions_of(call: ast.Call) -> set[str]:
    given = [call.args[place] for place in (1, 2) if len(call.args) > place]
    given += [keyword.value for keyword in call.keywords if keyword.arg == "action"]
    constants = (node for part in given for node in ast.walk(part) if isinstance(node, ast.Constant))
    return {node.value for node in constants if isinstance(node.value, str) and KEY.fullmatch(node.value)}


def recorded() -> dict[str, str]:
    return {action: place for place, call in calls() for action in actions_of(call)}


PASSED_ON = {"accounts/audit.py", "cluster/services.py"}
"""Where a function records the action that it was given: audit() itself, and _change(), whose callers are found, too."""


def test_every_recorded_action_is_found() -> None:
    found = recorded()
    assert len(found) >= 30 and {"node.drained", "user.deactivate", "user.activate", "wall_link.revoked"} <= set(found)
    unnamed = {place.partition(":")[0] for place, call in calls() if not actions_of(call)}
    assert unnamed <= PASSED_ON, "an action must stand in its call, so that this test sees it"


def test_every_recorded_action_has_a_sentence() -> None:
    missing = {action: place for action, place in recorded().items() if action not in audit.ACTIONS}
    assert not missing, f"write their sentences in portal/sentences/audit.py: {missing}"


def test_every_recorded_value_has_a_name() -> None:
    keys = {
        key.value
        for _, call in calls()
        for part in (
            *call.args[3:],
            *(keyword.value for keyword in call.keywords if keyword.arg in {"before", "after"}),
        )
        for node in ast.walk(part)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }
    missing = keys - set(audit_values.FIELDS) - {"params"}
    assert len(keys) > 15 and not missing, f"name them in portal/sentences/audit_values.py: {missing}"


@pytest.mark.parametrize("key", sorted(audit.ACTIONS))
@pytest.mark.parametrize(
    "values", [{}, {"members": None}, {"policy": 3}, {"email": ["x"]}, {"node": "a", "gpus": None}]
)
def test_a_sentence_stands_whatever_was_stored(key: str, values: dict[str, object]) -> None:
    for before, after in ((values, {}), ({}, values), (values, values)):
        phrase = audit.phrase_of(key, before, after)
        holes = set(HOLES.findall(phrase.template))
        assert phrase.template.endswith(".") and holes - set(phrase.values) <= {"actor", "subject", "with_command"}
        assert {"actor", "with_command"} & holes or key == "user.join"


def test_members_that_came_and_left_are_named() -> None:
    def sentence(before: list[str], after: list[str]) -> str:
        phrase = audit.phrase_of("group.members", {"members": before}, {"members": after})
        return phrase.template.format(actor="Ada", subject="vision", **phrase.values)

    assert sentence([], ["bob"]) == "Ada added bob to the group vision."
    assert sentence(["bob"], ["cleo", "dan"]) == "Ada added cleo and dan to the group vision and removed bob."
    assert sentence(["a", "b", "c", "d", "e"], []) == "Ada removed a, b, c and 2 others from the group vision."
    assert sentence([], ["a", "b", "c", "d"]) == "Ada added a, b, c and d to the group vision."
