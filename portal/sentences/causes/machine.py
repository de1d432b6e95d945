"""Memory, disks and devices."""

from portal.sentences.causes.explanation import Explanation, cause

MEMORY, SHARED_MEMORY, SPACE = "Memory per GPU, in MiB", "Size of /dev/shm, in MiB", "Space for files, in MiB"
"""Labels of the form for a new job (``portal/jobs/spec.py``)."""


def _enter_more(label: str) -> str:
    return f"choose “Duplicate and edit” and enter more under More, “{label}”"


@cause
def out_of_memory(over_limit: bool = False, limit_mib: int = 0) -> Explanation:
    if over_limit:
        limit = f" of {limit_mib} MiB" if limit_mib else ""
        return Explanation(
            f"It needed more memory than its limit{limit}",
            f"Load less data at once, use fewer DataLoader workers, or a smaller batch. Or {_enter_more(MEMORY)}.",
        )
    return Explanation(
        "The machine's memory was not enough",
        "Load less data at once, compute large arrays in parts, or use fewer DataLoader workers. A GPU's memory has nothing to do "
        "with it.",
    )


@cause
def killed() -> Explanation:
    return Explanation(
        "A process was killed (exit code 137), most likely because memory ran out",
        f"Load less data at once, or use fewer DataLoader workers. If it needs that much, {_enter_more(MEMORY)}.",
    )


@cause
def shared_memory() -> Explanation:
    return Explanation(
        "Shared memory (/dev/shm) was not enough",
        "Write to another folder than /dev/shm, or give your DataLoader fewer workers (num_workers=0 uses none). Or "
        f"{_enter_more(SHARED_MEMORY)}. If a worker reads a mapped file, do not change that file meanwhile.",
    )


@cause
def file_too_large() -> Explanation:
    return Explanation(
        "A file became larger than it may be",
        f"No file may be larger than the job's space for files. Write several smaller ones, for example a checkpoint in parts, or "
        f"{_enter_more(SPACE)}. If the code sets the limit itself (resource, ulimit -f), raise it there.",
    )


@cause
def too_many_files() -> Explanation:
    return Explanation(
        "It had too many files open at once",
        "Close each file after use (with open(...) does that), or open fewer at a time.",
    )


@cause
def disk_full(over_limit: bool = False) -> Explanation:
    if over_limit:
        return Explanation(
            "It wrote more than its disk limit",
            f"Keep fewer checkpoints, and delete files you no longer need while the job runs. Or {_enter_more(SPACE)}.",
        )
    return Explanation(
        "The disk was full",
        f"If it wrote to /tmp, which is a tenth of the job's space, or to /dev/shm, write to another folder, or {_enter_more(SPACE)}, "
        f"or “{SHARED_MEMORY}”. Otherwise the disk of the node is full, whoever filled it: report the node to an admin. Write less, too: "
        "keep fewer checkpoints, and delete files you no longer need while the job runs.",
    )


@cause
def not_writable() -> Explanation:
    return Explanation(
        "The job may not write there",
        "Write results to the folder in SCHEDULEARN_OUTPUTS and checkpoints to the one in SCHEDULEARN_CHECKPOINTS.",
    )


@cause
def gpu_out_of_memory() -> Explanation:
    return Explanation(
        "The GPU's memory was not enough",
        "Use a smaller batch, or more GPUs so that each holds less. With schedulearn_train Run(..., micro_batch_size=N) computes "
        "what does not fit at once in several passes.",
    )


@cause
def gpu_hardware() -> Explanation:
    return Explanation(
        "A GPU reported a fault",
        "Submit it again; if it happens on the same node, report it to an admin.",
    )


@cause
def no_gpu() -> Explanation:
    return Explanation(
        "The code asked for a CUDA GPU and found none",
        "On CPU slots there is none: choose the device by torch.cuda.is_available(), also as map_location for torch.load. If the job had "
        "a GPU, report the message and the node to an admin: the driver may be too old for the environment.",
    )


@cause
def wrong_gpu() -> Explanation:
    return Explanation(
        "The code chose a GPU that the job does not have",
        "A job sees only its own GPUs, numbered from 0: use cuda:0, or the local rank where there is one rank for each GPU. A plain "
        "command that starts ranks starts as many as the job has GPUs.",
    )


@cause
def one_gpu_twice() -> Explanation:
    return Explanation(
        "Two ranks used the same GPU",
        "Let each rank choose its own: torch.cuda.set_device(int(os.environ['LOCAL_RANK'])), or hvd.local_rank() under Horovod.",
    )


@cause
def no_nccl() -> Explanation:
    return Explanation(
        "The code asked for NCCL, which works only with GPUs",
        "Use the backend gloo where torch.cuda.is_available() is false, as on CPU slots. A script that also runs without torchrun "
        "needs no process group as a plain command. On machines with GPUs, the environments with PyTorch have NCCL.",
    )


@cause
def index_on_gpu() -> Explanation:
    return Explanation(
        "An index was out of range on the GPU",
        "Check labels and token numbers: each must be below the number of classes, or of rows of the embedding. Run once with the "
        "variable CUDA_LAUNCH_BLOCKING=1, or on the CPU, to see the line.",
    )


@cause
def cuda_error() -> Explanation:
    return Explanation(
        "A CUDA operation failed",
        "Often an index out of range, e.g. a label beyond the last class. Run it once on the CPU: the message will be clearer.",
    )


@cause
def address_in_use() -> Explanation:
    return Explanation(
        "A network port was in use already",
        "Jobs that run without containers share the ports of their machine, and deepspeed takes 29500 for all: give it another with "
        "--master_port, and leave that option out for torchrun, which takes a free one. In the code, let the system choose (port 0), "
        "and use two ports where it uses one twice.",
    )


@cause
def no_internet(host: str = "", reason: str = "", has_hosts: bool = False) -> Explanation:
    """``reason``: of the proxy (``sentences.network``), or *bypassed*, where the program did not use the proxy."""
    name = host or "the host"
    match reason:
        case "not_allowed":
            return Explanation(
                f"The job may not reach {name}",
                f"Ask an admin to allow {name} for this project, under Admin > Network of jobs. Or upload the data with the code.",
            )
        case "internal":
            return Explanation(
                f"{host or 'The host'} is in the local network, which the job may not reach",
                "Ask an admin to allow it as a host of the local network, under Admin > Network of jobs.",
            )
        case "unreachable":
            return Explanation(
                f"The node did not reach {name}",
                "It is allowed, but did not answer. Try again later; if it lasts, ask an admin whether the node reaches it.",
            )
        case "bypassed":
            return Explanation(
                f"The program did not use the proxy for {name}",
                "The job reaches its hosts only through the proxy that the variables HTTPS_PROXY and HTTP_PROXY name; it cannot look "
                "up names itself. Have the program use it, and do not unset these variables.",
            )
    if has_hosts:
        return Explanation(
            f"The job tried to reach {name}, and could not",
            "It reaches only the hosts that an admin allowed, through a proxy; its page lists them under Details. Ask an admin to "
            f"allow {name} for this project, or upload the data with the code.",
        )
    return Explanation(
        f"The job tried to reach {host or 'the Internet'}",
        f"Jobs have no access to it, unless an admin allows it. Ask one to allow {name} for this project, upload the data with the "
        "code, or have it put under /data.",
    )
