"""Why a job waits, in about ten words: for rows of lists. ``reasons`` has the whole sentence for each.

A function here has the name and the parameters of the one there. A reason that is short anyway has none.
"""

from collections.abc import Callable, Mapping
from typing import Any

from portal.sentences import sentence_of, words
from portal.sentences.words import amount, capitalised, duration, gpus, is_or_are, jobs_are
from scheduling.messages import Message

SHORT: dict[str, Callable[..., str]] = {}


def short(function: Callable[..., str]) -> Callable[..., str]:
    SHORT[function.__name__] = function
    return function


def short_reason(content: Message | Mapping[str, Any] | str | None) -> str:
    """Return the short sentence for a reason; the whole one where there is no other.

    Of the text of an earlier release it is the part before a semicolon.
    """
    data = content.data() if isinstance(content, Message) else content
    if isinstance(data, str):
        first, cut, _ = data.partition(";")
        return f"{first}." if cut else data
    if not isinstance(data, Mapping) or data.get("code") not in SHORT:
        return sentence_of(data)
    try:
        return SHORT[data["code"]](**{name: value for name, value in data.items() if name != "code"})
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError):  # other parameters than ours
        return sentence_of(data)


# --- impossible now, whatever the policy -------------------------------------------------------------------------


@short
def retry_pause(failures: int, seconds: int) -> str:
    return f"It waits {duration(seconds)} after a failure before the next attempt."


@short
def no_open_node() -> str:
    return "No node accepts new jobs now."


@short
def no_open_node_for_it() -> str:
    return "No node that it can run on accepts new jobs."


@short
def too_large(needed: int, largest: int, spread: bool) -> str:
    return f"It needs {gpus(needed)}; {'its nodes have' if spread else 'the largest node has'} {largest}."


@short
def too_much_per_gpu(resource: str, needed: int, largest: int) -> str:
    return f"No node has {amount(resource, needed)} for each of its GPUs."


@short
def above_limit(needed: int, limit: int, name: str) -> str:
    return f"It needs {gpus(needed)}; the limit for {name} is {limit}."


@short
def limit_reached(needed: int, limit: int, name: str, held: int, promised: bool) -> str:
    return f"The limit of {gpus(limit)} for {name} is reached."


@short
def no_node_yet() -> str:
    return "No node has joined the lab yet."


@short
def larger_than_lab(needed: int, total: int) -> str:
    return f"It needs {gpus(needed)}; the lab has {total}."


@short
def no_such_gpus(needed: int, total: int, memory_mib: int, kinds: list[str], same_kind: bool) -> str:
    return f"The lab has {total or 'none'} of the {needed} GPUs that it accepts."


@short
def no_node_accepts(closed: list[dict[str, Any]]) -> str:
    return "No node accepts new jobs now."


@short
def environment_preparing(title: str, node: str, percent: int, detail: Any) -> str:
    return f"{title} is being prepared on {node}: {percent} %."


@short
def environment_planned(title: str, node: str = "") -> str:
    return f"{title} waits for others on {node}." if node else f"{title} will be prepared on a node first."


@short
def agents_too_old(title: str, nodes: list[str]) -> str:
    return f"The nodes' agents are too old for {title}."


@short
def waits_for_job(after: int | None, state: str) -> str:
    return f"After job {after}." if after else "After another job."


@short
def waits_for_outputs(after: int | None, node: str) -> str:
    sender = f" from {node}" if node else ""
    return f"Outputs of {f'job {after}' if after else 'a job'} are coming{sender}."


@short
def agents_without_inputs(nodes: list[str]) -> str:
    return "The nodes' agents are too old for outputs as input."


@short
def agents_without_secrets(nodes: list[str]) -> str:
    return "The nodes' agents are too old for secrets."


@short
def agents_without_datasets(nodes: list[str]) -> str:
    return "The nodes' agents are too old for datasets."


@short
def agents_without_hosts(nodes: list[str]) -> str:
    return "The nodes' agents are too old for its allowed hosts."


@short
def images_need_docker(title: str, nodes: list[str]) -> str:
    return f"{title} is an image, and the nodes have no Docker Engine."


@short
def environment_failed(title: str, node: str, detail: Any) -> str:
    return f"{title} could not be prepared on {node}."


# --- too few GPUs ------------------------------------------------------------------------------------------------


@short
def none_free(ahead: int, total: int, everywhere: bool, kept: bool) -> str:
    whole = "the only GPU" if total == 1 else f"all {total} GPUs" + ("" if everywhere else " for it")
    return _behind(ahead, f"{whole} {is_or_are(total)} {'taken' if kept else 'in use'}")


@short
def too_few_free(ahead: int, needed: int, free: int, kept: bool) -> str:
    return _behind(ahead, f"it needs {gpus(needed)}; {free} {is_or_are(free)} free{' for it' if kept else ''}")


@short
def not_under_this_policy(ahead: int, free: int, kept: bool) -> str:
    return _behind(ahead, f"not its turn yet, though {gpus(free)} {is_or_are(free)} free")


@short
def too_scattered(ahead: int, needed: int, largest: int, node: str) -> str:
    return _behind(ahead, f"it needs {needed} GPUs together; {node} has {largest} free")


@short
def short_of_resource(ahead: int, resource: str, gpus: int, needed: int, node: str, free: int, left: int) -> str:
    return _behind(ahead, f"it needs {amount(resource, needed)} per GPU; {node} has too little")


def _behind(ahead: int, clause: str) -> str:
    behind = f" ({ahead} {'job' if ahead == 1 else 'jobs'} ahead)" if ahead else ""
    return capitalised(f"{clause}{behind}")


@short
def promised(count: int) -> str:
    return f"It starts when other jobs have released {gpus(count)}."


# --- behind others -----------------------------------------------------------------------------------------------


@short
def in_line(ahead: int, first_needs: int) -> str:
    return f"{jobs_are(ahead)} ahead of it, in strict order."


@short
def would_hold_up(ahead: int, first_needs: int, minutes: int | None) -> str:
    return "Starting now could delay the first job of the queue."


@short
def behind_tier(tier: str) -> str:
    return f"Jobs of the {tier} tier are ahead of it."


@short
def overdue(patience: int) -> str:
    return "It is next: GPUs are kept for it."


@short
def saving(waited: int, needed: int, saved: int) -> str:
    return f"GPUs are being saved for it: {saved} of {needed}."


@short
def behind_saved(count: int) -> str:
    return f"{gpus(count)} {is_or_are(count)} being saved for a job that waited longer."


@short
def beside_reserved(reason: Any, count: int, node: str, name: str, minutes: int, begun: bool) -> str:
    return f"{gpus(count)} of {node} {is_or_are(count)} reserved for {name}."


@short
def of_requested_gpus(reason: Any, memory_mib: int, kinds: list[str], same_kind: bool, accepted: int) -> str:
    return short_reason(reason) if accepted else "No open node has GPUs that it accepts."


@short
def no_whole_machine(needed: int, free: int) -> str:
    return f"It needs {gpus(needed)} of one machine; at most {free} are free."


# --- of one policy -----------------------------------------------------------------------------------------------


@short
def outserved(reason: Any, gpu_hours: float) -> str:
    return f"Jobs that had fewer than its {gpu_hours:.1f} GPU-hours go first."


@short
def in_turns(reason: Any, minutes: int) -> str:
    return f"Other jobs make room after about {minutes} min."


@short
def shorter_first(reason: Any, seconds: int) -> str:
    return f"Shorter jobs go first; it needs about {duration(seconds)}."


@short
def less_served_first(reason: Any, seconds: int) -> str:
    return "Jobs that had less GPU time go first."


@short
def worse_off_first(reason: Any, share: float, times: float) -> str:
    return "Jobs that are worse off than it go first."


@short
def behind_share(reason: Any, account: Mapping[str, Any], group: Mapping[str, Any] | None) -> str:
    for each in (account, group or {}):
        if each and each["now"] > each["share"]:
            return f"{_named(each)} has {gpus(each['now'])}, more than the fair share of {each['share']:.1f}."
        if each and each["recent"] > each["share"]:
            return f"{_named(each)} had {each['recent']:.1f} GPUs recently; the fair share is {each['share']:.1f}."
    return short_reason(reason)  # within its share it may be first, and wait for GPUs only


def _named(account: Mapping[str, Any]) -> str:
    """Return the name of an account at the beginning of a sentence. The names of users keep their case."""
    name = str(account["name"])
    return f"G{name[1:]}" if name.startswith("group ") else name


@short
def booked_later(count: int, seconds: int) -> str:
    return f"It has booked {gpus(count)} in about {duration(seconds)}."


@short
def booked_now(count: int) -> str:
    return f"It has booked {gpus(count)}, which others still use."


@short
def nothing_to_book(seconds: int) -> str:
    return f"No GPUs are left to book in the next {duration(seconds)}."


@short
def not_worth_its_price(worth: float, cost: float, payoff: float, slot: int) -> str:
    return f"Not yet worth its price: worth {worth:.3g}, cost {cost:.3g}."


# --- of the cycle ------------------------------------------------------------------------------------------------


@short
def cannot_decide() -> str:
    return "The scheduler cannot decide at the moment."


@short
def in_cpu_slots(reason: Any) -> str:
    return words.in_cpu_slots(short_reason(reason))


@short
def not_started(why: Any) -> str:
    return "It was about to start; the scheduler tries again."
