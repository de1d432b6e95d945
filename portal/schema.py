"""The OpenAPI schema at /api/schema/: what holds for every operation and is not written beside each one."""

from typing import Any

from portal.rest import CODES

RETRY_AFTER = {
    "Retry-After": {"description": "Seconds to wait before the request is sent again.", "schema": {"type": "integer"}}
}


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
            for code in (429, 503):
                operation["responses"][str(code)]["headers"] = RETRY_AFTER
    return result


def _refusal(code: int) -> dict[str, Any]:
    return {
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        "description": CODES[code].replace("_", " "),
    }
