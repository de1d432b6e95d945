"""Finds out which launcher started this rank, by the environment variables that launchers set."""

import os


def by_horovod() -> bool:
    return bool(os.environ.keys() & {"HOROVOD_RANK", "HOROVOD_GLOO_RENDEZVOUS_PORT"})


def by_elastic_horovod() -> bool:
    """Whether ranks may join and leave while the program runs."""
    return "HOROVOD_ELASTIC" in os.environ


def by_torchrun() -> bool:
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()
