"""Names of environment variables, and those that jobs may not set, neither as a value nor as a secret."""

import re
from typing import NamedTuple

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


class ReservedNames(NamedTuple):
    """Names that jobs may not set. ``reason`` follows the name in a sentence."""

    pattern: re.Pattern[str]
    reason: str


def _reserved(reason: str, *patterns: str) -> ReservedNames:
    return ReservedNames(re.compile("|".join(patterns), re.IGNORECASE), reason)


RESERVED = (
    _reserved(
        "chooses the GPUs that a rank sees, which the scheduler does",
        r"(CUDA|NVIDIA|ROCR|HIP)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ZE_AFFINITY_MASK",
        r"NVIDIA_(DRIVER_CAPABILITIES|REQUIRE_.*|DISABLE_REQUIRE|MIG_.*|GDS|MOFED)|CUDA_MPS_.*",
    ),
    _reserved(
        "gives a rank its place among the others, which the launcher does",
        r"(LOCAL_|GROUP_|ROLE_)?RANK|(LOCAL_|GROUP_|ROLE_)?WORLD_SIZE|ROLE_NAME|MASTER_(ADDR|PORT)",
        r"TORCHELASTIC_.*|PET_.*|(GLOO|NCCL|TP)_SOCKET_IFNAME|NCCL_(COMM_ID|HOSTID)",
        r"HOROVOD_((LOCAL_|CROSS_)?(RANK|SIZE)|HOSTNAME|CONTROLLER|CPU_OPERATIONS|ELASTIC|GLOO_(IFACE|RENDEZVOUS_.*))",
        r"OMPI_COMM_WORLD_.*|PMI_(RANK|SIZE)",
    ),
    _reserved(
        "decides how programs start in the container; leave it as it is, or set it in a plain command: NAME=value python ...",
        r"PATH|LD_.*|DYLD_.*|PYTHON(HOME|STARTUP|USERBASE|PLATLIBDIR)|HOME|USER|SHELL|IFS|ENV|BASH_ENV|HOSTNAME|TMPDIR",
    ),
    _reserved("begins with SCHEDULEARN_, and such names are kept for the product", r"SCHEDULEARN_.*"),
)


def reason_reserved(name: str) -> str | None:
    """Return why jobs may not set a variable, as the end of a sentence about it; None if they may."""
    return next((names.reason for names in RESERVED if names.pattern.fullmatch(name)), None)
