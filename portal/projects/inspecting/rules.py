"""Common mistakes, each found by one small function before the job waits for a GPU.

A rule gets the files that the entry file imports and yields (file, line, sentence). A false alarm is worse than a miss:
when the code may well be right, a rule yields nothing.
"""

import posixpath
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from .entries import as_module
from .source import Call, Source

Found = Iterator[tuple[Source, int, str]]


LIBRARY = "schedulearn_train"
"""The training library, which every job has, whatever its environment (docs/training/)."""


@dataclass(frozen=True, slots=True)
class Code:
    """The code that the rules check: the files that run, and how they are started."""

    sources: list[Source]
    launcher: str
    elastic: bool
    paths: Collection[str] = ()
    """All files of the upload."""

    @property
    def distributed(self) -> bool:
        return self.launcher != "command"

    @property
    def uses_library(self) -> bool:
        """Whether the script uses our training library, which sets devices, averages gradients and distributes samples."""
        return self.first_import(LIBRARY) is not None

    def calls(self, *functions: str) -> Iterator[tuple[Source, Call]]:
        for source in self.sources:
            for call in source.calls:
                if call.function in functions:
                    yield source, call

    def calls_of(self, package: str, *functions: str) -> Iterator[tuple[Source, Call]]:
        """Yield the calls of functions with these names from anywhere in the package."""
        for source, call in self.calls(*functions):
            if call.name.startswith(package + "."):
                yield source, call

    def has_file(self, path: str, source: Source) -> bool:
        """Return whether a path that a file names is in the upload, from its top or the folder of that file."""
        folders = ("", posixpath.dirname(source.path))
        return any(posixpath.normpath(posixpath.join(folder, path)) in self.paths for folder in folders)

    def mentions(self, *names: str) -> bool:
        return any(name in source.names for source in self.sources for name in names)

    def first_import(self, package: str) -> tuple[Source, int] | None:
        for source in self.sources:
            lines = [
                line
                for name, line in (source.optional | source.needed_imports).items()
                if name == package or name.startswith(package + ".")
            ]
            if lines:
                return source, min(lines)
        return None


def syntax_error(code: Code) -> Found:
    for source in code.sources:
        if source.error:
            yield (
                source,
                source.error[1],
                f"Python cannot read this file: {source.error[0]}. The job would fail at once.",
            )


def relative_import(code: Code) -> Found:
    """A file at the top of an upload is in no package; a file of a package runs as a module (``program.inspect``)."""
    entry = code.sources[0]
    lines = [line for module, line in entry.needed_imports.items() if module.startswith(".")]
    if lines and as_module(entry.path) is None:
        yield (
            entry,
            min(lines),
            "A relative import works only within a package, and this file is in none. Write “from model import ...” "
            "without the dot, or move the files into a folder, a package.",
        )


def missing_init(code: Code) -> Found:
    place = code.first_import("horovod")
    if place and code.launcher == "horovod" and not any(code.calls_of("horovod", "init")):
        yield (
            *place,
            "Horovod is imported, but hvd.init() is never called. Call it before any other function of Horovod.",
        )


def missing_process_group(code: Code) -> Found:
    if code.launcher == "torchrun" and not code.mentions("init_process_group", "init_device_mesh", "Accelerator"):
        for source, call in code.calls("DistributedDataParallel", "DDP"):
            yield source, call.line, "DistributedDataParallel needs torch.distributed.init_process_group() before it."
            return


def missing_elastic_run(code: Code) -> Found:
    if code.launcher == "horovod" and not code.elastic:
        for source, call in code.calls("TorchState", "TensorFlowKerasState", "ObjectState"):
            yield (
                source,
                call.line,
                "There is an elastic state, but no function is decorated with @hvd.elastic.run. Add the decorator.",
            )
            return


def elastic_without_commit(code: Code) -> Found:
    place = code.first_import("horovod")
    if place and code.elastic and not code.uses_library and not any(code.calls("commit", "check_host_updates")):
        yield (
            *place,
            "An elastic job uses new GPUs only after state.commit(), which is never called. Call it every few batches.",
        )


def elastic_without_checkpoint(code: Code) -> Found:
    place = code.first_import("horovod")
    saves = any(code.calls("save", "save_checkpoint", "save_weights", "save_pretrained"))
    if place and code.elastic and not code.uses_library and not saves:
        yield (
            *place,
            (
                "Nothing is saved during training. If the job loses all its GPUs, it restarts from the beginning: save a checkpoint "
                "under SCHEDULEARN_CHECKPOINTS and load it at the start."
            ),
        )


def undistributed_optimizer(code: Code) -> Found:
    if code.launcher != "horovod" or code.uses_library:
        return
    if code.mentions("DistributedOptimizer", "DistributedGradientTape"):
        return
    if any(code.calls("allreduce", "allreduce_", "grouped_allreduce", "grouped_allreduce_", "allreduce_async_")):
        return
    for source, call in code.calls_of("torch.optim", *OPTIMIZERS):
        yield (
            source,
            call.line,
            ("The optimizer is not wrapped in hvd.DistributedOptimizer, so each rank would train a separate model."),
        )
        return


OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adamax", "NAdam", "RAdam", "Adadelta", "LBFGS")


def different_weights(code: Code) -> Found:
    agreed = (
        "broadcast_parameters",
        "broadcast_object",
        "broadcast_optimizer_state",
        "broadcast_variables",
        "broadcast",
    )
    if (
        code.launcher != "horovod"
        or code.elastic
        or code.mentions(*agreed, "manual_seed", "BroadcastGlobalVariablesCallback")
    ):
        return
    for source, call in code.calls("DistributedOptimizer"):
        yield (
            source,
            call.line,
            ("The ranks start with different weights: call hvd.broadcast_parameters(model.state_dict(), root_rank=0)."),
        )
        return


def unsplit_data(code: Code) -> Found:
    if not code.distributed or code.mentions("DistributedSampler", "ElasticSampler", "random_split", "Subset", "shard"):
        return
    for source, call in code.calls("DataLoader"):
        if (
            call.literal(-1, "shuffle") is True
            and not call.has_argument("sampler")
            and not call.has_argument("batch_sampler")
        ):
            yield (
                source,
                call.line,
                (
                    "Each rank would go through all the data: give this DataLoader a DistributedSampler (ElasticSampler when "
                    "elastic) in place of shuffle=True."
                ),
            )


def fixed_device(code: Code) -> Found:
    if not code.distributed:
        return
    text = "All ranks of a node would use the same GPU: take {} instead."
    better = "hvd.local_rank()" if code.launcher == "horovod" else 'int(os.environ["LOCAL_RANK"])'
    for source in code.sources:
        for string, line in source.strings:
            if re.fullmatch(r"(cuda|gpu|/gpu):\d+", string):
                yield source, line, text.format(better)
        for call in source.calls:
            if call.function in ("cuda", "set_device") and isinstance(call.literal(0, "device"), int):
                yield source, call.line, text.format(better)


def device_not_selected(code: Code) -> Found:
    if code.launcher != "horovod" or code.uses_library:
        return
    if code.mentions("local_rank", "set_device", "set_visible_devices"):
        return
    for source in code.sources:
        lines = [line for string, line in source.strings if string == "cuda"]
        lines += [call.line for call in source.calls if call.function == "cuda" and not call.node.args]
        if lines:
            yield (
                source,
                min(lines),
                (
                    "All ranks of a node would use its first GPU: call torch.cuda.set_device(hvd.local_rank()) after hvd.init()."
                ),
            )
            return


def sets_rank_variables(code: Code) -> Found:
    ours = re.compile(
        r"CUDA_VISIBLE_DEVICES|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|HOROVOD_(RANK|SIZE|LOCAL_RANK)"
    )
    for source in code.sources:
        for name, value, line in source.set_variables:
            hides = name == "CUDA_VISIBLE_DEVICES" and value in ("", "-1")
            if value and not hides and ours.fullmatch(name) and (code.distributed or name == "CUDA_VISIBLE_DEVICES"):
                yield source, line, f"{name} is set by Schedulearn for each rank. Remove this line."


def spawns_ranks(code: Code) -> Found:
    if code.distributed:
        for source, call in code.calls("spawn"):
            if call.name.startswith(("torch.multiprocessing.", "multiprocessing.")):
                yield (
                    source,
                    call.line,
                    "Schedulearn starts one process for each GPU. Call your function directly, without spawn.",
                )


def data_parallel(code: Code) -> Found:
    if code.distributed:
        for source, call in code.calls("DataParallel"):
            if call.name.startswith("torch."):
                yield (
                    source,
                    call.line,
                    "DataParallel distributes one process over all GPUs; here each rank has its own GPU. Remove it.",
                )


def machine_specific_paths(code: Code) -> Found:
    homes = re.compile(r"(/home/|/Users/|/root/|/mnt/|/media/|/scratch/|/content/|/kaggle/|~/|[A-Za-z]:[\\/])(?=.)")
    for source in code.sources:
        for string, line in source.strings:
            if homes.match(string) and "\n" not in string and "://" not in string and len(string) < 300:
                yield (
                    source,
                    line,
                    (
                        "This path does not exist where the job runs. Read data under SCHEDULEARN_DATA (/data), or use a "
                        "path relative to your code."
                    ),
                )


def files_outside_outputs(code: Code) -> Found:
    """Find files that are written beside the code. ``writes`` has the position of the path in each call."""
    writes = {
        "save": 1,
        "savefig": 0,
        "to_csv": 0,
        "to_parquet": 0,
        "to_json": 0,
        "dump": 1,
        "savetxt": 0,
        "savez": 0,
        "open": 0,
    }
    for source, call in code.calls(*writes):
        position = 0 if call.name in ("numpy.save", "open") or call.name.startswith("()") else writes[call.function]
        path = call.literal(position)
        if call.function == "open" and (
            call.name != "open" or not str(call.literal(1, "mode") or "r").startswith(("w", "a", "x"))
        ):
            continue
        if (
            isinstance(path, str)
            and path
            and not path.startswith("/")
            and not code.mentions("chdir", "copy", "copytree", "move")
            and not code.has_file(path, source)
        ):
            yield (
                source,
                call.line,
                (
                    f"“{path[:60]}” is written beside the code. When the job ends, up to 100 MiB of such files are kept. "
                    "To keep it for certain, save it to the folder that os.environ['SCHEDULEARN_OUTPUTS'] names."
                ),
            )


def needs_internet(code: Code) -> Found:
    text = "Jobs reach only hosts that an admin has allowed for them. Put the data into a dataset, or into your upload."
    fetches = (
        "urllib.request.urlopen",
        "urllib.request.urlretrieve",
        "requests.get",
        "torch.hub.load",
        "wget.download",
    )
    for source in code.sources:
        for call in source.calls:
            downloads = call.literal(-1, "download") is True
            if downloads or call.name in (*fetches, "torch.hub.load_state_dict_from_url", "gdown.download"):
                yield source, call.line, text


def installs_packages(code: Code) -> Found:
    for source in code.sources:
        for call in source.calls:
            if call.name in (
                "os.system",
                "subprocess.run",
                "subprocess.call",
                "subprocess.check_call",
                "subprocess.Popen",
            ):
                first = call.node.args[0] if call.node.args else None
                words = [
                    word
                    for node in (getattr(first, "elts", None) or [first])
                    for word in str(getattr(node, "value", "")).split()
                ]
                if "install" in words and any(word.startswith("pip") or word == "conda" for word in words):
                    yield (
                        source,
                        call.line,
                        (
                            "Packages cannot be installed while a job runs. List them in a requirements.txt, and the form for a new "
                            "job offers to install them."
                        ),
                    )


def reads_input(code: Code) -> Found:
    for source, call in code.calls("input"):
        if call.name == "input":
            yield source, call.line, "A job cannot answer input(). Use an argument or an environment variable."


def opens_window(code: Code) -> Found:
    shown = {"cv2.imshow"} if any(code.calls("savefig")) else {"cv2.imshow", "matplotlib.pyplot.show"}
    for source, call in code.calls("show", "imshow"):
        if call.name in shown:
            yield source, call.line, "A job has no screen. Save the figure under SCHEDULEARN_OUTPUTS instead."


def needs_jupyter(code: Code) -> Found:
    for source, call in code.calls("get_ipython"):
        yield source, call.line, "get_ipython() exists only in Jupyter. Remove this line."


RULES: dict[str, Callable[[Code], Found]] = {
    "syntax": syntax_error,
    "relative-import": relative_import,
    "no-init": missing_init,
    "no-process-group": missing_process_group,
    "elastic-not-run": missing_elastic_run,
    "optimizer-alone": undistributed_optimizer,
    "different-beginnings": different_weights,
    "all-data-on-each-rank": unsplit_data,
    "fixed-device": fixed_device,
    "no-device": device_not_selected,
    "own-places": sets_rank_variables,
    "spawns-ranks": spawns_ranks,
    "data-parallel": data_parallel,
    "elastic-no-commit": elastic_without_commit,
    "elastic-no-checkpoint": elastic_without_checkpoint,
    "foreign-path": machine_specific_paths,
    "lost-file": files_outside_outputs,
    "internet": needs_internet,
    "installs": installs_packages,
    "input": reads_input,
    "window": opens_window,
    "jupyter": needs_jupyter,
}
