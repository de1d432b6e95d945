"""Models, data and ranks."""

from portal.sentences.causes.explanation import Explanation, cause


@cause
def checkpoint_differs() -> Explanation:
    return Explanation(
        "The checkpoint does not fit the model",
        "The names or sizes of its parameters differ. If all names begin with module., it was saved from DataParallel or "
        "DistributedDataParallel: load it into the wrapped model, or remove that prefix.",
    )


@cause
def weights_only() -> Explanation:
    return Explanation(
        "The file has more than weights, which torch.load refuses",
        "If you trust the file, load it with torch.load(..., weights_only=False). Better: save only the state_dict.",
    )


@cause
def not_a_pickle() -> Explanation:
    return Explanation(
        "A file is not what the code expects, or incomplete",
        "Look at its first bytes. If they are the text version https://git-lfs..., it is a pointer of Git LFS: run git lfs pull and "
        "upload again. If it was cut off, upload it again.",
    )


@cause
def wrong_encoding() -> Explanation:
    return Explanation(
        "A text file has another encoding than the code expects",
        "Name the encoding when you open it, for example encoding='latin-1' or 'cp1252', or save the file as UTF-8.",
    )


@cause
def recursion() -> Explanation:
    return Explanation(
        "A function called itself without end (RecursionError)",
        "Look at the calls that repeat in the log. In PyTorch, a module that has its parent as an attribute does this.",
    )


@cause
def samples_differ() -> Explanation:
    return Explanation(
        "The samples of a batch have different shapes",
        "Bring them to one shape in the dataset (same size, same number of channels), or give the DataLoader a collate_fn.",
    )


@cause
def types_differ() -> Explanation:
    return Explanation(
        "Two tensors have different types",
        "Convert one of them: data from NumPy is float64 and needs .float() for a model of float32.",
    )


@cause
def devices_differ() -> Explanation:
    return Explanation(
        "Two tensors are on different devices",
        "Move the model and each batch to the same device with .to(device).",
    )


@cause
def sizes_differ() -> Explanation:
    return Explanation(
        "The sizes of two tensors do not fit each other",
        "Compare the shapes in the message with what the layer or operation at the line below expects.",
    )


@cause
def unused_parameters() -> Explanation:
    return Explanation(
        "Some parameters got no gradient, which DistributedDataParallel does not expect",
        "Use all parameters in the loss, or pass find_unused_parameters=True to DistributedDataParallel.",
    )


@cause
def initialised_twice() -> Explanation:
    return Explanation(
        "The process group was initialised twice",
        "Call init_process_group once; test torch.distributed.is_initialized() before, and use new_group for further groups.",
    )


@cause
def not_initialised() -> Explanation:
    return Explanation(
        "Ranks were used before they were initialised",
        "Call hvd.init(), or torch.distributed.init_process_group(), before anything that asks for ranks.",
    )


@cause
def ranks_diverged() -> Explanation:
    return Explanation(
        "The ranks no longer trained the same model",
        "Update parameters by run.step alone, and write or initialise weights with the same random numbers on all ranks. Where "
        "parameters are meant to differ, pass Run(..., check_divergence=False).",
    )


@cause
def rank_hangs(seconds: str) -> Explanation:
    return Explanation(
        f"A rank let the others wait for more than {seconds} s",
        "All ranks must take the same steps. If one really takes longer alone, give the job the variable "
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS with more seconds (0: the others wait without limit).",
    )


@cause
def waited_for_rank() -> Explanation:
    return Explanation(
        "A rank waited too long for the others",
        "All ranks must reach each collective operation at about the same time: look for the rank that did something else. If one "
        "really takes longer, give init_process_group a longer timeout.",
    )


@cause
def rank_left() -> Explanation:
    return Explanation(
        "A rank left while the others still worked",
        "Its last lines may give the reason; look for sys.exit, os._exit or an early end of its loop. All ranks must take the same steps.",
    )


@cause
def shapes_differ() -> Explanation:
    return Explanation(
        "The ranks sent tensors of different shapes",
        "Build the same model on all ranks: take sizes that depend on data (a vocabulary, a number of classes) from one rank.",
    )


@cause
def stood_still(seconds: str) -> Explanation:
    return Explanation(
        f"A process stood still for {seconds} s and was ended",
        "Something sent it SIGSTOP. Check what stops processes in your code; a debugger must detach from them.",
    )


@cause
def ring() -> Explanation:
    return Explanation(
        "The ranks lost each other",
        "Look for the rank that ended first. If none reports an error, submit it again and report it to an admin.",
    )


@cause
def ranks_apart() -> Explanation:
    return Explanation(
        "Its ranks did not work together",
        "Let it train with schedulearn_train, Horovod or torch.distributed, or submit it as a single rank, "
        "which takes as long. If it divides its work by rank itself, there is nothing to do.",
    )


@cause
def lightning_ranks(devices: str = "", nodes: str = "", ranks: str = "") -> Explanation:
    return Explanation(
        f"Lightning expects {devices} x {nodes} ranks, and the job has {ranks}",
        'Take the numbers from the job: Trainer(devices=int(os.environ["LOCAL_WORLD_SIZE"]), '
        'num_nodes=int(os.environ["GROUP_WORLD_SIZE"])). Or run the file as a plain command, python and its name: Lightning then '
        "starts its ranks itself, on one node.",
    )


@cause
def other_nodes() -> Explanation:
    return Explanation(
        "The command waited for other nodes",
        "A plain command runs on one node: remove --nnodes, --num_nodes and the address of the first node. For several nodes, choose the "
        "launcher torchrun with the Python file as the entry; “Duplicate and edit” can translate the line.",
    )


@cause
def mpi_failed(command: str = "mpirun") -> Explanation:
    return Explanation(
        f"{command} could not start its processes",
        "Schedulearn starts the ranks itself: choose the launcher Horovod, or torchrun for torch.distributed, with the Python file as "
        f"the entry, and leave out {command}.",
    )
