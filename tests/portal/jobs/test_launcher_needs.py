"""Whether the chosen environment has the program that is to start the code."""

from typing import Any

import pytest

from portal.accounts.models import User
from portal.environments.models import Environment
from portal.jobs.submit_warnings import warnings_for
from portal.projects.models import CodeVersion
from tests.portal.jobs_world import make_code, make_environment, make_project, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def code(alice: User) -> CodeVersion:
    version = make_code(make_project(alice))
    version.guess = {"imports": {"torch": ["fit.py", 1]}, "warnings": []}
    return version


@pytest.fixture
def torch() -> Environment:
    return make_environment("plain-torch", ("torch", "numpy"))


def found(code: CodeVersion, launcher: str, line: str, *environments: Environment) -> list[dict[str, Any]]:
    warnings = warnings_for(code, launcher, line, 1, environments[0], environments)
    return [each for each in warnings if each["code"] == "lacks-launcher"]


@pytest.mark.parametrize(
    ("launcher", "line", "module"),
    [
        ("command", "accelerate launch fit.py --lr 1", "accelerate"),
        ("command", "python -m accelerate.commands.launch fit.py", "accelerate"),
        ("command", "deepspeed fit.py", "deepspeed"),
        ("command", "horovodrun -np 1 python fit.py", "horovod"),
        ("horovod", "", "horovod"),
    ],
)
def test_an_environment_that_has_the_program_is_named(
    code: CodeVersion, torch: Environment, launcher: str, line: str, module: str
) -> None:
    without_torch = make_environment("elsewhere", (module,))
    more = make_environment("more", ("torch", "numpy", module))
    (warning,) = found(code, launcher, line, torch, without_torch, more)
    assert f"“{more.title}” has it: choose it as the environment." in warning["text"]
    assert not warning["packages"] and not found(code, launcher, line, more, torch)


def test_a_package_that_no_environment_has_can_be_installed(code: CodeVersion, torch: Environment) -> None:
    (warning,) = found(code, "command", "deepspeed fit.py", torch)
    assert warning["packages"] == "deepspeed" and "Make an environment with deepspeed." in warning["text"]
    (warning,) = found(code, "horovod", "", torch)
    assert not warning["packages"] and "Choose an environment that has it." in warning["text"]


@pytest.mark.parametrize(
    ("launcher", "line"),
    [
        ("torchrun", ""),
        ("command", "torchrun fit.py"),
        ("command", "python fit.py"),
        ("command", "mpirun python fit.py"),
    ],
)
def test_what_the_environment_has_gets_no_warning(
    code: CodeVersion, torch: Environment, launcher: str, line: str
) -> None:
    assert not found(code, launcher, line, torch)


def test_torchrun_needs_torch(code: CodeVersion) -> None:
    tables = make_environment("tables", ("pandas",))
    code.guess["imports"] = {}
    assert "does not have torchrun" in found(code, "torchrun", "", tables)[0]["text"]
    assert "does not have torchrun" in found(code, "command", "torchrun fit.py", tables)[0]["text"]


def test_a_module_that_the_code_imports_is_named_once(code: CodeVersion, torch: Environment) -> None:
    code.guess["imports"]["horovod"] = ["fit.py", 2]  # which package_offers reports
    assert not found(code, "horovod", "", torch)


def test_an_image_that_no_node_has_looked_into_is_not_judged(code: CodeVersion) -> None:
    assert not found(code, "horovod", "", Environment(key="image", image="ghcr.io/lab/train:1", packages=[]))
