"""The written pages of the documentation are current, and have everything that the code has."""

import inspect
import re
from functools import cache

import pytest

from portal.ops.reference import COMMAND, DOCS, OUT_OF_DATE, causes, pages, parameters, reasons, settings
from portal.sentences import SENTENCES
from portal.sentences.causes import CAUSES
from scheduling import registry

ROOT = DOCS.parent
written = cache(pages)


@pytest.mark.parametrize("name", sorted(written()))
def test_a_written_page_is_current(name: str) -> None:
    path = DOCS / name
    is_current = path.exists() and path.read_text() == written()[name]
    assert is_current, OUT_OF_DATE.format(name)  # without the two texts, whose difference would hide the command


def test_no_page_of_the_api_is_left_over() -> None:
    left = {f"api/reference/{path.name}" for path in (DOCS / "api" / "reference").iterdir()} - set(written())
    assert not left, "Delete these pages: the schema has nothing for them."


def test_every_cause_is_there_once() -> None:
    page = causes.page()
    assert sorted(re.findall(r"^\(cause-(\w+)\)=$", page, re.MULTILINE)) == sorted(CAUSES)
    assert all(page.count(f"(cause-{key})=") == 1 for key in CAUSES)
    assert causes.EXAMPLES.keys() | causes.MORE.keys() <= CAUSES.keys()


def test_each_parameter_of_a_cause_has_an_example() -> None:
    for key, function in CAUSES.items():
        used = {name for _, given in causes.EXAMPLES.get(key, ()) for name in given}
        assert used == set(inspect.signature(function).parameters), key


def test_the_forms_of_a_cause_differ() -> None:
    for key in CAUSES:
        forms = [explanation for _, explanation in causes.explanations(key)]
        assert len(set(forms)) == len(forms), key


def test_every_reason_is_there_once() -> None:
    known = {code for code, function in SENTENCES.items() if function.__module__ == "portal.sentences.reasons"}
    shown = [code for _, _, rows in reasons.GROUPS for code, _, _ in rows]
    assert len(set(shown)) == len(shown)
    assert {*shown, *reasons.PARTS} == known
    assert "parameters" not in reasons.page()


def test_every_setting_of_the_portal_is_there_with_its_meaning() -> None:
    found = {setting.name: setting for setting in settings.portal_settings()}
    shown = [name for _, names in settings.GROUPS for name in names]
    assert len(set(shown)) == len(shown)
    assert set(shown) == set(found)
    assert all(setting.meaning.endswith(".") for setting in found.values())
    read = set(re.findall(r'(?:env_\w+|environ\.get)\("(\w+)"', (ROOT / "portal" / "settings.py").read_text()))
    assert read == set(found)


def test_defaults_and_values_are_those_of_the_code() -> None:
    found = {setting.name: setting for setting in settings.portal_settings()}
    assert (found["PORT"].default, found["PORT"].values) == ("`8000`", "1 to 65,535")
    assert (found["IDLE_GPU_RULE"].default, found["IDLE_GPU_RULE"].values) == ("`nothing`", "`nothing`, `stop`")
    assert (found["DEBUG"].default, found["SECRET_KEY"].values) == ("`no`", "or a file")


def test_every_variable_of_the_agent_is_there() -> None:
    assert settings.agent_variables() == set(settings.AGENT)


def test_every_variable_of_compose_is_there() -> None:
    assert set(re.findall(r"\$\{(\w+)", (ROOT / "deploy" / "compose.yaml").read_text())) == set(settings.COMPOSE)


def test_every_parameter_of_every_policy_is_there() -> None:
    page = parameters.page()
    for policy in registry.describe_all():
        section = page.split(f"## `{policy.key}`\n")[1].split("\n## ")[0]
        assert all(f"| `{param.name}` |" in section for param in policy.params)


def test_pages_name_their_command() -> None:
    assert all(COMMAND in text.splitlines()[0] for text in pages().values())
