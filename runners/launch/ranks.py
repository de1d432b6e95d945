"""What a rank is started with: its variables and its program."""

import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from runners.launch.files import ContainerPaths
from runners.launch.host_updates import STALL_SECONDS, STALL_VARIABLE, check_seconds
from runners.spec import RunSpec

SHIM = Path(__file__).resolve().parent / "shim"
TRAINING = Path(__file__).resolve().parent.parent / "training"
"""Where scripts find ``schedulearn_train``, behind whatever a job brings itself."""
OURS = ("SCHEDULEARN_CONTROL", "SCHEDULEARN_SCRIBE")
NOTICE_FILE = "notice.json"
METRICS_PIPE = "metrics"
"""Lines of JSON that ranks write there become the stream of the same name: docs/training.md."""
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20)}
"""For the GNU C library, of a rank that computes on processors: what it frees in one step it needs again in the next.

By default it gives most of that back to the kernel, which then clears it anew: steps of a small network took 1.4 times
as long. Each process may keep 256 MiB more than it uses.
"""
JOINING_FILE = "joining"
"""How the names of the files begin in which ranks leave marks for ``joining``."""
BATCH_FILE = "batch"
"""The batch that the scheduler chose, once it has; docs/training.md."""


def rank_env(spec: RunSpec, paths: ContainerPaths, inherited: Mapping[str, str]) -> dict[str, str]:
    """The container's variables, sensible defaults, what the user asked for, then what must be as it is."""
    env = {name: value for name, value in inherited.items() if name not in OURS}
    threads = max(1, int(spec.resources.cpus) // max(1, spec.slots if spec.launcher != "command" else 1))
    env["PYTHONUNBUFFERED"] = "1"
    env["OMP_NUM_THREADS"] = str(threads)
    if spec.gpu_kind == "cpu":
        env.update(KEEP_MEMORY)
    env.setdefault("HOME", "/tmp")  # noqa: S108 - inside the container, its own
    for name in ("USER", "LOGNAME"):  # libraries ask for the user's name, and the container's user has none
        env.setdefault(name, "schedulearn")
    env.update(spec.env)
    env["PYTHONPATH"] = ":".join(filter(None, (env.get("PYTHONPATH"), str(TRAINING))))
    env.update(
        SCHEDULEARN_JOB=str(spec.job),
        SCHEDULEARN_ATTEMPT=str(spec.attempt),
        SCHEDULEARN_OUTPUTS=str(paths.outputs),
        SCHEDULEARN_CHECKPOINTS=str(paths.checkpoints),
        SCHEDULEARN_WORKSPACE=str(paths.workspace),
        SCHEDULEARN_DATA=str(paths.data),
        SCHEDULEARN_NOTICE=str(paths.scribe / NOTICE_FILE),
        SCHEDULEARN_METRICS=str(paths.scribe / METRICS_PIPE),
        SCHEDULEARN_BATCH=str(paths.scribe / BATCH_FILE),
        SCHEDULEARN_JOINING=str(paths.scribe / JOINING_FILE),
        CUDA_VISIBLE_DEVICES=",".join(spec.gpus) if spec.gpu_kind == "cuda" else "",
    )
    return env


def processors(spec: RunSpec, slot: int, offered: Collection[int]) -> frozenset[int]:
    """The processors that the rank in a CPU slot keeps to, an equal share of all; empty where it may use any.

    Ranks that compute and wait for each other otherwise meet on one processor while another idles, for as long as the
    kernel takes to see it: bound ones made a third more steps. A job with GPUs waits for these instead, and loads its
    data with as many processors as it likes.
    """
    each, rest = divmod(len(offered), max(1, spec.slots))
    if spec.gpu_kind != "cpu" or spec.slots < 2 or rest or not 0 <= slot < spec.slots:
        return frozenset()
    return frozenset(sorted(offered)[slot * each : (slot + 1) * each])


def with_shim(env: Mapping[str, str]) -> dict[str, str]:
    """For ranks of a ring: each Python of theirs runs ``shim/sitecustomize.py`` first."""
    return {**env, "PYTHONPATH": ":".join(filter(None, (str(SHIM), env.get("PYTHONPATH"))))}


def horovod_env(env: Mapping[str, str], interface: str, forwarder_port: int, elastic: bool) -> dict[str, str]:
    """What Horovod's ``create_run_env_vars`` says, with our forwarder in the place of the rendezvous.

    A new rank imports its libraries while the others wait for it, on a busy machine longer than Gloo's 30 seconds.
    A rank that hangs would hold all others up for ever: Horovod's stall inspector, which only warns by default, ends the
    ring in the end.
    """
    return {
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "120",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": f"{check_seconds(env):.0f}",
        STALL_VARIABLE: f"{STALL_SECONDS:.0f}",
        **with_shim(env),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(forwarder_port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": interface,
        "NCCL_SOCKET_IFNAME": interface,
        **({"HOROVOD_ELASTIC": "1"} if elastic else {}),
    }


def torch_env(env: Mapping[str, str], interface: str, spec: RunSpec) -> dict[str, str]:
    """What torchrun tells all ranks of an elastic ring; who each of them is, and where rank 0 listens, the driver says."""
    return {
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        **with_shim(env),
        "TORCHELASTIC_RUN_ID": f"sl-{spec.job}-{spec.attempt}",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def torchrun_argv(spec: RunSpec, hosts: int, endpoint: str, own_address: str, streams: Path) -> tuple[str, ...]:
    """torchrun over fixed hosts. Each rank says who it is (``TorchrunWorker``), opens the pipe of its own stream and becomes the
    user's program. torchrun, which replaces names of its own, makes one dollar of two."""
    open_stream = f'echo "$RANK $$$$" >"{streams}/rank.$LOCAL_RANK"; exec "$@" >"{streams}/$LOCAL_RANK" 2>&1'
    return (
        "python",
        "-m",
        "torch.distributed.run",
        f"--nnodes={hosts}",
        f"--nproc-per-node={spec.slots}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint}",
        f"--rdzv-id=sl-{spec.job}-{spec.attempt}",
        f"--rdzv-conf=is_host={'true' if spec.hostname == 'h0' else 'false'}",
        f"--local-addr={own_address}",
        "--max-restarts=0",
        "--no-python",
        "/bin/sh",
        "-c",
        open_stream,
        "sh",
        *with_python(spec.command),
    )


def with_python(command: Sequence[str]) -> tuple[str, ...]:
    """``python`` is this Python where no other is in the path."""
    if command and command[0] == "python" and shutil.which("python") is None:
        return (sys.executable, *command[1:])
    return tuple(command)
