"""The schema of the REST API in the documentation is that of the code."""

from pathlib import Path

import yaml
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiYamlRenderer

from portal.ops.reference import api

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "api" / "schema.yml"


def test_the_file_is_current() -> None:
    now = OpenApiYamlRenderer().render(SchemaGenerator().get_schema(request=None, public=True), renderer_context={})
    assert SCHEMA.read_bytes() == now, (
        "The API has changed. Run: python manage.py spectacular --file docs/api/schema.yml && python -m portal.ops.reference"
    )


def test_each_operation_is_on_one_page() -> None:
    schema = yaml.safe_load(SCHEMA.read_text())
    found = [(path, method) for part in api.PARTS for path, method, _ in api.operations(part, schema)]
    assert sorted(found) == sorted((path, method) for path, methods in schema["paths"].items() for method in methods)


def test_each_operation_has_a_description_of_its_own() -> None:
    for path, methods in yaml.safe_load(SCHEMA.read_text())["paths"].items():
        for method, operation in methods.items():
            about = operation.get("description", "")
            assert about.endswith(".") and not about.startswith(("A mixin", "The base")), f"{method} {path}"
