"""horovodrun, mpirun and srun, which start other programs, among them Python and other launchers."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from .options import (
    constant,
    each,
    ignore,
    log,
    place,
    product,
    read_options,
    refuse,
    remember,
    table,
    variable,
    whole_number,
)
from .translation import Draft, Translation, UntranslatableError

PYTHON = re.compile(r"(?:\S*/)?python(?:\d(?:\.\d+)?)?")
Inner = Callable[[Sequence[str]], Translation | None]
"""Translates the words that a launcher starts, if they are another launcher."""

HOROVOD_OPTIONS = table(
    each("-np --num-proc", remember("count")),
    each("--min-np --min-num-proc", remember("fewest")),
    each("--max-np --max-num-proc", remember("most")),
    each("-H --hosts -hostfile --hostfile --host-discovery-script --slots-per-host -p --ssh-port -i --ssh-identity-file", place),
    each("--network-interfaces --network-interface --start-timeout --elastic-timeout --blacklist-cooldown-range", place),
    each("--gloo --mpi --jsrun --disable-cache --tcp", place, 0),
    each("--mpi-args --binding-args", place),
    each("--output-filename", log),
    each("-prefix-timestamp --prefix-output-with-timestamp", log, 0),
    each("--verbose", ignore, 0),
    each("--reset-limit", refuse("has no counterpart. Remove it, and set “Restarts without progress”.")),
    each("--config-file", refuse("is a file of horovodrun, which is not read. Write its values as options or variables.")),
    each("--fusion-threshold-mb", variable("HOROVOD_FUSION_THRESHOLD", lambda mb: str(whole_number(mb, "--fusion-threshold-mb") * 2**20))),
    each("--cycle-time-ms", variable("HOROVOD_CYCLE_TIME")),
    each("--cache-capacity", variable("HOROVOD_CACHE_CAPACITY")),
    each("--hierarchical-allreduce", constant("HOROVOD_HIERARCHICAL_ALLREDUCE", "1"), 0),
    each("--no-hierarchical-allreduce", constant("HOROVOD_HIERARCHICAL_ALLREDUCE", "0"), 0),
    each("--hierarchical-allgather", constant("HOROVOD_HIERARCHICAL_ALLGATHER", "1"), 0),
    each("--no-hierarchical-allgather", constant("HOROVOD_HIERARCHICAL_ALLGATHER", "0"), 0),
    each("--torus-allreduce", constant("HOROVOD_TORUS_ALLREDUCE", "1"), 0),
    each("--no-torus-allreduce", constant("HOROVOD_TORUS_ALLREDUCE", "0"), 0),
    each("--autotune", constant("HOROVOD_AUTOTUNE", "1"), 0),
    each("--no-autotune", constant("HOROVOD_AUTOTUNE", "0"), 0),
    each("--autotune-log-file", variable("HOROVOD_AUTOTUNE_LOG")),
    each("--autotune-warmup-samples", variable("HOROVOD_AUTOTUNE_WARMUP_SAMPLES")),
    each("--autotune-steps-per-sample", variable("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE")),
    each("--autotune-bayes-opt-max-samples", variable("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES")),
    each("--autotune-gaussian-process-noise", variable("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE")),
    each("--timeline-filename", variable("HOROVOD_TIMELINE")),
    each("--timeline-mark-cycles", constant("HOROVOD_TIMELINE_MARK_CYCLES", "1"), 0),
    each("--no-timeline-mark-cycles", constant("HOROVOD_TIMELINE_MARK_CYCLES", "0"), 0),
    each("--no-stall-check", constant("HOROVOD_STALL_CHECK_DISABLE", "1"), 0),
    each("--stall-check", constant("HOROVOD_STALL_CHECK_DISABLE", "0"), 0),
    each("--stall-check-warning-time-seconds", variable("HOROVOD_STALL_CHECK_TIME_SECONDS")),
    each("--stall-check-shutdown-time-seconds", variable("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")),
    each("--mpi-threads-disable --no-mpi-threads-disable", ignore, 0),
    each("--num-nccl-streams", variable("HOROVOD_NUM_NCCL_STREAMS")),
    each("--thread-affinity", variable("HOROVOD_THREAD_AFFINITY")),
    each("--gloo-timeout-seconds", variable("HOROVOD_GLOO_TIMEOUT_SECONDS")),
    each("--log-level", variable("HOROVOD_LOG_LEVEL")),
    each("--log-with-timestamp --no-log-hide-timestamp", constant("HOROVOD_LOG_HIDE_TIME", "0"), 0),
    each("--log-without-timestamp --log-hide-timestamp", constant("HOROVOD_LOG_HIDE_TIME", "1"), 0),
)  # fmt: skip


def _export(draft: Draft, typed: str, value: str) -> None:
    """``mpirun -x NAME=value`` sets a variable; ``-x NAME`` passes on one of the machine where it is typed."""
    name, sign, text = value.partition("=")
    if sign:
        draft.env_vars[name] = text
    else:
        draft.leave_out(typed, "set the variable on the form if the code needs it")


MPI_OPTIONS = table(
    each("-np -n -c --np", remember("count")),
    each("-x", _export),
    each("-H -host --host -hosts -hostfile --hostfile -machinefile --machinefile -f -N -npernode --npernode -ppn", place),
    each("-bind-to --bind-to -map-by --map-by -rank-by --rank-by -cpus-per-proc --cpus-per-proc -rf --rankfile", place),
    each("-mca --mca -gmca --gmca -pmca --pmca", place, 2),
    each("-genv", refuse("sets a variable for MPI. Set it on the form, under “Environment variables”."), 2),
    each("-oversubscribe --oversubscribe -nooversubscribe --nooversubscribe --allow-run-as-root -allow-run-as-root", place, 0),
    each("-bynode -byslot -bysocket --bynode --report-bindings -report-bindings --use-hwthread-cpus -nolocal --nolocal", place, 0),
    each("--tag-output -tag-output --timestamp-output -timestamp-output -l", log, 0),
    each("-output-filename --output-filename", log),
    each("-v --verbose -q --quiet --display-map -display-map", ignore, 0),
    each("-wdir --wdir -wd", refuse("changes the folder, and ranks start at the top of the upload. Remove it.")),
)  # fmt: skip


def _srun_export(draft: Draft, typed: str, value: str) -> None:
    for part in value.split(","):
        name, sign, text = part.partition("=")
        if sign:
            draft.env_vars[name] = text


SRUN_OPTIONS = table(
    each("-n --ntasks", remember("count")),
    each("-N --nodes", remember("nodes")),
    each("--ntasks-per-node", remember("per_node")),
    each("--gres --gpus --gpus-per-node --gpus-per-task --ntasks-per-gpu --gpu-bind --cpu-bind --mem-bind -m --distribution", place),
    each("-c --cpus-per-task --mem --mem-per-cpu --mem-per-gpu -w --nodelist -x --exclude -C --constraint --mpi", place),
    each("-p --partition -A --account -q --qos --jobid --reservation -M --clusters --network --het-group", place),
    each("--exclusive --overlap -O --overcommit --kill-on-bad-exit -K --wait -W", place, 0),  # with "=" or without a value
    each("-t --time", ignore),
    each("-J --job-name", ignore),
    each("-o --output -e --error -i --input", log),
    each("-l --label -u --unbuffered", log, 0),
    each("-v --verbose -Q --quiet --pty", ignore, 0),
    each("--export", _srun_export),
    each("-D --chdir", refuse("changes the folder, and ranks start at the top of the upload. Remove it.")),
    each(
        "--container-image --container-mounts --container-workdir --container-name",
        refuse("chooses a container. Remove it, and choose an environment of the lab."),
    ),
)  # fmt: skip


def horovodrun(tool: str, words: Sequence[str]) -> Translation:
    """Translate the words after ``horovodrun``."""
    draft = Draft(tool)
    rest = read_options(draft, words, HOROVOD_OPTIONS, abbreviated=True)
    values = {name: product((text, f"The number of processes of {tool}")) for name, text in draft.values.items()}
    if "fewest" in values or "most" in values:
        draft.elastic = True
        fewest = values.get("fewest", values.get("count", 1))
        draft.set_ranks(fewest, values.get("most", values.get("count", fewest)))
        draft.notes.append("Tick “Elastic”: the number of GPUs then changes while the job runs.")
    elif "count" in values:
        draft.set_ranks(values["count"])
    return draft.finish("horovod", _python_words(draft, rest))


def mpirun(tool: str, words: Sequence[str], written_for: str, inner: Inner) -> Translation:
    """Translate the words after ``mpirun``; ``written_for`` is the launcher that the code is written for."""
    draft = Draft(tool)
    rest = read_options(draft, words, MPI_OPTIONS)
    if "count" in draft.values:
        draft.set_ranks(product((draft.values["count"], f"The number of processes of {tool}")))
    return _of_any(draft, rest, written_for, inner)


def srun(tool: str, words: Sequence[str], written_for: str, inner: Inner) -> Translation:
    """Translate the words after ``srun``; see ``mpirun``."""
    draft = Draft(tool)
    rest = read_options(draft, words, SRUN_OPTIONS)
    values = draft.values
    nodes = values.get("nodes", "1").partition("-")[0]
    if "count" in values:
        draft.set_ranks(product((values["count"], "--ntasks")))
    elif "per_node" in values:
        draft.set_ranks(product((values["per_node"], "--ntasks-per-node"), (nodes, "--nodes")))
    draft.notes.append(
        "There is no Slurm here: where the code reads SLURM_PROCID, SLURM_NTASKS or SLURM_LOCALID, let it read RANK, WORLD_SIZE or "
        "LOCAL_RANK (with Horovod: hvd.rank(), hvd.size(), hvd.local_rank())."
    )
    return _of_any(draft, rest, written_for, inner)


def _of_any(draft: Draft, rest: Sequence[str], written_for: str, inner: Inner) -> Translation:
    """Return the translation of a launcher that is of no framework: that of the launcher which it starts, or the code's."""
    if (found := inner(rest)) is not None:
        own = draft.finish(found.launcher, ["x.py"])
        return replace(
            found,
            tool=f"{draft.tool} {found.tool}",
            env_vars={**own.env_vars, **found.env_vars},
            notes=(*own.notes, *found.notes),
        )
    if written_for not in ("torchrun", "horovod"):
        raise UntranslatableError(
            f"As far as the code shows, it uses neither torch.distributed nor Horovod, and {draft.tool} starts ranks that are "
            f"connected in another way. Remove {draft.tool} from the line to run the program once."
        )
    return draft.finish(written_for, _python_words(draft, rest))


def _python_words(draft: Draft, words: Sequence[str]) -> list[str]:
    """Return the program and its arguments without Python and its options."""
    if not words or not PYTHON.fullmatch(words[0]):
        return list(words)
    at = 1
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "-m":
            draft.is_module = True
        elif words[at] != "-u":
            raise UntranslatableError(f"The option {words[at][:50]} of Python has no counterpart. Remove it.")
        at += 1
    return list(words[at:])
