"""What a recipe may say: lists of packages are typed by people, and some of them are hostile."""

from typing import Any

import pytest

from runners.environments.layers.recipe import Recipe

WHOLE = Recipe(
    base="",
    lines=(
        "torch==2.13.0",
        "Rich[jupyter]>=14 ; python_version >= '3.11'",
        "demo @ https://files.lab/demo-1.0-py3-none-any.whl",
    ),
    constraints=("numpy<3",),
    indexes=("https://index.lab/simple",),
    python="3.12",
    source_builds=True,
    horovod=True,
    hosts=("files.lab", "*.lab.example:8443"),
)


def test_a_recipe_survives_json() -> None:
    assert Recipe.from_json(WHOLE.to_json()) == WHOLE
    assert Recipe.from_json({"base": "pytorch", "lines": ["rich"]}) == Recipe("pytorch", ("rich",))


def test_its_key_is_that_of_its_content() -> None:
    assert Recipe("pytorch", ("rich",)).key == Recipe("pytorch", ("rich",)).key
    assert len({each.key for each in (WHOLE, Recipe("pytorch", ("rich",)), Recipe("python", ("rich",)))}) == 3


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"base": "pytorch"},
        {"lines": ["rich"]},
        {"base": "pytorch", "lines": "rich"},
        {"base": "pytorch", "lines": [1]},
        {"base": 1, "lines": ["rich"]},
        {"base": "pytorch", "lines": ["rich"], "source_builds": 1},
        {"base": "pytorch", "lines": ["rich"], "command": "rm"},
        {"base": "../pytorch", "lines": ["rich"]},
        {"base": "pytorch", "lines": []},
        {"base": "pytorch", "lines": ["rich"] * 1001},
    ],
)
def test_what_is_no_recipe_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Recipe.from_json(data)


@pytest.mark.parametrize(
    "line",
    [
        "--no-binary slxprobe",
        "--no-binary=:all:",
        "--extra-index-url http://127.0.0.1:8000/simple",
        "-i http://evil.example/simple",
        "-r /etc/passwd",
        "-c constraints.txt",
        "-e .",
        "--find-links http://evil.example",
        "./package",
        "/srv/package",
        "package.tar.gz",
        "git+https://example.org/x.git",
        "demo @ git+https://files.lab/x.git",
        "demo @ file:///etc/passwd",
        "demo @ /srv/demo-1.0-py3-none-any.whl",
        "demo @ http://127.0.0.1:8000/demo-1.0-py3-none-any.whl",
        "demo @ https://files.lab/demo-1.0.tar.gz",
        "demo @ https://user:secret@files.lab/demo-1.0-py3-none-any.whl",
        "demo @ https://files.lab:99999/demo-1.0-py3-none-any.whl",
        "demo @ https://files.lab.evil.example/demo-1.0-py3-none-any.whl",
        "demo @ https://files.lab/demo-1.0-py3-none-any.whl#subdirectory=..",
        "rich --hash=sha256:00",
        "rich\n--no-binary rich",
        "rich \\",
        " rich",
        "",
        "# rich",
        "rich==1.0; import os",
        "$HOME",
        "x" * 1001,
        "x" * 101,
    ],
)
def test_a_line_that_is_more_than_a_package_is_refused_with_its_text(line: str) -> None:
    with pytest.raises(ValueError, match=r"[.:]") as refusal:
        Recipe("pytorch", ("rich", line), hosts=("files.lab",))
    assert repr(line[:100])[1:-1] in str(refusal.value) or len(line) == 101


def test_source_archives_need_source_builds() -> None:
    line = "demo @ https://files.lab/demo-1.0.tar.gz"
    assert Recipe("pytorch", (line,), hosts=("files.lab",), source_builds=True).lines == (line,)


@pytest.mark.parametrize(
    "changes",
    [
        {"python": "3.12", "base": "pytorch"},
        {"python": "2.7"},
        {"python": "3.12; rm"},
        {"horovod": True, "base": "pytorch"},
        {"horovod": True, "lines": ("rich",)},
        {"indexes": ("https://user:secret@index.lab/simple",)},
        {"indexes": ("https://index.lab/a https://index.lab/b",)},
        {"indexes": ("file:///etc",)},
        {"hosts": ("*",)},
        {"hosts": ("*.*.lab",)},
        {"hosts": ("a b",)},
        {"hosts": ("",)},
        {"hosts": ("files.lab:70000",)},
        {"constraints": ("demo @ https://files.lab/demo-1.0-py3-none-any.whl",)},
        {"constraints": ("--no-binary rich",)},
    ],
)
def test_what_does_not_belong_together_is_refused(changes: dict[str, Any]) -> None:
    given: dict[str, Any] = {"base": "", "lines": ("torch",)}
    with pytest.raises(ValueError, match=r"\w"):
        Recipe(**{**given, **changes})
