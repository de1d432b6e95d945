"""Why a job waits: one plain, true sentence for the user who waits, a different one for each cause.

The classes of these messages are in ``scheduling/toolkit/reasons.py``, in the policies, and in ``portal/scheduler``.
"""

from collections.abc import Sequence
from typing import Any

from portal.sentences import words
from portal.sentences.registry import nested_sentence, sentence
from portal.sentences.words import amount, capitalised, clause, duration, gpus, is_or_are, jobs_are, requested_gpus
from portal.sentences.words import minutes as in_minutes


@sentence
def text(text: str) -> str:
    return text


@sentence
def unexplained() -> str:
    return "It waits."


@sentence
def retry_pause(failures: int, seconds: int) -> str:
    times = "Its code has failed" if failures == 1 else f"Its code has failed {failures} times"
    return f"{times}: the next attempt may start {duration(seconds)} after the last one ended."


# --- impossible now, whatever the policy -------------------------------------------------------------------------


@sentence
def no_open_node() -> str:
    return "No node is open for new work now: all are lost, drained or not approved yet."


@sentence
def no_open_node_for_it() -> str:
    return "None of the nodes it can run on is open for new work now."


@sentence
def too_large(needed: int, largest: int, spread: bool) -> str:
    where = "the nodes it can run on have" if spread else "the largest node it can run on has"
    return f"It needs {gpus(needed)} {'at once' if spread else 'on one node'}, but {where} only {largest}."


@sentence
def too_much_per_gpu(resource: str, needed: int, largest: int) -> str:
    most = f"at most {amount(resource, largest)}" if largest else "less"
    return (
        f"It asks for {amount(resource, needed)} per GPU, which no node can give it for all its GPUs: ask for {most}."
    )


@sentence
def above_limit(needed: int, limit: int, name: str) -> str:
    return f"It needs {gpus(needed)}, but the limit for {name} is {limit}: submit it with fewer, or ask an admin."


@sentence
def limit_reached(needed: int, limit: int, name: str, held: int, promised: bool) -> str:
    taken = f"{held} {is_or_are(held)} in use{' or promised' if promised else ''}"
    return f"The limit of {gpus(limit)} for {name} is reached: {taken} and it needs {needed}."


@sentence
def no_node_yet() -> str:
    return "No node has joined the lab yet. An admin can add one under Nodes."


@sentence
def larger_than_lab(needed: int, total: int) -> str:
    return f"It needs {gpus(needed)} at once, but the lab has {total}. Submit it with fewer, or ask an admin."


@sentence
def no_such_gpus(needed: int, total: int, memory_mib: int, kinds: Sequence[str], same_kind: bool) -> str:
    only = f"only {total}" if total else "none"
    return (
        f"It needs {needed} {requested_gpus(memory_mib, kinds, same_kind, needed)}; the lab has {only} that work. "
        "Submit it again for other GPUs, or ask an admin whether these come back."
    )


@sentence
def no_node_accepts(closed: list[dict[str, Any]]) -> str:
    nodes = "; ".join(f"{each['node']} {_why_closed(each['why'], each['problem'])}" for each in closed)
    return f"No node accepts new jobs now: {nodes.rstrip('.')}."


INSTALL_DOCKER = "Install Docker Engine there, remove the node, and let the machine join again (docs/admin/process-runtime.md). Or set SCHEDULEARN_UNSAFE_PROCESSES=yes for the portal if everyone may see everything."
UNCONFINED = f"runs jobs as plain processes, which does not isolate users from each other: it is for one person only. {INSTALL_DOCKER}"
"""The rest of a sentence that begins with a node."""
CLOSED = {
    "not_in_the_lab": "is not part of the lab",
    "draining": "is being drained",
    "cordoned": "is cordoned by an admin",
    "silent": "has not reported for a while",
    "starting": "is still starting",
    "unconfined": UNCONFINED.rstrip("."),
    "unfit": "is unfit",
}


def _why_closed(why: str, problem: dict[str, Any] | None) -> str:
    from portal.sentences.problems import problem_of  # noqa: PLC0415  # it imports this package

    return f"{CLOSED[why]}: {problem_of(problem).text}" if problem else CLOSED[why]


@sentence
def environment_preparing(title: str, node: str, percent: int, detail: Any) -> str:
    doing = f" ({nested_sentence(detail)})" if detail else ""
    return f"Its environment {title} is being prepared on node {node}: {percent} %{doing}."


@sentence
def agents_too_old(title: str, nodes: Sequence[str]) -> str:
    agents = "The agent" if len(nodes) == 1 else "The agents"
    return (
        f"{agents} of {', '.join(nodes)} {is_or_are(len(nodes))} too old for its environment {title}. Ask an admin to "
        "update the agents."
    )


@sentence
def waits_for_job(after: int | None, state: str) -> str:
    parent = f"job {after}" if after else "another job"
    now = {"QUEUED": ", which still waits", "RUNNING": ", which runs now", "HELD": ", which is on hold"}.get(state, "")
    return f"It waits until {parent} has succeeded{now}."


@sentence
def waits_for_outputs(after: int | None, node: str) -> str:
    parent = f"Job {after}" if after else "Another job"
    sender = f"node {node}" if node else "a node"
    return f"{parent} has succeeded, and it waits for the outputs of that job, which {sender} still has to send."


@sentence
def agents_without_inputs(nodes: Sequence[str]) -> str:
    agents = "The agent" if len(nodes) == 1 else "The agents"
    return (
        f"It uses the outputs of another job, for which {agents.lower()} of {', '.join(nodes)} {is_or_are(len(nodes))} too old. "
        "Ask an admin to update the agents."
    )


@sentence
def agents_without_secrets(nodes: Sequence[str]) -> str:
    agents = "the agent" if len(nodes) == 1 else "the agents"
    return (
        f"It gets secrets, for which {agents} of {', '.join(nodes)} {is_or_are(len(nodes))} too old. "
        "Ask an admin to update the agents."
    )


@sentence
def agents_without_datasets(nodes: Sequence[str]) -> str:
    agents = "the agent" if len(nodes) == 1 else "the agents"
    return (
        f"It reads datasets, for which {agents} of {', '.join(nodes)} {is_or_are(len(nodes))} too old. "
        "Ask an admin to update the agents."
    )


@sentence
def agents_without_hosts(nodes: Sequence[str]) -> str:
    agents = "The agent" if len(nodes) == 1 else "The agents"
    return (
        f"Hosts of the network are allowed to it, for which {agents.lower()} of {', '.join(nodes)} {is_or_are(len(nodes))} too "
        "old. Ask an admin to update the agents."
    )


@sentence
def images_need_docker(title: str, nodes: Sequence[str]) -> str:
    docker = "runs jobs without Docker" if len(nodes) == 1 else "run jobs without Docker"
    return (
        f"Its environment {title} is an image, and {', '.join(nodes)} {docker} or with an agent that is too old. Choose an "
        "environment of packages, or ask an admin for a node with a Docker Engine."
    )


@sentence
def environment_planned(title: str, node: str = "") -> str:
    if node:
        return f"Its environment {title} will be prepared on node {node}, which prepares other environments first."
    return f"Its environment {title} will be prepared on a node first."


@sentence
def environment_failed(title: str, node: str, detail: Any) -> str:
    return f"Its environment {title} could not be prepared on node {node}{f': {nested_sentence(detail)}' if detail else '.'}"


# --- too few GPUs ------------------------------------------------------------------------------------------------


@sentence
def none_free(ahead: int, total: int, everywhere: bool, kept: bool) -> str:
    whole = "the only GPU" if total == 1 else f"all {total} GPUs"
    where = "" if everywhere else " of the nodes it can run on"
    taken = "in use or kept for jobs ahead of it" if kept else "in use"
    return _after_jobs_ahead(ahead, f"{whole}{where} {is_or_are(total)} {taken}")


@sentence
def too_few_free(ahead: int, needed: int, free: int, kept: bool) -> str:
    for_it = " for it" if kept else ""
    return _after_jobs_ahead(ahead, f"it needs {gpus(needed)} at once and only {free} {is_or_are(free)} free{for_it}")


@sentence
def not_under_this_policy(ahead: int, free: int, kept: bool) -> str:
    for_it = " for it" if kept else ""
    return _after_jobs_ahead(
        ahead, f"under this policy it does not start yet, though {gpus(free)} {is_or_are(free)} free{for_it}"
    )


@sentence
def too_scattered(ahead: int, needed: int, largest: int, node: str) -> str:
    return _after_jobs_ahead(
        ahead, f"it needs {gpus(needed)} at once; the largest group of free ones is {largest}, on node {node}"
    )


@sentence
def short_of_resource(ahead: int, resource: str, gpus: int, needed: int, node: str, free: int, left: int) -> str:
    asks = f"it needs {words.gpus(gpus)} with {amount(resource, needed)}{'' if gpus == 1 else ' each'}"
    return _after_jobs_ahead(
        ahead,
        f"{asks}; node {node} has {words.gpus(free)} free, but only {amount(resource, left)} left",
    )


def _after_jobs_ahead(ahead: int, short: str) -> str:
    return capitalised(f"{jobs_are(ahead)} ahead of it and {short}" if ahead else short)


@sentence
def promised(count: int) -> str:
    return f"{gpus(count)} {is_or_are(count)} being given back by other jobs; then it starts."


# --- behind others -----------------------------------------------------------------------------------------------


@sentence
def in_line(ahead: int, first_needs: int) -> str:
    return f"{jobs_are(ahead)} ahead of it and jobs start strictly in order; the first waits for {gpus(first_needs)}."


@sentence
def would_hold_up(ahead: int, first_needs: int, minutes: int | None) -> str:
    when = "" if minutes is None else f", expected in about {minutes} min"
    return (
        f"{jobs_are(ahead)} ahead of it, and starting now it could hold up the first, which waits for "
        f"{gpus(first_needs)}{when}."
    )


@sentence
def behind_tier(tier: str) -> str:
    return f"Jobs of the {tier} tier are ahead of it, and jobs start strictly in order."


@sentence
def overdue(patience: int) -> str:
    return f"It has waited for more than {duration(patience)}, so it is next: GPUs are kept for it as they come free."


@sentence
def saving(waited: int, needed: int, saved: int) -> str:
    return (
        f"It has waited for {duration(waited)} and needs {gpus(needed)} at once, so GPUs are saved for it as they come free: "
        f"{saved} of {needed} so far."
    )


@sentence
def behind_saved(count: int) -> str:
    return (
        f"{gpus(count)} {is_or_are(count)} being saved for a job that has waited too long, and too few others are free."
    )


@sentence
def beside_reserved(reason: Any, count: int, node: str, name: str, minutes: int, begun: bool) -> str:
    time = in_minutes(minutes)
    until = f"for another {time}" if begun else f"in {time}, before it would surely end"
    return f"{nested_sentence(reason)} {gpus(count)} of node {node} {is_or_are(count)} reserved for {name} {until}."


@sentence
def of_requested_gpus(reason: Any, memory_mib: int, kinds: Sequence[str], same_kind: bool, accepted: int) -> str:
    there = "the open nodes have none" if not accepted else f"the open nodes have {accepted} of these"
    return f"{nested_sentence(reason)} It accepts only {requested_gpus(memory_mib, kinds, same_kind)}; {there}."


@sentence
def no_whole_machine(needed: int, free: int) -> str:
    return f"It needs {gpus(needed)} of one machine, of any model; the most that are free on one are {free}."


# --- of one policy -----------------------------------------------------------------------------------------------


@sentence
def outserved(reason: Any, gpu_hours: float) -> str:
    return f"{clause(nested_sentence(reason))}; it has had {gpu_hours:.1f} GPU-hours, and jobs that had fewer go first."


@sentence
def in_turns(reason: Any, minutes: int) -> str:
    return f"{clause(nested_sentence(reason))}; jobs that can be stopped make room after about {minutes} min."


@sentence
def shorter_first(reason: Any, seconds: int) -> str:
    left = f"it has about {duration(seconds)} of work left on one GPU"
    return f"{clause(nested_sentence(reason))}; {left}, and shorter jobs go first."


@sentence
def less_served_first(reason: Any, seconds: int) -> str:
    had = f"how long it takes is not known, it had {duration(seconds)} of one GPU so far"
    return f"{clause(nested_sentence(reason))}; {had}, and those who had less go first."


@sentence
def worse_off_first(reason: Any, share: float, times: float) -> str:
    return (
        f"{clause(nested_sentence(reason))}; even with its share of {share:.1f} GPUs from now on it takes {times:.1f} times as long "
        "as if it had had that from the start, and who is worse off goes first."
    )


@sentence
def behind_share(reason: Any, account: Any, group: Any) -> str:
    both = f"{nested_sentence(account)}, and {nested_sentence(group)}" if group else nested_sentence(account)
    return f"{clause(nested_sentence(reason))}; {both}."


@sentence
def account_has(name: str, now: int, recent: float, share: float) -> str:
    return f"{name} has {gpus(now)} now and had {recent:.1f} on average recently, with a fair share of {share:.1f}"


@sentence
def booked_later(count: int, seconds: int) -> str:
    return f"It has booked {gpus(count)} from the slot that begins in about {duration(seconds)}."


@sentence
def booked_now(count: int) -> str:
    return f"It has booked {gpus(count)} for now, but others have not given them back yet."


@sentence
def not_bid_yet(ahead: int) -> str:
    return f"It has not bid yet: {jobs_are(ahead)} ahead of it."


@sentence
def nothing_to_book(seconds: int) -> str:
    return f"In the next {duration(seconds)} no GPUs it could use are left to book; it bids again in the next slot."


@sentence
def not_worth_its_price(worth: float, cost: float, payoff: float, slot: int) -> str:
    return (
        f"Not yet worth its price: its result is worth {worth:.3g} and the cheapest GPUs for it cost {cost:.3g}, "
        f"a payoff of {payoff:.3g}; it bids again in each slot of {duration(slot)}."
    )


# --- of the cycle ------------------------------------------------------------------------------------------------


@sentence
def cannot_decide() -> str:
    return "The scheduler cannot decide at the moment. Admins see why on the policy page."


@sentence
def in_cpu_slots(reason: Any) -> str:
    return words.in_cpu_slots(nested_sentence(reason))


@sentence
def not_started(why: Any) -> str:
    return f"It was about to start, but then: {nested_sentence(why)} The scheduler tries again."


DROPPED = {
    "another_scheduler": "Another scheduler was quicker.",
    "driver_moving": "The job's driver is being moved.",
    "environment_gone": "Node {node} no longer has the job's environment.",
    "gpus_changed": "The job's GPUs have changed in the meantime.",
    "hosts_unknown": "The agent of node {node} is too old for the hosts that were allowed to the job.",
    "datasets_unknown": "The agent of node {node} is too old for the datasets that the job reads.",
    "secrets_unknown": "The agent of node {node} is too old for the secrets that the job gets.",
    "inputs_unknown": "The agent of node {node} is too old for the outputs of another job, which the job uses.",
    "job_gone": "The job is gone.",
    "no_longer_runs": "The job no longer runs.",
    "no_longer_waits": "The job no longer waits.",
    "no_network": "Its nodes do not reach each other, or no network between them is free.",
    "node_closed": "Node {node} no longer accepts new jobs.",
    "nothing_to_release": "The job has nothing left to release there.",
    "out_of_reach": "Containers on node {node} cannot reach the job's others.",
    "too_few_left": "Node {node} no longer has {count} free.",
    "too_little_left": "Node {node} no longer has the processors and the memory that it needs with {count}.",
}


@sentence
def step_dropped(why: str, node: str, count: int) -> str:
    return DROPPED[why].format(node=node, count=count)
