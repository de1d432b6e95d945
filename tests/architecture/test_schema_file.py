"""The schema of the REST API in the documentation is that of the code."""

import yaml
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiYamlRenderer

from portal.ops.reference import OUT_OF_DATE, SCHEMA, api


def test_the_file_is_current() -> None:
    now = OpenApiYamlRenderer().render(SchemaGenerator().get_schema(request=None, public=True), renderer_context={})
    is_current = SCHEMA.read_bytes() == now
    assert is_current, f"The API has changed: {OUT_OF_DATE.format('api/schema.yml')}"


def test_each_operation_is_on_one_page() -> None:
    schema = yaml.safe_load(SCHEMA.read_text())
    found = [(path, method) for part in api.PARTS for path, method, _ in api.operations(part, schema)]
    assert sorted(found) == sorted((path, method) for path, methods in schema["paths"].items() for method in methods)


def test_each_operation_has_a_description_of_its_own() -> None:
    for path, methods in yaml.safe_load(SCHEMA.read_text())["paths"].items():
        for method, operation in methods.items():
            about = operation.get("description", "")
            assert about.endswith(".") and not about.startswith(("A mixin", "The base")), f"{method} {path}"
