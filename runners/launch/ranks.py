"""The variables and the command line with which a rank is started."""

import os
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from runners.launch.files import ContainerPaths
from runners.launch.host_updates import STALL_SECONDS, STALL_VARIABLE, stall_check_seconds
from runners.spec import CACHE_VARIABLE, LAYER_VARIABLE, NETWORK_VARIABLE, SECRET_VARIABLES_VARIABLE, RunSpec

SHIM = Path(__file__).resolve().parent / "shim"
TRAINING = Path(__file__).resolve().parent.parent / "training"
"""Where scripts find ``schedulearn_train``, after the modules of the job itself."""
PRIVATE_VARIABLES = ("SCHEDULEARN_CONTROL", "SCHEDULEARN_SCRIBE", NETWORK_VARIABLE, SECRET_VARIABLES_VARIABLE)
NOTICE_FILE = "notice.json"
METRICS_PIPE = "metrics"
"""The pipe for lines of JSON, which become the stream of the same name: docs/training/reports.md."""
MALLOC_VARIABLES = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20)}
"""Settings of the GNU C library for ranks that compute on processors: what one step frees, the next one needs again.

By default the library returns most of that to the kernel, which then clears it again: steps of a small network took 1.4
times as long. Each process may keep 256 MiB more than it uses.
"""
LOOPBACK_VARIABLES = {"PET_LOCAL_ADDR": "127.0.0.1"}
"""The default of torchrun's --local-addr in a plain command, whose ranks are all on its host.

Otherwise they look for the first rank by the machine's own name, and wait for minutes where that does not resolve.
"""
CACHE_FOLDERS = {
    "XDG_CACHE_HOME": "",
    "HF_HOME": "huggingface",
    "KERAS_HOME": "keras",
    "MPLCONFIGDIR": "matplotlib",
    "NLTK_DATA": "nltk_data",
    "NUMBA_CACHE_DIR": "numba",
    "PIP_CACHE_DIR": "pip",
    "TFHUB_CACHE_DIR": "tfhub",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_HOME": "torch",
    "TRITON_CACHE_DIR": "triton",
    "UV_CACHE_DIR": "uv",
    "WANDB_CACHE_DIR": "wandb",
}
"""Where libraries keep what they download and compile: folders in the cache of the project."""
THREADS_VARIABLE = "SCHEDULEARN_THREADS"
"""The threads of a plain command, which the ranks that it starts share (``shim``), unless its user sets their number."""
JOINING_FILE = "joining"
"""The prefix of the names of the files in which ranks leave marks for ``joining``."""
BATCH_FILE = "batch"
"""The batch that the scheduler chose, if it did; docs/training/batch-size.md."""


def rank_env(
    spec: RunSpec, paths: ContainerPaths, inherited: Mapping[str, str], secrets: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return a rank's variables. Of the same name, the later wins: the container's, defaults, the job's, its secrets,
    required ones."""
    env = {name: value for name, value in inherited.items() if name not in PRIVATE_VARIABLES}
    threads = max(1, int(spec.resources.cpus) // max(1, spec.slots if spec.launcher != "command" else 1))
    env["PYTHONUNBUFFERED"] = "1"
    env["OMP_NUM_THREADS"] = str(threads)
    if spec.launcher == "command":
        env.update(LOOPBACK_VARIABLES)
    if spec.gpu_kind == "cpu":
        env.update(MALLOC_VARIABLES)
        env["ACCELERATE_USE_CPU"] = "true"  # without it, accelerate connects no ranks where there is no GPU
    env.setdefault("HOME", "/tmp")  # noqa: S108 - the container's own
    if cache := env.get(CACHE_VARIABLE):
        for name, folder in CACHE_FOLDERS.items():
            env.setdefault(name, f"{cache}/{folder}".rstrip("/"))  # an image may bring its own
    for name in ("USER", "LOGNAME"):  # libraries ask for the user's name, and the container's user has none
        env.setdefault(name, "schedulearn")
    env.update(spec.env)
    env.update(secrets or {})
    # The shim comes first: each Python of the job runs ``shim/sitecustomize.py`` when it starts.
    env["PYTHONPATH"] = ":".join(filter(None, (str(SHIM), env.get("PYTHONPATH"), str(TRAINING))))
    if layer := env.get(LAYER_VARIABLE):
        first, _, rest = env.get("PATH", os.defpath).partition(":")
        env["PATH"] = ":".join(filter(None, (first, f"{layer}/bin", rest)))
    if spec.launcher == "command" and "OMP_NUM_THREADS" not in dict(spec.env):
        env[THREADS_VARIABLE] = str(threads)
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
    """Return the processors to which the rank in a CPU slot is bound, an equal share of all; empty where it may use any.

    Ranks that compute and wait for each other may otherwise share one processor while another idles, until the kernel moves
    them: bound ones made a third more steps. A job with GPUs waits for these instead, and loads its data with as many
    processors as it likes.
    """
    each, rest = divmod(len(offered), max(1, spec.slots))
    if spec.gpu_kind != "cpu" or spec.slots < 2 or rest or not 0 <= slot < spec.slots:
        return frozenset()
    return frozenset(sorted(offered)[slot * each : (slot + 1) * each])


def horovod_env(env: Mapping[str, str], interface: str, forwarder_port: int, elastic: bool) -> dict[str, str]:
    """Return the variables of Horovod's ``create_run_env_vars``, with our forwarder in the place of the rendezvous.

    A new rank imports its libraries while the others wait for it, on a busy machine longer than Gloo's 30 seconds.
    A rank that hangs would block all others for ever: Horovod's stall inspector, which by default only warns, ends the
    whole group after a time.
    """
    return {
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "120",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": f"{stall_check_seconds(env):.0f}",
        STALL_VARIABLE: f"{STALL_SECONDS:.0f}",
        **env,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(forwarder_port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": interface,
        "NCCL_SOCKET_IFNAME": interface,
        **({"HOROVOD_ELASTIC": "1"} if elastic else {}),
    }


def torch_env(env: Mapping[str, str], interface: str, spec: RunSpec) -> dict[str, str]:
    """Return the variables that torchrun sets for all ranks of an elastic job. The driver adds each rank's own ones and
    the address of rank 0."""
    return {
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        **env,
        "TORCHELASTIC_RUN_ID": f"sl-{spec.job}-{spec.attempt}",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def torchrun_argv(spec: RunSpec, hosts: int, endpoint: str, own_address: str, streams: Path) -> tuple[str, ...]:
    """Return the command line of torchrun over fixed hosts. Each rank writes its number and process id to a file
    (``TorchrunWorker``), opens the pipe of its stream and becomes the user's program. torchrun substitutes variables in the
    command line, so that two dollars stand for one."""
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
        "--",  # what follows is not read as options of torchrun, such as --log of the script
        "/bin/sh",
        "-c",
        open_stream,
        "sh",
        *with_python(spec.command),
    )


def with_python(command: Sequence[str]) -> tuple[str, ...]:
    """Replace ``python`` by this Python where no other is in the path."""
    if command and command[0] == "python" and shutil.which("python") is None:
        return (sys.executable, *command[1:])
    return tuple(command)
