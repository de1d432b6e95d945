"""``accelerate launch``, with its options and its configuration file.

It starts ranks as torchrun does, and gives its library the rest in environment variables: those of accelerate's own
``utils/launch.py``.
"""

from collections.abc import Callable, Mapping, Sequence

from .options import (
    Option,
    as_module,
    each,
    ignore,
    log,
    no_python,
    place,
    product,
    read_options,
    refuse,
    remember,
    table,
    whole_number,
)
from .translation import PLACED, Draft, ReadConfig, Translation, UntranslatableError

PLACEMENT = [
    "num_machines",
    "gpu_ids",
    "machine_rank",
    "main_process_ip",
    "main_process_port",
    "rdzv_backend",
    "rdzv_conf",
    "deepspeed_hostfile",
    "deepspeed_exclusion_filter",
    "deepspeed_inclusion_filter",
    "deepspeed_multinode_launcher",
    "mpirun_hostfile",
]
PLACEMENT_FLAGS = ["multi_gpu", "same_network"]
VALUES = [
    "config_file",
    "mixed_precision",
    "num_processes",
    "num_cpu_threads_per_process",
    "dynamo_backend",
    "dynamo_mode",
    "max_restarts",
    "deepspeed_config_file",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero3_init_flag",
    "zero3_save_16bit_model",
    "deepspeed_moe_layer_cls_names",
]
FLAGS = [
    "cpu",
    "enable_cpu_affinity",
    "dynamo_use_fullgraph",
    "dynamo_use_dynamic",
    "dynamo_use_regional_compilation",
    "use_deepspeed",
    "use_fsdp",
    "use_parallelism_config",
    "debug",
]
FSDP = {
    "fsdp_version": "1",
    "fsdp_sharding_strategy": "FULL_SHARD",
    "fsdp_reshard_after_forward": "true",
    "fsdp_offload_params": "false",
    "fsdp_min_num_params": "100000000",
    "fsdp_auto_wrap_policy": "",
    "fsdp_transformer_layer_cls_to_wrap": "",
    "fsdp_backward_prefetch": "",
    "fsdp_state_dict_type": "",
    "fsdp_forward_prefetch": "false",
    "fsdp_use_orig_params": "true",
    "fsdp_cpu_ram_efficient_loading": "true",
    "fsdp_sync_module_states": "true",
    "fsdp_activation_checkpointing": "false",
    "fsdp_activation_checkpointing_offload": "false",
    "fsdp_ignored_modules": "",
}
"""The options of FSDP with accelerate's defaults; empty for those that are not set without a value."""
DEEPSPEED = {
    "zero_stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "gradient_clipping": "ACCELERATE_GRADIENT_CLIPPING",
    "offload_optimizer_device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_param_device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "zero3_init_flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
    "zero3_save_16bit_model": "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "deepspeed_config_file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
    "deepspeed_moe_layer_cls_names": "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
}
PARALLELISM = {
    "dp_replicate_size": "1",
    "dp_shard_size": "1",
    "tp_size": "1",
    "cp_size": "1",
    "cp_backend": "torch",
    "cp_comm_strategy": "allgather",
    "sp_size": "1",
    "sp_backend": "deepspeed",
    "sp_seq_length": "",
    "sp_seq_length_is_variable": "true",
    "sp_attn_implementation": "sdpa",
}
PARALLELISM_PARTS = {"cp_comm": "cp_size", "sp_seq": "sp_size", "sp_attn": "sp_size"}
"""The beginnings of names that are set only where a size is more than 1."""
FP8 = [
    "backend",
    "use_autocast_during_eval",
    "margin",
    "interval",
    "format",
    "amax_history_len",
    "amax_compute_algo",
    "opt_level",
]
DYNAMO: dict[str, Callable[[str], str]] = {
    "dynamo_backend": str.upper,
    "dynamo_mode": str,
    "dynamo_use_fullgraph": str.capitalize,
    "dynamo_use_dynamic": str.capitalize,
    "dynamo_use_regional_compilation": str.capitalize,
}
GROUPS = {
    "deepspeed_config": "",
    "fsdp_config": "fsdp_",
    "fp8_config": "fp8_",
    "dynamo_config": "dynamo_",
    "parallelism_config": "",
}
"""The groups of keys in a configuration file, with what their names in the options begin with."""
DISTRIBUTED = {"DEEPSPEED": "use_deepspeed", "FSDP": "use_fsdp"}
PLAIN_TYPES = ("", "NO", "MULTI_GPU", "MULTI_CPU")
WITHOUT_EFFECT = [
    "main_training_function",
    "compute_environment",
    "downcast_bf16",
    "tpu_use_cluster",
    "tpu_use_sudo",
    "tpu_env",
    "tpu_name",
    "tpu_zone",
]
NOT_HERE = refuse("is not translated. Keep the plain command, which runs accelerate itself on one node.")


def _named(names: Sequence[str], values: int = 1) -> dict[str, Option]:
    return {f"--{name.replace('_', '-')}": Option(values, remember(name)) for name in names}


def _dashed(names: Sequence[str]) -> str:
    return " ".join(f"--{name.replace('_', '-')}" for name in names)


def _machines(draft: Draft, typed: str, value: str) -> None:
    draft.leave_out(typed, PLACED)
    draft.values["num_machines"] = value


OPTIONS = table(
    _named([*VALUES, *FSDP, *(f"parallelism_config_{name}" for name in PARALLELISM), *(f"fp8_{name}" for name in FP8)]),
    _named(FLAGS, 0),
    {"--fp8-use-autocast-during-eval": Option(0, remember("fp8_use_autocast_during_eval"))},
    each(_dashed(PLACEMENT), place),
    each("--num-machines", _machines),
    each(_dashed(PLACEMENT_FLAGS), place, 0),
    each("-t --tee --log-dir", log),
    each("-q --quiet", ignore, 0),
    each("--role --monitor-interval --main-training-function", ignore),
    each("-m --module", as_module, 0),
    each("--no-python", no_python, 0),
    each("--tpu --tpu-cluster --no-tpu-cluster --tpu-use-sudo --downcast-bf16 --use-megatron-lm", NOT_HERE, 0),
    each("--vm --env --aws-access-key-id --aws-secret-access-key", NOT_HERE),
    each("--offload-optimizer-nvme-path --offload-param-nvme-path", NOT_HERE),
    each("--fp8-override-linear-precision --fp8-enable-fsdp-float8-all-gather --fp8-pad-inner-dim", NOT_HERE),
)  # fmt: skip


def accelerate(tool: str, words: Sequence[str], read_config: ReadConfig) -> Translation:
    """Translate the words after ``accelerate launch``. Options of the line go before those of its configuration file."""
    draft = Draft(tool)
    rest = read_options(draft, words, OPTIONS)
    typed, config = dict(draft.values), dict[str, str]()
    config_keys: list[str] = []
    if path := typed.pop("config_file", ""):
        config, config_keys = _from_config(draft, path, read_config(path))
        draft.notes.append(f"What else {path} sets is among the environment variables.")
    values = config | typed
    _check_kind(values)
    draft.nodes = product((values.get("num_machines", "1"), "num_machines")) or 1
    if values.get("num_processes", "-1") != "-1":
        draft.set_ranks(product((values["num_processes"], "num_processes")))
    restarts = whole_number(values.get("max_restarts", "0"), "--max_restarts")
    draft.set_retries(restarts, f"{restarts} restarts")
    draft.env_vars.update(_variables(values))
    if values.get("use_deepspeed") == "true":
        draft.env_vars.update(
            _of_deepspeed(values, config_keys, "mixed_precision" not in typed and "mixed_precision" in config)
        )
    return draft.finish("torchrun", rest)


def _from_config(draft: Draft, path: str, config: Mapping[str, object]) -> tuple[dict[str, str], list[str]]:
    """Return the options that a configuration file has, by their names, and the keys of its group for DeepSpeed."""
    values: dict[str, str] = {}
    placed: list[str] = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            if key not in GROUPS:
                if value:
                    raise UntranslatableError(
                        f"{path} has {str(key)[:50]}, which is not translated. Keep the plain command."
                    )
                continue
            prefix = GROUPS[key]
            for name, text in value.items():
                values[str(name) if str(name).startswith(prefix) else f"{prefix}{name}"] = str(text)
        elif key in PLACEMENT or key in PLACEMENT_FLAGS:
            placed.append(str(key))
        elif key == "distributed_type":
            values["distributed_type"] = str(value).upper()
        elif key == "use_cpu":
            values["cpu"] = str(value)
        elif key not in WITHOUT_EFFECT:
            values[str(key)] = str(value)
    known = {option.removeprefix("--").replace("-", "_") for option in OPTIONS} | {"distributed_type"}
    for name in [name for name in values if name in PLACEMENT]:  # in the group of DeepSpeed
        placed.append(name)
        del values[name]
    if "num_machines" in config:
        values["num_machines"] = str(config["num_machines"])
    if unknown := sorted(values.keys() - known):
        raise UntranslatableError(
            f"{path} has {', '.join(unknown)[:200]}, which Schedulearn cannot translate. Remove it, or keep the plain command, "
            "which runs accelerate itself on one node."
        )
    if placed:
        draft.notes.append(f"{', '.join(placed)} in {path} {'were' if len(placed) > 1 else 'was'} left out: {PLACED}.")
    _set_kind(values, path)
    group = config.get("deepspeed_config")
    return values, [str(name) for name in group] if isinstance(group, Mapping) else []


def _set_kind(values: dict[str, str], path: str) -> None:
    """Replace the distributed type by the option of the command line that chooses it."""
    kind = values.pop("distributed_type", "")
    if kind in DISTRIBUTED:
        values[DISTRIBUTED[kind]] = "true"
    elif kind not in PLAIN_TYPES:
        raise UntranslatableError(
            f"{path} is for {kind[:50]}, which has no counterpart here. Keep the plain command, which runs accelerate itself on "
            "one node."
        )
    if any(name.startswith("parallelism_config_") for name in values):
        values["use_parallelism_config"] = "true"


def _check_kind(values: Mapping[str, str]) -> None:
    if sum(values.get(name) == "true" for name in ("use_deepspeed", "use_fsdp")) > 1:
        raise UntranslatableError("accelerate takes --use_deepspeed or --use_fsdp, not both. Remove one.")


def _variables(values: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that accelerate sets for these options, without those that have their defaults."""
    found: dict[str, str] = {}
    if values.get("cpu") == "true":
        found["ACCELERATE_USE_CPU"] = "true"
    if precision := values.get("mixed_precision", ""):
        found["ACCELERATE_MIXED_PRECISION"] = "no" if precision.lower() == "false" else precision.lower()
    if values.get("debug") == "true":
        found["ACCELERATE_DEBUG_MODE"] = "true"
    if values.get("enable_cpu_affinity") == "true":
        found["ACCELERATE_CPU_AFFINITY"] = "1"
    if threads := values.get("num_cpu_threads_per_process", ""):
        found["OMP_NUM_THREADS"] = str(whole_number(threads, "--num_cpu_threads_per_process"))
    for name, convert in DYNAMO.items():
        if value := values.get(name, ""):
            found[f"ACCELERATE_{name.upper()}"] = convert(value)
    if found.get("ACCELERATE_MIXED_PRECISION") == "fp8":
        found |= {f"ACCELERATE_FP8_{name.upper()}": values[f"fp8_{name}"] for name in FP8 if f"fp8_{name}" in values}
    if values.get("use_fsdp") == "true":
        found |= _of_fsdp(values)
    if values.get("use_parallelism_config") == "true":
        found |= _of_parallelism(values)
    return found


def _of_fsdp(values: Mapping[str, str]) -> dict[str, str]:
    found = {"ACCELERATE_USE_FSDP": "true"}
    for name, default in FSDP.items():
        value = values.get(name, default)
        if value:
            variable = "FSDP_TRANSFORMER_CLS_TO_WRAP" if name == "fsdp_transformer_layer_cls_to_wrap" else name.upper()
            found[variable] = value.lower() if default in ("true", "false") else value
    return found


def _of_parallelism(values: Mapping[str, str]) -> dict[str, str]:
    found = {"ACCELERATE_USE_PARALLELISM_CONFIG": "true"}
    for name, default in PARALLELISM.items():
        only_for = next((size for start, size in PARALLELISM_PARTS.items() if name.startswith(start)), None)
        if only_for is not None and values.get(f"parallelism_config_{only_for}", "1") == "1":
            continue
        if value := values.get(f"parallelism_config_{name}", default):
            found[f"PARALLELISM_CONFIG_{name.upper()}"] = value
    return found


def _of_deepspeed(values: Mapping[str, str], config_keys: Sequence[str], precision_from_config: bool) -> dict[str, str]:
    found = {"ACCELERATE_USE_DEEPSPEED": "true"}
    fields = [*config_keys, *(["mixed_precision"] if precision_from_config else [])]
    if fields:
        found["ACCELERATE_CONFIG_DS_FIELDS"] = ",".join(fields).lower()
    for name, variable in DEEPSPEED.items():
        if value := values.get(name, ""):
            found[variable] = (
                value if name in ("deepspeed_config_file", "deepspeed_moe_layer_cls_names") else value.lower()
            )
    return found
