"""Lines of other launchers mean for a job what they mean where people typed them before."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.projects.inspecting.launch_lines import Translation, UntranslatableError, tool_of, translate


def translated(line: str, written_for: str = "", config: Mapping[str, Any] | None = None) -> Translation:
    found = translate(line, written_for, lambda path: config or {})
    assert found is not None
    return found


def notes(line: str, written_for: str = "") -> str:
    return " ".join(translated(line, written_for).notes)


def refusal(line: str, written_for: str = "", config: Mapping[str, Any] | None = None) -> str:
    with pytest.raises(UntranslatableError) as refused:
        translate(line, written_for, lambda path: config or {})
    return str(refused.value)


@pytest.mark.parametrize(
    ("line", "launcher", "entry", "arguments", "ranks"),
    [
        ("torchrun train.py", "torchrun", "train.py", [], 1),
        ("torchrun --nproc_per_node 4 --nnodes 2 train.py a b", "torchrun", "train.py", ["a", "b"], 8),
        ("torchrun --nproc-per-node=2 -m pkg.train --nnodes 3", "torchrun", "-m pkg.train", ["--nnodes", "3"], 2),
        ("torchrun --nproc-per-node=gpu ./src/train.py", "torchrun", "src/train.py", [], None),
        ("torchrun --nproc 2 -- train.py", "torchrun", "train.py", [], 2),
        ("python -u -m torch.distributed.run --nproc_per_node=2 train.py", "torchrun", "train.py", [], 2),
        ("python3.11 -m torch.distributed.launch --use_env --nproc_per_node=3 t.py", "torchrun", "t.py", [], 3),
        ("accelerate launch --num_processes 4 train.py --lr 1e-3", "torchrun", "train.py", ["--lr", "1e-3"], 4),
        ("accelerate launch --multi-gpu -m pkg.train", "torchrun", "-m pkg.train", [], None),
        ("python -m accelerate.commands.launch --num-processes=2 t.py", "torchrun", "t.py", [], 2),
        ("deepspeed --num_gpus 2 t.py --deepspeed ds.json", "torchrun", "t.py", ["--deepspeed", "ds.json"], 2),
        ("deepspeed --num_gpus=2 --num_nodes=3 t.py", "torchrun", "t.py", [], 6),
        ("deepspeed --include localhost:0,1@other:2 t.py", "torchrun", "t.py", [], 3),
        ("deepspeed --module pkg.train", "torchrun", "-m pkg.train", [], None),
        ("horovodrun -np 4 python train.py --epochs 3", "horovod", "train.py", ["--epochs", "3"], 4),
        ("horovodrun -np 2 -H a:1,b:1 python3 -u -m pkg.train", "horovod", "-m pkg.train", [], 2),
        ("torchrun train.py --text \"a b\" '$HOME'", "torchrun", "train.py", ["--text", "a b", "$HOME"], 1),
        ("torchrun \\\n  --nproc_per_node 2 \\\n  train.py \\\n  --x 1", "torchrun", "train.py", ["--x", "1"], 2),
        ("uv run torchrun --nproc_per_node 2 train.py", "torchrun", "train.py", [], 2),
        (
            "torchrun --nproc_per_node 2 \\\r\n train.py --x 'a\nb'\n\n# the end\n",
            "torchrun",
            "train.py",
            ["--x", "a\nb"],
            2,
        ),
        ("torchrun train.py \\\n > log.txt \\\n 2>&1\n", "torchrun", "train.py", [], 1),
        ("\n torchrun train.py --n 1 \\\n", "torchrun", "train.py", ["--n", "1"], 1),
    ],
)
def test_lines_are_translated(line: str, launcher: str, entry: str, arguments: list[str], ranks: int | None) -> None:
    found = translated(line)
    assert (found.launcher, found.entry, list(found.arguments)) == (launcher, entry, arguments)
    assert (found.min_ranks, found.max_ranks, found.elastic) == (ranks, ranks, False)


@pytest.mark.parametrize(
    "line", ["python train.py", "accelerate config", "make torchrun", "", "bash run.sh", "python -m pkg.x"]
)
def test_other_programs_are_not(line: str) -> None:
    assert translate(line) is None
    assert tool_of(line) is None


def test_mpirun_and_srun_start_ranks_of_the_launcher_that_the_code_is_written_for() -> None:
    line = "mpirun -np 4 -bind-to none -x NCCL_DEBUG=INFO -x PATH python train.py"
    found = translated(line, "horovod")
    assert (found.launcher, found.entry, found.max_ranks) == ("horovod", "train.py", 4)
    assert found.env_vars == {"NCCL_DEBUG": "INFO"}
    assert "-x PATH was left out: set the variable on the form" in " ".join(found.notes)
    slurm = translated("srun -N2 --ntasks-per-node=4 --gres=gpu:4 python train.py", "torchrun")
    assert (slurm.launcher, slurm.max_ranks) == ("torchrun", 8)
    assert "let it read RANK, WORLD_SIZE or LOCAL_RANK" in slurm.notes[-1]
    assert "uses neither torch.distributed nor Horovod" in refusal("mpirun -np 2 python simulate.py", "command")


def test_a_launcher_within_srun_is_that_of_the_job() -> None:
    found = translated("srun -N2 --export=ALL,A=1 torchrun --nnodes 2 --nproc_per_node 4 train.py --lr 1", "command")
    assert (found.tool, found.launcher, found.entry, found.max_ranks) == ("srun torchrun", "torchrun", "train.py", 8)
    assert found.env_vars == {"A": "1"}


def test_what_places_processes_is_left_out_with_a_note() -> None:
    text = notes("torchrun --rdzv_backend c10d --rdzv-endpoint=host:29400 --standalone -t 3 train.py")
    assert (
        "--rdzv_backend c10d, --rdzv-endpoint host:29400 and --standalone were left out: Schedulearn starts one rank for each "
        "GPU and connects them." in text
    )
    assert "-t 3 was left out: the log keeps the output of each rank by itself." in text


def test_a_variable_of_the_shell_may_be_in_what_is_left_out() -> None:
    found = translated('torchrun --nnodes=$SLURM_NNODES --nproc_per_node 4 --rdzv_endpoint "$MASTER:29500" train.py')
    assert (found.min_ranks, found.entry) == (None, "train.py")
    assert "--rdzv_endpoint $MASTER:29500 was left out" in found.notes[0]
    assert "'$LR' has a variable of the shell" in refusal("torchrun train.py --lr $LR")
    assert "output of another command" in refusal("torchrun --master_addr $(hostname) train.py")
    assert "pattern (*)" in refusal("torchrun train.py data/*.csv")


def test_a_changing_number_of_nodes_means_elastic() -> None:
    found = translated("torchrun --nnodes=1:4 --nproc_per_node=2 --max_restarts=3 train.py")
    assert (found.min_ranks, found.max_ranks, found.elastic, found.retries) == (2, 8, True, 3)
    assert any("tick “Elastic”" in note for note in found.notes)
    assert any("set “Retries” to 3" in note for note in found.notes)
    horovod = translated("horovodrun --min-np 2 --max-np 6 --host-discovery-script d.sh python t.py")
    assert (horovod.min_ranks, horovod.max_ranks, horovod.elastic) == (2, 6, True)


def test_variables_before_the_line_and_output_behind_it() -> None:
    found = translated("CUDA_VISIBLE_DEVICES=0,1 WANDB_MODE=offline torchrun train.py --x 2 2>&1 | tee log.txt")
    assert (found.entry, found.arguments, found.env_vars) == ("train.py", ("--x", "2"), {"WANDB_MODE": "offline"})
    text = " ".join(found.notes)
    assert "CUDA_VISIBLE_DEVICES was left out" in text
    assert "“2>&1 | tee log.txt” was left out" in text
    spread = translated("mpirun -np 2 -x NCCL_SOCKET_IFNAME=eth0 -x NCCL_DEBUG=WARN python t.py", "torchrun")
    assert spread.env_vars == {"NCCL_DEBUG": "WARN"} and "NCCL_SOCKET_IFNAME was left out" in " ".join(spread.notes)
    assert translated("nohup torchrun train.py > out.log 2>&1 &").arguments == ()
    assert translated("torchrun train.py --x 1 # on one node").arguments == ("--x", "1")


def test_options_of_accelerate_become_the_variables_that_it_sets() -> None:
    found = translated(
        "accelerate launch --mixed_precision bf16 --num_cpu_threads_per_process 4 --dynamo_backend inductor "
        "--dynamo_use_dynamic --main_process_port 29501 train.py"
    )
    assert found.env_vars == {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "OMP_NUM_THREADS": "4",
        "ACCELERATE_DYNAMO_BACKEND": "INDUCTOR",
        "ACCELERATE_DYNAMO_USE_DYNAMIC": "True",
    }
    assert found.notes[0].startswith("--main_process_port 29501 was left out")
    fsdp = translated("accelerate launch --use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP train.py").env_vars
    assert fsdp["ACCELERATE_USE_FSDP"] == "true"
    assert fsdp["FSDP_SHARDING_STRATEGY"] == "SHARD_GRAD_OP"
    assert fsdp["FSDP_SYNC_MODULE_STATES"] == "true"
    deepspeed = translated("accelerate launch --use_deepspeed --zero_stage 2 --gradient_clipping 1.0 train.py").env_vars
    assert deepspeed == {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2",
        "ACCELERATE_GRADIENT_CLIPPING": "1.0",
    }


def test_a_configuration_file_of_accelerate_is_read() -> None:
    config = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"zero_stage": "3", "zero3_init_flag": "true", "deepspeed_multinode_launcher": "standard"},
        "machine_rank": "0",
        "main_process_ip": "10.0.0.1",
        "mixed_precision": "bf16",
        "num_machines": "2",
        "num_processes": "8",
        "use_cpu": "false",
        "main_training_function": "main",
    }
    found = translated("accelerate launch --config_file ds.yaml train.py", config=config)
    assert (found.max_ranks, found.entry) == (8, "train.py")
    assert found.env_vars == {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_CONFIG_DS_FIELDS": "zero_stage,zero3_init_flag,deepspeed_multinode_launcher,mixed_precision",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
        "ACCELERATE_DEEPSPEED_ZERO3_INIT": "true",
    }
    assert (
        "machine_rank, main_process_ip, num_machines, deepspeed_multinode_launcher in ds.yaml were left out"
        in found.notes[0]
    )
    typed = translated(
        "accelerate launch --config_file ds.yaml --num_processes 2 --mixed_precision no t.py", config=config
    )
    assert (typed.max_ranks, typed.env_vars["ACCELERATE_MIXED_PRECISION"]) == (2, "no")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"distributed_type": "TPU"}, "c.yaml is for TPU"),
        ({"distributed_type": "NO", "surprise": "1"}, "c.yaml has surprise"),
        ({"megatron_lm_config": {"megatron_lm_tp_degree": "2"}}, "megatron_lm_config"),
        ({"num_processes": "many"}, "num_processes is 'many'"),
    ],
)
def test_what_is_unknown_in_a_configuration_file_is_refused(config: dict[str, Any], words: str) -> None:
    assert words in refusal("accelerate launch --config_file c.yaml t.py", config=config)


def test_options_of_horovodrun_become_the_variables_that_it_sets() -> None:
    found = translated("horovodrun -np 2 --fusion-threshold-mb 32 --timeline-filename t.json --autotune python t.py")
    assert found.env_vars == {
        "HOROVOD_FUSION_THRESHOLD": "33554432",
        "HOROVOD_TIMELINE": "t.json",
        "HOROVOD_AUTOTUNE": "1",
    }


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("torchrun --surprise train.py", "does not know what --surprise means to torchrun"),
        ("torchrun --standalone=1 train.py", "does not know what --standalone=1 means"),
        ("torchrun --no-python ./run.sh", "starts another program than Python"),
        ("torchrun --nproc_per_node two train.py", "'two', which is not a whole number"),
        ("torchrun --nproc_per_node", "needs a value"),
        ("torchrun --nproc_per_node 0 train.py", "cannot start this number of processes"),
        ("torchrun --nproc_per_node 99999 train.py", "cannot start this number of processes"),
        ("torchrun --nproc_per_node 2", "ends before the program"),
        ("torchrun train", "not a Python file"),
        ("torchrun /home/me/train.py", "not a path within the upload"),
        ("torchrun ../train.py", "not a path within the upload"),
        ("torchrun -m a/b.py", "not the name of a module"),
        ("python -m torch.distributed.launch --nproc_per_node=2 train.py", "passes --local-rank to the script"),
        ("cd code && torchrun train.py", "several commands"),
        ("torchrun train.py < data.txt", "reads from another one"),
        ("torchrun train.py; torchrun test.py", "several commands"),
        ("torchrun train.py\npython cleanup.py", "several commands"),
        ("torchrun train.py --epochs 3\r\nrm -r out", "several commands"),
        ("torchrun train.py # the first one\ntorchrun test.py", "several commands"),
        ("torchrun train.py # ends with \\\nrm out", "several commands"),
        ("torchrun train.py > log.txt # kept\nrm log.txt", "several commands"),
        ("torchrun train.py > log.txt\n> other.txt", "several commands"),
        ("torchrun 'train.py", "Check the quotes"),
        ("deepspeed --autotuning run train.py", "starts several trainings"),
        ("accelerate launch --tpu train.py", "--tpu is not translated"),
        ("accelerate launch --use_fsdp --use_deepspeed train.py", "not both"),
        ("horovodrun -np 2 python -O train.py", "option -O of Python"),
    ],
)
def test_what_has_no_counterpart_is_refused_with_a_reason(line: str, words: str) -> None:
    assert words in refusal(line)


def test_a_hostile_line_takes_no_time() -> None:
    tails = ("1>a" * 5000 + "|x", "| tee a " * 3000 + "|x", "`")
    for line in (
        *(f"torchrun t.py {tail}" for tail in tails),
        "srun " * 3000 + "t.py",
        "torchrun " + "--nnodes " * 5001,
    ):
        assert refusal(line)
    assert translated("exec " * 5000 + "torchrun t.py").entry == "t.py"


WORDS = st.sampled_from(
    [
        "torchrun",
        "accelerate",
        "launch",
        "deepspeed",
        "srun",
        "mpirun",
        "horovodrun",
        "python",
        "-m",
        "train.py",
        "--nnodes",
        "2",
    ]
    + [
        "-np",
        "--",
        "=",
        "$A",
        "'",
        '"',
        "\\",
        "|",
        ">",
        "#",
        "2>&1",
        "*",
        "A=1",
        "--config_file",
        "\n",
        "\ue000",
        "1:2",
        "-n4",
    ]
)


@given(st.lists(WORDS | st.text(max_size=8), max_size=12).map(" ".join))
def test_no_line_has_another_outcome(line: str) -> None:
    try:
        found = translate(line, "torchrun", lambda path: {"num_processes": path})
    except UntranslatableError as refused:
        assert str(refused).endswith((".", ")")), refused
        return
    if found is not None:
        assert "\ue000" not in "".join([found.entry, *found.arguments, *found.env_vars.values(), *found.notes])
        assert found.entry.endswith(".py") or found.entry.startswith("-m ")
