"""A lab with several kinds of GPUs, whose driver is pretended: no job gets a GPU that it does not accept, live."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

import pytest

from tests.cluster.gpu_faults import PRETENDED
from tests.system.plain_lab import PlainLab
from tests.system.product import running, wait_for

pytestmark = [pytest.mark.system, pytest.mark.thorough]

T4, A100, H100 = ("NVIDIA T4", 15_360), ("NVIDIA A100-SXM4-40GB", 40_960), ("NVIDIA H100 80GB HBM3", 81_559)
MODELS = [T4, T4, A100, A100, H100]
GPUS = {f"GPU-{uuid5(NAMESPACE_DNS, f'gpu {index}')}": model for index, model in enumerate(MODELS)}
SHOW = "import os, time\nprint(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\ntime.sleep(float(os.environ.get('SECONDS', '0.5')))\n"
REQUESTS: list[dict[str, Any]] = [
    {},
    {"gpu_memory_mib": 40_000},
    {"gpu_memory_mib": 80_000},
    {"gpu_models": ["NVIDIA T4"]},
    {"gpu_models": ["NVIDIA T4", "NVIDIA H100 80GB HBM3"], "gpu_memory_mib": 20_000},
    {"same_gpu_model": True, "min_gpus": 2, "max_gpus": 2},
    {"same_gpu_model": True, "gpu_memory_mib": 16_000, "min_gpus": 2, "max_gpus": 2},
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainLab]:
    folder = tmp_path_factory.mktemp("lab")
    rows = [
        {"uuid": uuid, "lost": False, "ecc": 0, "model": name, "memory_mib": memory}
        for uuid, (name, memory) in GPUS.items()
    ]
    (folder / "gpus.json").write_text(json.dumps(rows))
    env = {"PYTHONPATH": str(PRETENDED), "PRETENDED_GPUS": str(folder), "SCHEDULEARN_CPU_SLOTS": ""}
    lab = PlainLab.within(folder, **env)
    with running(lab):
        lab.start_all()
        wait_for("the GPUs are there", lambda: len(gpus_of(lab)) == len(MODELS), 60)
        yield lab


def gpus_of(lab: PlainLab) -> list[dict[str, Any]]:
    return [gpu for node in lab.get("nodes/") for gpu in node["gpus"]]


@pytest.mark.parametrize("policy", ["fifo", "elastic_fifo", "round_robin", "srjf", "fair_share", "pdors", "ffdl"])
def test_no_job_gets_a_gpu_that_it_does_not_accept(lab: PlainLab, policy: str) -> None:
    answer = lab.api("PUT", "policy/", json={"policy": policy})
    assert answer.status_code == 200, answer.text
    code = lab.upload(f"under {policy}", show=SHOW)
    jobs = {lab.submit(code, "python show.py", **request): request for request in REQUESTS}
    for job, request in jobs.items():
        lab.succeeds(job, seconds=180)
        log = wait_for("its line has arrived", lambda: lab.log(job), 30)  # noqa: B023
        got = [GPUS[uuid] for uuid in log.decode().strip().split(",")]
        assert len(got) == request.get("min_gpus", 1)
        assert all(memory >= request.get("gpu_memory_mib", 0) for _, memory in got), (request, got)
        assert not request.get("gpu_models") or {name for name, _ in got} <= set(request["gpu_models"]), (request, got)
        assert not request.get("same_gpu_model") or len(set(got)) == 1, (request, got)


def test_what_no_gpu_can_give_is_refused_and_what_is_in_use_names_the_kind(lab: PlainLab) -> None:
    code = lab.upload("refused", show=SHOW)
    plain = {"launcher": "command", "environment": "python", "entry": "true", "min_gpus": 1, "max_gpus": 1, **code}
    refused = lab.api("POST", "jobs/", json={**plain, "gpu_memory_mib": 90_000})
    assert refused.status_code == 400 and "81559 MiB" in refused.text, refused.text
    refused = lab.api("POST", "jobs/", json={**plain, "same_gpu_model": True, "min_gpus": 3, "max_gpus": 3})
    assert refused.status_code == 400 and "No model has 3 GPUs" in refused.text, refused.text

    holder = lab.submit(code, "python show.py", gpu_memory_mib=80_000, env_vars={"SECONDS": "600"})
    lab.wait_for_job(holder, "RUNNING")
    waiting = lab.submit(code, "python show.py", gpu_memory_mib=80_000)
    other = lab.submit(code, "python show.py")
    why = wait_for("it states why it waits", lambda: lab.get(f"jobs/{waiting}/")["waiting_reason"], 30)
    assert "at least 79.6 GiB" in why or "at least 78.1 GiB" in why, why
    lab.succeeds(other)
    assert lab.job_state(waiting) == "QUEUED"
    lab.post(f"jobs/{holder}/cancel/")
    lab.succeeds(waiting)
