"""The launcher of DeepSpeed. Its library reads the variables that torchrun sets."""

from collections.abc import Sequence

from .options import as_module, each, ignore, log, no_python, place, product, read_options, refuse, remember, table
from .translation import Draft, Translation

FOR_NODES = refuse(
    "prepares each machine, and jobs find theirs prepared. Remove it, and choose an environment with the packages."
)
OPTIONS = table(
    each("--num-nodes", remember("nodes")),
    each("--num-gpus --num-accelerators", remember("gpus")),
    each("-i --include", remember("include")),
    each("-H --hostfile -e --exclude --master-port --master-addr --node-rank --launcher --launcher-args --ssh-port", place),
    each("--no-ssh --no-ssh-check --force-multi --bind-cores-to-rank", place, 0),
    each("--bind-core-list", place),
    each("--module", as_module, 0),
    each("--no-python", no_python, 0),
    each("--no-local-rank", remember("no_local_rank"), 0),
    each("--enable-each-rank-log", log),
    each("--log-level", ignore),
    each("-q --quiet --save-pid", ignore, 0),
    each("--autotuning", refuse("starts several trainings by itself. Keep the plain command, which runs on one node.")),
    each("--elastic-training", refuse("has no counterpart. Remove it, and tick “Elastic” if the code can restart from a snapshot."), 0),
    each("--min-elastic-nodes --max-elastic-nodes", place),
    each("--venv-script", FOR_NODES),
)  # fmt: skip
LOCAL_RANK = (
    "deepspeed passes --local_rank to the script, and torchrun does not: DeepSpeed itself reads LOCAL_RANK, and so must "
    'the script, with os.environ["LOCAL_RANK"].'
)


def deepspeed(tool: str, words: Sequence[str]) -> Translation:
    """Translate the words after ``deepspeed``."""
    draft = Draft(tool)
    rest = read_options(draft, words, OPTIONS, abbreviated=True)
    values = draft.values
    if "include" in values:
        draft.leave_out(f"--include {values['include']}", "the scheduler chooses the GPUs")
        draft.set_ranks(_included(values["include"]))
    nodes = values.get("nodes", "1").replace("-1", "1")
    draft.nodes = product((nodes, "--num_nodes")) or 1
    if "include" not in values and values.get("gpus", "-1") != "-1":
        draft.set_ranks(product((values["gpus"], "--num_gpus"), (nodes, "--num_nodes")))
    if "no_local_rank" not in values:
        draft.notes.append(LOCAL_RANK)
    return draft.finish("torchrun", rest)


def _included(text: str) -> int | None:
    """Return how many GPUs ``localhost:0,1@other:2`` names; None where it names a whole host."""
    hosts = [host.partition(":")[2] for host in text.split("@")]
    return sum(len(slots.split(",")) for slots in hosts) if all(hosts) else None
