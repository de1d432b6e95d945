"""What nodes get of an environment: its hosts with their ports, and a hash that stays as it was."""

from pathlib import Path

import pytest

from portal.environments.models import Environment
from portal.environments.recipes import recipe_hash, recipe_of
from runners.environments.layers.indexes import find_access
from runners.environments.layers.recipe import Recipe

DEVPI = "http://devpi.lab.example:3141/root/pypi/+simple/"
WHEEL = "tool @ http://10.0.4.2:8081/repository/wheels/tool-1.0-py3-none-any.whl"


@pytest.mark.parametrize(
    ("fields", "hosts"),
    [
        ({"lines": ["rich"]}, []),
        ({"lines": ["rich"], "indexes": [DEVPI]}, ["devpi.lab.example:3141"]),
        ({"lines": ['tool @ https://files.lab.example/tool.whl ; python_version > "3"']}, ["files.lab.example"]),
        (
            {"lines": [WHEEL, WHEEL.replace(":8081", "")], "indexes": ["https://mirror.example.org/simple"]},
            ["10.0.4.2", "10.0.4.2:8081", "mirror.example.org"],
        ),
    ],
)
def test_hosts_have_the_ports_of_their_addresses(fields: dict[str, list[str]], hosts: list[str]) -> None:
    assert recipe_of(Environment(**fields))["hosts"] == hosts


@pytest.mark.parametrize(
    ("fields", "host", "port"),
    [
        ({"lines": ["rich"], "indexes": [DEVPI]}, "devpi.lab.example", 3141),
        ({"lines": [WHEEL]}, "10.0.4.2", 8081),
        ({"lines": ["rich"], "indexes": ["http://10.0.4.2/simple/"]}, "10.0.4.2", 80),
    ],
)
def test_a_build_reaches_an_allowed_source_in_the_local_network(
    tmp_path: Path, fields: dict[str, list[str]], host: str, port: int
) -> None:
    recipe = Recipe.from_json(recipe_of(Environment(base=Environment(key="pytorch"), **fields)))
    allowing = [rule for rule in find_access(recipe, tmp_path).rules if rule.allows(host, port)]
    assert any(rule.internal for rule in allowing)
    assert not any(rule.allows(host, port + 1) for rule in allowing)


def test_the_hash_of_environments_that_labs_have_does_not_change() -> None:
    fields = {
        "lines": ["rich==14.0", "a @ https://files.lab.example/a.whl"],
        "indexes": ["https://m.example.org/simple"],
    }
    assert recipe_hash(Environment(**fields)) == "d1ed7b637860a272cf22cef8e657df17ccba7793fe75e44cbed233ad76277c33"


def test_the_order_of_the_lines_makes_no_other_recipe() -> None:
    first, second = (Environment(lines=lines) for lines in (["torch>=2", "Arrow"], ["Arrow", "torch>=2"]))
    assert recipe_of(first)["lines"] == ["Arrow", "torch>=2"] and recipe_hash(first) == recipe_hash(second)
