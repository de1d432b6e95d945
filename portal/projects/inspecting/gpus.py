"""Recognises code that uses one GPU, however many it has."""

from collections.abc import Iterable

from .source import Source

SEVERAL_GPUS_NAMES = frozenset(
    [
        "DataParallel",
        "DistributedDataParallel",
        "FullyShardedDataParallel",
        "fully_shard",
        "spawn",
        "start_processes",
        "notebook_launcher",
        "init_process_group",
        "init_device_mesh",
        "device_count",
        "deepspeed",
        "MirroredStrategy",
        "pmap",
        "Process",
        "subprocess",
        "Popen",
        "system",
        "all_reduce",
        "Accelerator",
        "Fabric",
    ]
)
SEVERAL_GPUS_PACKAGES = frozenset(
    [
        "horovod",
        "accelerate",
        "deepspeed",
        "lightning",
        "pytorch_lightning",
        "lightning_fabric",
        "transformers",
        "ray",
        "schedulearn_train",
        "jax",
        "ignite",
        "composer",
        "colossalai",
        "megatron",
        "fairscale",
        "optuna",
        "joblib",
        "dask",
    ]
)
RANK_VARIABLES = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES"})
"""Code that reads them divides its work itself. It does not start with ``cuda:1`` either."""


def uses_one_gpu(sources: Iterable[Source]) -> bool:
    """Return whether no file of an upload has anything by which several GPUs are used: an import, a call, a device's number."""
    return not any(_may_use_several(source) for source in sources)


def _may_use_several(source: Source) -> bool:
    texts = {text for text, _ in source.strings}
    return bool(
        source.error
        or source.names & SEVERAL_GPUS_NAMES
        or source.root_imports & SEVERAL_GPUS_PACKAGES
        or any(name.startswith("torch.distributed") for name in source.all_imports | source.dotted)
        or texts & RANK_VARIABLES
        or any(text.startswith("cuda:") and text != "cuda:0" for text in texts)
    )
