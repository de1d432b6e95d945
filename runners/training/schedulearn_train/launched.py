"""What has started this rank, by the variables that launchers set."""

import os


def by_horovod() -> bool:
    return bool(os.environ.keys() & {"HOROVOD_RANK", "HOROVOD_GLOO_RENDEZVOUS_PORT"})


def by_elastic_horovod() -> bool:
    """Ranks come and go while it runs."""
    return "HOROVOD_ELASTIC" in os.environ


def by_torchrun() -> bool:
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()
