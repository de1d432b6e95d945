"""Which environment variables a job may set.

Schedulearn sets only those that choose a rank's devices, lead ranks to each other, or start a program in its container. All
others are the user's, also those of CUDA, NCCL and Horovod for logs and debugging.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from portal.jobs.spec import MAX_ENV_VALUE_LENGTH, MAX_ENV_VARS
from portal.names import is_unstorable
from portal.refused import Refused

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
SETTABLE = {
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": (
        re.compile(r"[0-9]{1,6}"),
        "a whole number of seconds; 0 lets ranks wait without limit",
    ),
    "SCHEDULEARN_RING_RETRIES": (re.compile(r"[1-9]|1[0-8]"), "a whole number from 1 to 18"),
}
"""Variables with a rule for their values (docs/user/when-it-fails.md). A job may set them even where they are reserved."""


def check_variables(env_vars: Mapping[str, str]) -> None:
    """Raise Refused for a variable that a job may not set, or that cannot be stored."""
    if len(env_vars) > MAX_ENV_VARS:
        raise Refused(f"At most {MAX_ENV_VARS} environment variables.", field="env_vars")
    for name, value in env_vars.items():
        if not ENV_NAME.fullmatch(name):
            raise Refused(
                f"{name[:100]!r} cannot name an environment variable: letters, digits and _ only.", field="env_vars"
            )
        if name in SETTABLE:
            valid, rule = SETTABLE[name]
            if not valid.fullmatch(value):
                raise Refused(f"{name} is {rule}.", field="env_vars")
        elif (reason := reason_reserved(name)) is not None:
            raise Refused(f"A job cannot set {name}: it {reason}.", field="env_vars")
        if len(value) > MAX_ENV_VALUE_LENGTH or is_unstorable(value):
            raise Refused(
                f"The value of {name} is too long (at most {MAX_ENV_VALUE_LENGTH} characters) or cannot be stored.",
                field="env_vars",
            )


def reason_reserved(name: str) -> str | None:
    """Return why jobs may not set a variable, as the end of a sentence about it; None if they may."""
    return next((names.reason for names in RESERVED if names.pattern.fullmatch(name)), None)
