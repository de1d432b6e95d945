"""Which environment is chosen for a code, from what it imports."""

import pytest

from portal.environments.models import Environment
from portal.jobs.environments import best_environment
from runners.environments import images


def packages_of(entry: images.Entry) -> list[str]:
    base = images.find(entry.base)
    return [*(base.packages if base else ()), *entry.packages]


def offered() -> list[Environment]:
    """The curated environments, each ready on a node."""
    found = []
    for entry in images.catalogue():
        if entry.hidden:
            continue
        found.append(Environment(key=entry.key, packages=packages_of(entry), position=entry.position))
        found[-1].ready_on, found[-1].has_failed = 1, False  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(
    ("imports", "launcher", "key"),
    [
        (["torch"], "command", "pytorch"),
        (["torch", "yaml"], "command", "pytorch-horovod"),
        (["torch"], "horovod", "pytorch-horovod"),
        (["sklearn"], "command", "pytorch"),
        (["keras"], "command", "tensorflow-horovod"),
        (["tensorflow"], "horovod", "tensorflow-horovod"),
        (["torch", "wrapt", "gast", "astunparse", "flatbuffers"], "command", "pytorch"),
        (["torch", "tensorboard", "h5py"], "command", "pytorch-vision"),
        (["wrapt", "gast", "astunparse"], "torchrun", "pytorch"),
        ([], "command", "pytorch"),
    ],
)
def test_a_framework_counts_more_than_other_packages(imports: list[str], launcher: str, key: str) -> None:
    guess = {"imports": {name: ["train.py", 1] for name in imports}, "launcher": launcher}
    best = best_environment(guess, offered())
    assert best is not None and best.key == key


def test_a_code_that_was_not_inspected_gets_an_environment() -> None:
    best = best_environment({}, offered())
    assert best is not None and best.key == "pytorch"
    assert best_environment({}, []) is None


def test_what_is_always_imported_counts_more_than_what_only_functions_import() -> None:
    guess = {"imports": {name: ["train.py", 1] for name in ("wrapt", "networkx", "sympy")}}
    for more, key in (({}, "pytorch"), ({"in_functions": ["networkx", "sympy"]}, "tensorflow-horovod")):
        best = best_environment(guess | more, offered())
        assert best is not None and best.key == key
