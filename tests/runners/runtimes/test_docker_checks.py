"""The problems and the facts of an engine that an admin sees."""

from typing import Any

import pytest

from runners.runtimes.docker_checks import facts, gpu_problem, gpu_problems, problems

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
def test_an_unfit_engine_is_reported_with_a_fix(change: dict[str, Any], words: str, blocking: bool) -> None:
    (problem,) = problems({**GOOD_INFO, **change}, GOOD_VERSION)
    assert words in problem.text and problem.fix and problem.blocking is blocking


def test_it_refuses_an_old_engine() -> None:
    (problem,) = problems(GOOD_INFO, {**GOOD_VERSION, "ApiVersion": "1.40", "Version": "19.03"})
    assert problem.blocking and "19.03" in problem.text


def test_gpus_need_nvidias_toolkit() -> None:
    assert gpu_problem({"Runtimes": {"runc": {}}}, cuda_devices=2)
    assert gpu_problem({"Runtimes": {"runc": {}, "nvidia": {}}}, cuda_devices=2) is None
    assert gpu_problem({"Runtimes": {"runc": {}}}, cuda_devices=0) is None


def test_an_engine_s_parts_and_the_machine_s_packages_are_judged_with_it() -> None:
    parts = [{"Name": "runc", "Version": "1.1.9"}, {"Name": "containerd", "Version": "1.7.3"}]
    runc, containerd = problems(GOOD_INFO, {**GOOD_VERSION, "Components": parts})
    assert runc.blocking and "CVE-2024-21626" in runc.text
    assert not containerd.blocking and "1.7.3" in containerd.text
    ours = [{"Name": "runc", "Version": "1.1.5+ds1"}, {"Name": "containerd", "Version": "1.6.20~ds1"}]
    version = {**GOOD_VERSION, "Components": ours}
    assert problems(GOOD_INFO, version, {"runc": "1.1.5+ds1-1+deb12u1"}) == []
    (old,) = problems(GOOD_INFO, version, {"runc": "1.1.5+ds1-1"})
    assert old.blocking


def test_a_machine_with_gpus_is_asked_for_a_safe_toolkit() -> None:
    info: dict[str, Any] = {"Runtimes": {"nvidia": {}}}
    assert gpu_problems(info, 0, {"nvidia-container-toolkit": "1.14.0-1"}, None) == []
    (old,) = gpu_problems(info, 1, {"nvidia-container-toolkit": "1.17.7-1"}, {})
    assert old.blocking and "CVE-2025-23266" in old.text
    assert gpu_problems(info, 1, {"nvidia-container-toolkit": "1.17.8-1"}, {}) == []


def test_facts_describe_the_engine() -> None:
    found = facts({**GOOD_INFO, "NCPU": 4, "MemTotal": 2**30}, {"Components": [{"Name": "runc", "Version": "1.2.8"}]})
    assert (found["runc"], found["live_restore"], found["default_runtime"]) == ("1.2.8", True, "runc")
    assert (found["nvidia_runtime"], found["memory_mib"]) == (False, 1024)
