"""The OpenAPI schema at /api/schema/: what holds for every operation and is not written beside each one."""

import re
from typing import Any

from drf_spectacular.openapi import AutoSchema

from portal.rest import CODES

VERBS = {
    "list": "list",
    "files": "list",
    "changes": "list",
    "create": "create",
    "retrieve": "retrieve",
    "of_user": "retrieve",
    "of_group": "retrieve",
    "whole": "retrieve",
    "now": "retrieve",
    "last": "retrieve",
    "timeline": "retrieve",
    "partial_update": "update",
    "destroy": "delete",
    "set_user": "set",
    "set_group": "set",
    "set_members": "set",
    "set_project": "set",
    "list_people": "list",
    "file": "download",
    "change": "apply",
    "report": "report",
    "replace": "replace",
}
"""The verbs of operations by the actions of their views. An address that ends with the verb, or a noun that is one, has none."""
METHOD_VERBS = {"get": "retrieve", "post": "", "put": "set", "patch": "update", "delete": "delete"}
"""The verbs of views that have no actions."""

NOT_MODIFIED = {"description": "The content is still that of the ETag in `If-None-Match`. It is not sent again."}
RETRY_AFTER = {
    "Retry-After": {"description": "Seconds to wait before the request is sent again.", "schema": {"type": "integer"}}
}


class Operations(AutoSchema):
    """Names an operation after its address and its verb: ``jobs_list``, ``jobs_outputs_download``, ``jobs_cancel``."""

    def get_operation_id(self) -> str:
        address = self.path.removeprefix("/api/v1/").replace("-", "_")
        nouns = [part for part in address.split("/") if part and not part.startswith("{")]
        action = getattr(self.view, "action", None)
        verb = METHOD_VERBS[self.method.lower()] if action is None else VERBS.get(action, "")
        return "_".join([*nouns, verb] if verb else nouns)


def name_path_parameters(result: dict[str, Any], **_about: Any) -> dict[str, Any]:
    """Name the variables of addresses after what they identify: ``/jobs/{job_id}/attempts/{attempt_number}/``."""
    named = {}
    for path, operations in result["paths"].items():
        names = {variable: _full_name(noun, variable) for noun, variable in re.findall(r"([\w-]+)/{(\w+)}", path)}
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path":
                    parameter["name"] = names[parameter["name"]]
        for variable, name in names.items():
            path = path.replace(f"{{{variable}}}", f"{{{name}}}")
        named[path] = operations
    result["paths"] = named
    return result


SINGULARS = {"gallery": "example", "registries": "registry", "deliveries": "delivery", "fetches": "fetch"}
"""Of nouns in addresses that do not only lose their s."""


def _full_name(noun: str, variable: str) -> str:
    """Return ``job_id`` for the variable ``id`` or ``job_pk`` after ``jobs``; user names and paths have names of their own."""
    kind = "id" if variable.endswith("_pk") else variable
    if kind not in ("id", "number", "index", "key", "name"):
        return kind
    singular = SINGULARS.get(noun, noun.removesuffix("s").replace("-", "_"))
    return f"{singular}_{kind}"


def document_refusals(result: dict[str, Any], **_about: Any) -> dict[str, Any]:
    """Add to each operation the refusals that follow from its method, its address and its body.

    Every operation may be refused for an unknown query parameter (400), without a token (401), after too many requests (429)
    and while the database does not answer (503).
    """
    for operations in result["paths"].values():
        for method, operation in operations.items():
            parameters = operation.get("parameters", ())
            has_body = "requestBody" in operation
            possible = {
                400: True,
                401: True,
                403: method != "get",  # a token that may only read, a session without its CSRF token
                404: any(each["in"] == "path" or each["name"] == "page" for each in parameters),
                413: has_body,
                415: has_body,
                429: True,
                503: True,
            }
            for code in (code for code, is_possible in possible.items() if is_possible):
                operation["responses"].setdefault(str(code), _refusal(code))
            if method == "get" and "application/json" in operation["responses"].get("200", {}).get("content", {}):
                operation["responses"]["304"] = NOT_MODIFIED
            for code in (429, 503):
                operation["responses"][str(code)]["headers"] = RETRY_AFTER
    return result


def name_falling_orders(result: dict[str, Any], **_about: Any) -> dict[str, Any]:
    """Name ``-id`` and the like for generators of clients, which would call them ``VALUE_1``: ``ID_FALLING``."""
    for operations in result["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                values = parameter["schema"].get("enum", ())
                if any(value.startswith("-") for value in values):
                    names = [value.removeprefix("-").upper() + "_FALLING" * value.startswith("-") for value in values]
                    parameter["schema"]["x-enum-varnames"] = names
    return result


def allow_empty_addresses(result: dict[str, Any], **_about: Any) -> dict[str, Any]:
    """Drop the format "email" from answers: who has no e-mail address has an empty one, which is none of that format."""
    for name, component in result["components"]["schemas"].items():
        if not name.endswith("Request"):
            for field in component.get("properties", {}).values():
                if field.get("format") == "email":
                    del field["format"]
    return result


def _refusal(code: int) -> dict[str, Any]:
    return {
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        "description": CODES[code].replace("_", " "),
    }
