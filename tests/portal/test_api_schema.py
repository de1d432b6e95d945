"""The OpenAPI schema: what generators of clients need from it."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from drf_spectacular.generators import SchemaGenerator

from portal import settings

MEDIA_TYPES = {"application/json", "application/octet-stream", "multipart/form-data", "text/plain"}
"""The media types that generators of clients understand."""
OF_TUS = {"application/offset+octet-stream"}
"""That of the pieces of resumable uploads, for which there are clients of their own."""


@cache
def schema() -> dict[str, Any]:
    found: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)
    return found


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in schema()["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def fields() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each field of each component with its path."""

    def below(place: str, described: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, field in described.get("properties", {}).items():
            yield f"{place}.{name}", field
            yield from below(f"{place}.{name}", field)
        for key in ("items", "additionalProperties"):
            if isinstance(described.get(key), dict):
                yield f"{place}.{key}", described[key]
                yield from below(f"{place}.{key}", described[key])

    for name, component in schema()["components"]["schemas"].items():
        yield from below(name, component)


def test_it_names_the_release_and_the_server() -> None:
    assert schema()["info"]["version"] == settings.VERSION
    assert schema()["servers"] == [{"url": "/", "description": "This portal"}]


def test_every_field_has_a_type_and_every_object_its_fields() -> None:
    untyped = [place for place, field in fields() if not {"type", "$ref", "allOf", "oneOf"} & set(field)]
    free = [
        place
        for place, field in fields()
        if field.get("type") == "object" and not field.get("properties") and not field.get("additionalProperties")
    ]
    assert (untyped, free) == ([], [])


def test_no_name_was_made_up_by_the_generator() -> None:
    names = set(schema()["components"]["schemas"])
    assert not {name for name in names if name.endswith(("Enum", "Serializer"))}
    assert not names & {"Blank", "Null"}


def test_every_refusal_is_documented() -> None:
    for method, path, operation in operations():
        responses = operation["responses"]
        expected = {"400", "401", "429", "503"}
        expected |= {"403"} if method != "get" else set()
        expected |= {"413", "415"} if "requestBody" in operation else set()
        expected |= {"404"} if "{" in path else set()
        assert expected <= set(responses), f"{method} {path}"
        for code in ("429", "503"):
            assert "Retry-After" in responses[code]["headers"], f"{method} {path}"


def test_only_media_types_that_generators_understand_are_sent_and_received() -> None:
    for method, path, operation in operations():
        sent = [operation.get("requestBody", {})]
        for each in [*sent, *operation["responses"].values()]:
            allowed = MEDIA_TYPES | (OF_TUS if "/uploads/" in path else set())
            assert set(each.get("content", {})) <= allowed, f"{method} {path}"


def test_operations_are_named_after_their_address_and_a_verb() -> None:
    ids = {operation["operationId"]: f"{method} {path}" for method, path, operation in operations()}

    assert len(ids) == len(list(operations()))
    assert (
        ids.items()
        >= {
            "jobs_list": "get /api/v1/jobs/",
            "jobs_submit": "post /api/v1/jobs/",
            "jobs_retrieve": "get /api/v1/jobs/{job_id}/",
            "jobs_cancel": "post /api/v1/jobs/{job_id}/cancel/",
            "jobs_log": "get /api/v1/jobs/{job_id}/log/",
            "jobs_log_follow": "get /api/v1/jobs/{job_id}/log/follow/",
            "jobs_outputs_download": "get /api/v1/jobs/{job_id}/outputs/{path}",
            "jobs_attempts_retrieve": "get /api/v1/jobs/{job_id}/attempts/{attempt_number}/",
            "jobs_forecast_changes_apply": "post /api/v1/jobs/{job_id}/forecast/changes/",
            "projects_code_upload": "post /api/v1/projects/{project_id}/code/",
            "projects_code_diff": "get /api/v1/projects/{project_id}/code/{code_number}/diff/",
            "projects_members_update": "patch /api/v1/projects/{project_id}/members/{username}/",
            "nodes_gpus_quarantine": "post /api/v1/nodes/{node_id}/gpus/{gpu_index}/quarantine/",
            "limits_groups_set": "put /api/v1/limits/groups/{group_name}/",
            "gallery_use": "post /api/v1/gallery/{example_key}/use/",
            "environments_retrieve": "get /api/v1/environments/{environment_key}/",
            "me_retrieve": "get /api/v1/me/",
            "policy_switch": "put /api/v1/policy/",
        }.items()
    )
    for name, place in ids.items():
        assert name.startswith(place.split("/")[3].replace("-", "_")), f"{name}: {place}"


def test_variables_of_addresses_say_what_they_identify() -> None:
    for _, path, operation in operations():
        variables = {name.strip("{}") for name in path.split("/") if name.startswith("{")}
        assert variables == {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"}, path
        assert not variables & {"id", "pk", "number", "index", "key", "name"}, path
