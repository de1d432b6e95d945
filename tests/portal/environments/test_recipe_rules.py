"""What no node can build is refused when an environment is made: the portal and the nodes judge alike."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portal.environments import builds, services
from portal.environments.models import Build, Environment
from portal.environments.recipe_rules import check_recipe
from portal.environments.recipes import recipe_of
from portal.projects.package_lists.typed import read_typed
from portal.refused import Refused
from runners.environments.layers.recipe import Recipe
from tests.examples import examples
from tests.portal import environments_world as made
from tests.portal import jobs_world as world

SOURCE = "https://files.lab.example/whl/"
PORT = "http://files.lab.example:9911/"


def refusal(**fields: Any) -> Refused | None:
    """Return why the portal refuses an environment; None if it does not. Nodes must judge alike."""
    base = Environment(key="pytorch") if fields.pop("based", True) else None
    row = Environment(base=base, **fields)
    refused = None
    try:
        check_recipe(row)
    except Refused as error:
        refused = error
    try:
        Recipe.from_json(recipe_of(row))
    except ValueError as error:
        assert refused is not None, f"a node refuses it: {error}"
    return refused


@pytest.mark.parametrize(
    "fields",
    [
        {"lines": ["rich"]},
        {"lines": [f"tool @ {SOURCE}tool-1.0-py3-none-any.whl"]},
        {"lines": [f"tool @ {SOURCE}tool-1.0%2Bcpu-py3-none-any.whl#sha256={'ab' * 32}"]},
        {"lines": [f'tool[a] @ {PORT}tool-1.0-py3-none-any.whl ; python_version > "3"']},
        {"lines": [f"tool @ {SOURCE}tool-1.0.tar.gz"], "source_builds": True},
        {"lines": ["rich"], "indexes": [f"{PORT}simple/", f"{SOURCE}cpu"], "constraints": ["numpy<2"]},
        {"lines": ["torch==2.9.1", "rich"], "based": False, "horovod": True, "python": "3.12"},
        {"lines": ["tensorflow"], "based": False},
        {"lines": [f"p{number}" for number in range(500)], "constraints": [f"p{number}<9" for number in range(500)]},
    ],
)
def test_what_nodes_can_build_is_accepted(fields: dict[str, Any]) -> None:
    assert refusal(**fields) is None


@pytest.mark.parametrize(
    ("fields", "field", "sentence"),
    [
        ({"lines": []}, "packages", "at least one package"),
        ({"lines": [f"p{number}" for number in range(501)]}, "packages", "at most 500 packages"),
        ({"lines": ["a"], "constraints": [f"p{n}<9" for n in range(501)]}, "packages", "at most 500 constraints"),
        ({"lines": ["rich" + ",".join(f"!={n}.0" for n in range(200))]}, "packages", "Write fewer"),
        ({"lines": ["rich"], "based": False, "horovod": True}, "horovod", "add torch to the packages"),
        ({"lines": ["tensorflow==2.15"], "based": False, "horovod": True}, "horovod", "choose a base that has it"),
        ({"lines": ["x @ git+https://files.lab.example/x@v1"]}, "packages", "x: Repositories are not installed. Put a"),
        ({"lines": [f"x @ {SOURCE}x-1.tar.gz"]}, "packages", "choose to have packages built from source"),
        ({"lines": [f"x @ {SOURCE}"]}, "packages", "ends with .whl"),
        ({"lines": [f"x @ {SOURCE}x-1-py3-none-any.whl/"]}, "packages", "ends with .whl"),
        ({"lines": [f"x @ {SOURCE}x.egg"], "source_builds": True}, "packages", "ends with .whl"),
        ({"lines": [f"x @ {SOURCE}x-1.zip#subdirectory=py"], "source_builds": True}, "packages", "A folder inside"),
        ({"lines": ["rich"], "constraints": [f"x @ {SOURCE}x.whl"]}, "packages", "more than versions"),
        ({"lines": ["rich"], "constraints": ["x[a]<2"]}, "packages", "more than versions"),
        ({"lines": ["rich"], "indexes": [f"{SOURCE}a,b/"]}, "packages", "no comma"),
        ({"lines": ["not a package"]}, "packages", "is not a package"),
    ],
)
def test_what_no_node_can_build_is_refused_with_what_to_do(fields: dict[str, Any], field: str, sentence: str) -> None:
    refused = refusal(**fields)
    assert refused is not None and refused.field == field
    assert sentence in refused.message and refused.message.endswith(".")


PIECES = st.sampled_from(
    ["rich", "torch", "x @ ", "==1.0", ">=2", "[a]", " ; python_version > '3'", "\n", " ", "--index-url ", "git+", SOURCE, PORT, "http://",
     "x-1-py3-none-any.whl", "x-1.tar.gz", "#sha256=" + "ab" * 32, "#egg=x", "#subdirectory=a", "/", ",", "@v1", "a", "%2B", "~", "=", "simple/"]
)  # fmt: skip


@settings(max_examples=examples(2000, 200))
@given(st.lists(PIECES, max_size=10).map("".join), st.booleans())
def test_whatever_is_typed_and_accepted_is_a_recipe_for_nodes(text: str, source_builds: bool) -> None:
    found = read_typed(text, [SOURCE, PORT])
    refusal(
        lines=list(found.lines),
        constraints=list(found.constraints),
        indexes=list(found.indexes),
        source_builds=source_builds,
    )


@pytest.mark.django_db
def test_an_environment_of_an_earlier_release_that_no_node_can_build_is_refused_at_once() -> None:
    alice = world.make_user("alice")
    row = made.make_environment(alice, world.make_project(alice))
    Environment.objects.filter(pk=row.pk).update(lines=["x @ git+https://files.lab.example/x"])
    row.refresh_from_db()
    claim = builds.claim(world.make_node(), row, made.KIND).to_json()
    assert claim["state"] == "failed" and claim["message"]["code"] == "layer.bad_recipe"
    assert "Repositories are not installed" in claim["message"]["error"]
    assert not Build.objects.exists()
    with pytest.raises(Refused, match="Repositories are not installed"):
        services.build_again(alice, row)
