"""Every operation of the OpenAPI schema with thousands of odd requests: never a failure of ours, never off the schema.

``FUZZ_EXAMPLES=500`` makes it search longer than the few seconds of an ordinary run.
"""

import io
import json
import os
import re
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote

import jsonschema
import pytest
from django.core.management import call_command
from drf_spectacular.generators import SchemaGenerator
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rest_framework.throttling import UserRateThrottle

from tests.examples import HUNT, examples
from tests.laws.people import World
from tests.laws.visits import undone
from tests.portal.api_client import Script

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES") or examples(25, 6))
REFUSALS = {400, 401, 403, 404, 405, 406, 409, 412, 413, 415, 416, 429}


@dataclass(frozen=True)
class Operation:
    method: str
    path: str

    @property
    def described(self) -> dict[str, Any]:
        found: dict[str, Any] = schema()["paths"][self.path][self.method]
        return found


@cache
def schema() -> dict[str, Any]:
    """Return a schema in JSON Schema, which has no ``nullable`` as OpenAPI does."""
    made = json.loads(json.dumps(SchemaGenerator().get_schema(request=None, public=True), default=str))
    return _nullable(made)


def _nullable(node: Any) -> Any:
    if isinstance(node, list):
        return [_nullable(each) for each in node]
    if not isinstance(node, dict):
        return node
    done = {key: _nullable(value) for key, value in node.items()}
    return {"anyOf": [done, {"type": "null"}]} if done.pop("nullable", False) is True else done


OPERATIONS = [Operation(method, path) for path, methods in schema()["paths"].items() for method in methods]

text = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", "\0", "train.py", "command", "%s%n{}", "../../x", "\u202e", "9" * 40, "\ud7ff"]),
)
numbers = st.one_of(
    st.integers(-2, 5),
    st.sampled_from([2**31, 2**63, 10**30, -(10**30)]),
    st.floats(allow_nan=False, allow_infinity=False),
)
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, text),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
    max_leaves=6,
)


def resolved(described: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in described:
        described = schema()["components"]["schemas"][described["$ref"].rsplit("/", 1)[-1]]
    return described


def values(described: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Draw values, mostly valid by the schema, so that requests pass the first check; sometimes any value."""
    described = resolved(described)
    if options := described.get("anyOf") or described.get("oneOf") or described.get("allOf"):
        fitting = st.one_of(*(values(each) for each in options))
    elif "enum" in described:
        fitting = st.sampled_from(described["enum"])
    else:
        fitting = _by_type(described)
    return st.integers(0, 9).flatmap(lambda n: fitting if n else anything)


def _by_type(described: dict[str, Any]) -> st.SearchStrategy[Any]:
    match described.get("type"):
        case "integer":
            least = described.get("minimum", 0)
            return st.integers(least, min(described.get("maximum", least + 9), least + 9) + 1)
        case "number":
            return st.floats(0, 10)
        case "boolean":
            return st.booleans()
        case "string":
            return text
        case "array":
            return st.lists(values(described["items"]), max_size=3)
        case "object":
            required = described.get("required", [])
            fields = {name: values(each) for name, each in described.get("properties", {}).items()}
            if not fields:
                return st.dictionaries(
                    text, values(described.get("additionalProperties") or {"type": "string"}), max_size=3
                )
            return st.fixed_dictionaries(
                {name: fields[name] for name in required if name in fields},
                optional={name: each for name, each in fields.items() if name not in required},
            )
        case "null":
            return st.none()
    return anything


@st.composite
def requests(draw: st.DrawFn, operation: Operation, known: dict[str, Any]) -> tuple[str, Any]:
    """The address and the body."""
    ours = {
        "project_id": known["project"],
        "job_id": known["job"] if operation.path.count("/") < 7 else known["running"],
        "node_id": known["node"],
        "gpu_id": known["gpu"],
        "token_id": known["token_row"],
        "user_id": known["bob"],
        "group_id": known["group"],
        "invitation_id": known["invite_row"],
        "reservation_id": known["reservation"],
        "simulation_id": known["simulation"],
        "code_number": 1,
        "attempt_number": 1,
        "gpu_index": 0,
        "username": "bob",
        "group_name": "students",
        "environment_key": known[
            "own_environment" if "builds" in operation.path or "locks" in operation.path else "environment"
        ],
        "build_id": known["build"],
        "allowed_host_id": known["allowed_host"],
        "registry_id": known["registry"],
        "webhook_id": known["webhook"],
        "time_extension_id": known["time_request"],
        "schedule_id": known["schedule"],
        "trash_id": known["deleted"],
        "code_id": known["deleted_version"],
        "retention_rule_id": known["rule"],
        "dataset_id": known["dataset"],
        "version_number": known["draft"] if operation.path.endswith(("/finish/", "/uploads/")) else 1,
        "upload_id": known["upload"],
        "delivery_id": known["delivery"],
        "fetch_id": known["fetch"],
        "git_host_id": known["git_host"],
        "secret_name": known["secret_name"],
        "digest": known["lock"],
        "example_key": "failing",
        "path": "train.py",
    }
    path = operation.path
    query = []
    for parameter in operation.described.get("parameters", []):
        if parameter["in"] == "path":
            value = draw(
                st.one_of(
                    st.just(ours[parameter["name"]]),
                    st.just(ours[parameter["name"]]),
                    values(parameter["schema"]),
                    text,
                )
            )
            path = path.replace(f"{{{parameter['name']}}}", quote(str(value), safe="") or "x")
        elif parameter["in"] == "query" and draw(st.booleans()):
            value = draw(values(parameter["schema"]))
            query += [
                f"{parameter['name']}={quote(str(each), safe='')}"
                for each in (value if isinstance(value, list) else [value])
            ]
    body = None
    if content := operation.described.get("requestBody", {}).get("content", {}).get("application/json"):
        body = draw(values(content["schema"]))
        if isinstance(body, dict) and draw(st.integers(0, 3)):
            body |= (
                {"project": known["project"]} if "project" in resolved(content["schema"]).get("properties", {}) else {}
            )
    return path + ("?" + "&".join(query) if query else ""), body


@pytest.fixture(scope="module")
def scripts(world: World, known: dict[str, Any]) -> dict[str, Script]:
    return {role: Script(world.users[role]) for role in ("alice", "charlie", "ada")}


@pytest.fixture(autouse=True)
def unthrottled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UserRateThrottle, "allow_request", lambda self, request, view: True)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: f"{each.method} {each.path}")
def test_no_request_finds_a_failure_of_ours(
    operation: Operation, scripts: dict[str, Script], known: dict[str, Any]
) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=not HUNT and "FUZZ_EXAMPLES" not in os.environ,
        database=None if not HUNT else settings.default.database,  # type: ignore[union-attr]
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(requests(operation, known), st.sampled_from(sorted(scripts)))
    def hunt(request: tuple[str, Any], role: str) -> None:
        address, body = request
        script = scripts[role]
        script.raise_request_exception = False
        with undone():
            response = script.generic(
                operation.method.upper(), address, json.dumps(body).encode(), content_type="application/json"
            )
            check(operation, response, f"{operation.method} {address} as {role} with {body!r}")

    hunt()


def test_an_address_with_a_nul_is_refused_as_the_schema_has_it(world: World, scripts: dict[str, Script]) -> None:
    script = scripts[sorted(scripts)[0]]
    for operation in (each for each in OPERATIONS if "{" in each.path):
        address = re.sub(r"{\w+}", "%00", operation.path)
        response = script.generic(operation.method.upper(), address, b"{}", content_type="application/json")
        assert response.status_code == 400
        check(operation, response, f"{operation.method} {address}")


def check(operation: Operation, response: Any, what: str) -> None:
    assert response.status_code < 500, what
    documented = operation.described["responses"]
    if response.status_code >= 300:
        assert response.status_code in REFUSALS or response.status_code == 301, f"{what}: {response.status_code}"
        undocumented = {400, 401, 404} - {int(code) for code in documented}
        assert response.status_code not in undocumented, f"{what}: {response.status_code} is not in the schema"
        if response.status_code in REFUSALS:
            error = response.json()["error"]
            assert error["code"] and error["message"], what
        return
    assert str(response.status_code) in documented, f"{what}: {response.status_code} is not in the schema"
    content = documented[str(response.status_code)].get("content", {}).get("application/json")
    if content and response.get("Content-Type", "").startswith("application/json"):
        jsonschema.validate(response.json(), {**content["schema"], "components": schema()["components"]})


def test_the_schema_is_sound_and_names_each_operation_once() -> None:
    call_command("spectacular", fail_on_warn=True, validate=True, stdout=io.StringIO())
    ids = [operation.described["operationId"] for operation in OPERATIONS]
    assert len(ids) == len(set(ids)) >= 40
    for operation in OPERATIONS:
        assert any(code.startswith("2") for code in operation.described["responses"]), operation
        assert "401" in operation.described["responses"], operation
        assert "404" in operation.described["responses"] or "{" not in operation.path, operation
