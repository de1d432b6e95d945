"""Which environment variables a job may set.

Schedulearn sets only those that choose a rank's devices, lead ranks to each other, or start a program in its container. All
others are the user's, also those of CUDA, NCCL and Horovod for logs and debugging.
"""

import re
from collections.abc import Mapping

from portal.jobs.spec import MAX_ENV_VALUE_LENGTH, MAX_ENV_VARS
from portal.names import is_unstorable
from portal.refused import Refused
from portal.variable_names import ENV_NAME, reason_reserved

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
