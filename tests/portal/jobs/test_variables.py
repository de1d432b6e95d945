"""A job may set every variable but those that choose devices and peers, and a refusal gives the true reason."""

import pytest

from portal.jobs.variables import check_variables
from portal.refused import Refused
from portal.variable_names import reason_reserved


@pytest.mark.parametrize(
    "name",
    [
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_HOME",
        "NCCL_DEBUG",
        "NCCL_IB_DISABLE",
        "NCCL_P2P_DISABLE",
        "HOROVOD_LOG_LEVEL",
        "HOROVOD_FUSION_THRESHOLD",
        "HOROVOD_TIMELINE",
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        "TORCH_DISTRIBUTED_DEBUG",
        "TORCH_LOGS",
        "GLOO_LOG_LEVEL",
        "PYTHONPATH",
        "PYTHONFAULTHANDLER",
        "OMP_NUM_THREADS",
        "MY_RANK",
    ],
)
def test_variables_for_logs_and_debugging_may_be_set(name: str) -> None:
    check_variables({name: "1"})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("CUDA_VISIBLE_DEVICES", "chooses the GPUs"),
        ("Hip_Visible_Devices", "chooses the GPUs"),
        ("NVIDIA_VISIBLE_DEVICES", "chooses the GPUs"),
        ("RANK", "place among the others"),
        ("LOCAL_WORLD_SIZE", "place among the others"),
        ("MASTER_PORT", "place among the others"),
        ("TORCHELASTIC_RESTART_COUNT", "place among the others"),
        ("NCCL_SOCKET_IFNAME", "place among the others"),
        ("HOROVOD_LOCAL_RANK", "place among the others"),
        ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "place among the others"),
        ("LD_PRELOAD", "how programs start"),
        ("PATH", "how programs start"),
        ("SCHEDULEARN_JOB", "kept for the product"),
    ],
)
def test_what_chooses_devices_and_peers_is_refused_with_its_reason(name: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason) as refused:
        check_variables({name: "1"})
    assert refused.value.field == "env_vars" and name in refused.value.message


def test_an_exception_has_a_rule_for_its_values() -> None:
    name = "SCHEDULEARN_RING_RETRIES"
    assert reason_reserved(name) is not None
    check_variables({name: "18"})
    with pytest.raises(Refused, match="a whole number from 1 to 18"):
        check_variables({name: "19"})
