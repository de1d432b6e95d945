"""torchrun, ``python -m torch.distributed.run`` and ``python -m torch.distributed.launch``."""

from collections.abc import Sequence

from .options import (
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
from .translation import Draft, Translation, UntranslatableError

OPTIONS = table(
    *(each(name, remember(name)) for name in ("--nnodes", "--nproc-per-node", "--max-restarts")),
    each("--rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --node-rank --master-addr --master-port --local-addr", place),
    each("--standalone", place, 0),
    each("-m --module", as_module, 0),
    each("--no-python", no_python, 0),
    each("--log-dir -r --redirects -t --tee --local-ranks-filter --logs-specs", log),
    each("--duplicate-stdout-filters --duplicate-stderr-filters", log),
    each("--monitor-interval --start-method --event-log-handler --numa-binding --shutdown-timeout", ignore),
    each("--signals-to-handle --role", ignore),
    each("--run-path", refuse("runs the file inside torchrun's own Python. Remove it: ranks run the file themselves."), 0),
    each(
        "--virtual-local-rank",
        refuse("gives each rank its own GPU as number 0, which Schedulearn does not. Remove it, and let the code use LOCAL_RANK."),
        0,
    ),
)  # fmt: skip
LAUNCH_OPTIONS = table(OPTIONS, each("--use-env", remember("--use-env"), 0))
MACHINE_DEPENDENT = ("auto", "gpu", "cpu", "xpu")
"""Values of --nproc-per-node that depend on the machine."""


def torchrun(tool: str, words: Sequence[str]) -> Translation:
    """Translate the words after torchrun."""
    draft = Draft(tool)
    rest = read_options(draft, words, OPTIONS, abbreviated=True)
    return _finish(draft, rest)


def torch_launch(tool: str, words: Sequence[str]) -> Translation:
    """Translate the words after ``torch.distributed.launch``, which passes the local rank as an argument."""
    draft = Draft(tool)
    rest = read_options(draft, words, LAUNCH_OPTIONS, abbreviated=True)
    if draft.values.pop("--use-env", None) is None:
        raise UntranslatableError(
            "Without --use_env, torch.distributed.launch passes --local-rank to the script, which torchrun does not. Let the "
            'script read os.environ["LOCAL_RANK"] in its place, and add --use_env to the line.'
        )
    return _finish(draft, rest)


def _finish(draft: Draft, rest: Sequence[str]) -> Translation:
    values = draft.values
    restarts = whole_number(values.get("--max-restarts", "0"), "--max-restarts")
    draft.set_retries(restarts, f"--max-restarts {restarts}")
    fewest, _, most = values.get("--nnodes", "1").partition(":")
    per_node = values.get("--nproc-per-node", "1")
    draft.nodes = product((fewest, "--nnodes")) or 1
    if per_node not in MACHINE_DEPENDENT:
        draft.set_ranks(*(_ranks(nodes, per_node) for nodes in (fewest, most or fewest)))
    if most and most != fewest:
        draft.elastic = True
        draft.notes.append(
            f"For --nnodes {values['--nnodes']}, tick “Elastic”: the number of GPUs then changes while the job runs."
        )
    return draft.finish("torchrun", rest)


def _ranks(nodes: str, per_node: str) -> int | None:
    return product((nodes, "--nnodes"), (per_node, "--nproc-per-node"))
