"""What an admin is told about an engine."""

from typing import Any

import pytest

from runners.docker_checks import gpu_problem, problems, runc_problem

GOOD_INFO: dict[str, Any] = {
    "SecurityOptions": ["name=apparmor", "name=seccomp,profile=default"],
    "MemoryLimit": True,
    "SwapLimit": True,
    "PidsLimit": True,
    "CpuCfsQuota": True,
    "LiveRestoreEnabled": True,
    "DefaultRuntime": "runc",
}
GOOD_VERSION: dict[str, Any] = {"Version": "28.2.2", "ApiVersion": "1.50", "Os": "linux", "Components": []}


def test_a_good_engine_has_no_problem() -> None:
    assert problems(GOOD_INFO, GOOD_VERSION) == []


@pytest.mark.parametrize(
    ("change", "words", "blocking"),
    [
        ({"LiveRestoreEnabled": False}, "dies when the Docker Engine is restarted", False),
        ({"SecurityOptions": ["name=seccomp,profile=unconfined"]}, "without its seccomp filter", True),
        ({"SecurityOptions": []}, "without its seccomp filter", True),
        ({"SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless"]}, "runs rootless", True),
        ({"SecurityOptions": ["name=seccomp,profile=builtin", "name=userns"]}, "maps user ids", True),
        ({"MemoryLimit": False, "PidsLimit": False}, "limit a container's memory and processes", True),
        ({"SwapLimit": False}, "cannot limit swap", False),
        ({"DefaultRuntime": "nvidia"}, "NVIDIA's runtime is the engine's default", True),
    ],
)
def test_it_names_what_is_unfit_with_its_mend(change: dict[str, Any], words: str, blocking: bool) -> None:
    (problem,) = problems({**GOOD_INFO, **change}, GOOD_VERSION)
    assert words in problem.text and problem.mend and problem.blocking is blocking


def test_it_refuses_an_old_engine() -> None:
    (problem,) = problems(GOOD_INFO, {**GOOD_VERSION, "ApiVersion": "1.40", "Version": "19.03"})
    assert problem.blocking and "19.03" in problem.text


@pytest.mark.parametrize(
    ("version", "unsafe"),
    [
        ("1.1.11", True),
        ("v1.2.7", True),
        ("1.2.8", False),
        ("1.3.2", True),
        ("1.3.3", False),
        ("1.4.0", False),
        ("1.0.0-rc95", True),
        ("1.1.5+ds1-1+deb12u1", False),  # a distribution's own patches do not show in the number
        ("1.1.12-0ubuntu2~22.04.1", False),
        ("", False),
    ],
)
def test_it_knows_which_runc_lets_people_out(version: str, unsafe: bool) -> None:
    found = runc_problem({"Components": [{"Name": "runc", "Version": version}]})
    assert (found is not None) is unsafe


def test_gpus_need_nvidias_toolkit() -> None:
    assert gpu_problem({"Runtimes": {"runc": {}}}, cuda_devices=2)
    assert gpu_problem({"Runtimes": {"runc": {}, "nvidia": {}}}, cuda_devices=2) is None
    assert gpu_problem({"Runtimes": {"runc": {}}}, cuda_devices=0) is None
