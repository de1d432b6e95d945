"""The reasons why a job waits, as its page shows them, with what helps."""

from typing import Any

from portal.sentences import SENTENCES, reasons

INTRODUCTION = """# Waiting reasons

While a job waits, its page, the list of jobs and `waiting_reason` of the API have one sentence with the reason. It is the reason of the
newest scheduling cycle, and true for that moment. This page has every such sentence, with examples of its numbers and names.

How to read it:

- The quotation is the sentence, here with made-up numbers. On nodes without GPUs it counts CPU slots instead of GPUs.
- Below it is what happens by itself, or what helps.
- Many sentences may begin with *2 jobs are ahead of it and ...*: those are the jobs that the policy considers before yours.
- [Waiting](../user/waiting.md) explains the card on the page, with its forecast and *What would help*; admins find steps under
  [find out why a job does not start](../how-to/admin-job-waits.md).
"""
SHORTAGE = {"code": "too_few_free", "ahead": 0, "needed": 4, "free": 2, "kept": False}
ACCOUNT = {"code": "account_has", "name": "ada", "now": 3, "recent": 2.5, "share": 1.8}

Row = tuple[str, dict[str, Any], str]
GROUPS: tuple[tuple[str, str, tuple[Row, ...]], ...] = (
    (
        "It cannot start as it is",
        "No policy can start it now.",
        (
            ("no_node_yet", {}, "An admin [adds a node](../admin/nodes.md)."),
            ("no_open_node", {}, "An admin resumes, approves or repairs a node."),
            (
                "no_open_node_for_it",
                {},
                "The nodes on which its environment is ready are closed. An admin resumes one, or prepares the environment on another.",
            ),
            (
                "no_node_accepts",
                {
                    "closed": [
                        {"node": "gpu-1", "why": "cordoned", "problem": None},
                        {"node": "gpu-2", "why": "silent", "problem": None},
                    ]
                },
                "An admin looks at the nodes that it names ([nodes](../admin/nodes.md)).",
            ),
            (
                "too_large",
                {"needed": 8, "largest": 4, "spread": False},
                "Plain commands run on one node. Submit it with fewer GPUs, or use torchrun or Horovod.",
            ),
            ("larger_than_lab", {"needed": 16, "total": 8}, "It never starts: submit it with fewer GPUs."),
            (
                "no_such_gpus",
                {"needed": 4, "total": 2, "memory_mib": 0, "kinds": ["NVIDIA A100"], "same_kind": False},
                "Some of these GPUs are out of use or have left the lab. [Which GPUs](../user/which-gpus.md) a job accepts is its choice.",
            ),
            (
                "too_much_per_gpu",
                {"resource": "memory", "needed": 2097152, "largest": 63488},
                "It never starts: submit it with less [memory or fewer processors per GPU](../user/resources.md).",
            ),
            (
                "above_limit",
                {"needed": 4, "limit": 2, "name": "ada"},
                "It never starts under this [limit](../user/limits.md): submit it with fewer, or ask an admin.",
            ),
            (
                "limit_reached",
                {"needed": 2, "limit": 4, "name": "ada", "held": 4, "promised": False},
                "It starts when other jobs under the same [limit](../user/limits.md) end.",
            ),
            (
                "retry_pause",
                {"failures": 2, "seconds": 20},
                "It is tried again by itself ([tried again](../user/when-it-fails.md#tried-again)).",
            ),
            (
                "environment_planned",
                {"title": "PyTorch"},
                "A node installs the packages first, which takes minutes. A node that prepares other environments before it is named.",
            ),
            (
                "environment_preparing",
                {"title": "PyTorch", "node": "gpu-1", "percent": 60, "detail": None},
                "It starts when that is done.",
            ),
            (
                "agents_too_old",
                {"title": "Vision tools", "nodes": ["gpu-1", "gpu-2"]},
                "An admin [updates the agents](../how-to/admin-update-agents.md).",
            ),
            (
                "agents_without_hosts",
                {"nodes": ["gpu-1", "gpu-2"]},
                "An admin [updates the agents](../how-to/admin-update-agents.md), or [removes the hosts](../admin/network.md).",
            ),
            (
                "agents_without_inputs",
                {"nodes": ["gpu-1", "gpu-2"]},
                "An admin [updates the agents](../how-to/admin-update-agents.md), or submit it without the outputs of another job.",
            ),
            (
                "agents_without_secrets",
                {"nodes": ["gpu-1", "gpu-2"]},
                "An admin [updates the agents](../how-to/admin-update-agents.md), or submit it without secrets.",
            ),
            (
                "agents_without_datasets",
                {"nodes": ["gpu-1", "gpu-2"]},
                "An admin [updates the agents](../how-to/admin-update-agents.md), or submit it without datasets.",
            ),
            (
                "images_need_docker",
                {"title": "train:1.2", "nodes": ["gpu-1"]},
                "Choose an environment of packages, or ask an admin for a node with Docker ([images](../user/own-images.md)).",
            ),
            (
                "environment_failed",
                {"title": "PyTorch", "node": "gpu-1", "detail": None},
                "The node tries again by itself, after up to 30 minutes; an admin sees why under **Admin > Nodes**.",
            ),
        ),
    ),
    (
        "Too few GPUs are free",
        "It starts when others end, or release GPUs.",
        (
            (
                "none_free",
                {"ahead": 0, "total": 8, "everywhere": True, "kept": False},
                "Wait, or see *What would help*.",
            ),
            ("too_few_free", {"ahead": 2, "needed": 4, "free": 2, "kept": False}, "Ask for fewer *at least*, or wait."),
            (
                "too_scattered",
                {"ahead": 0, "needed": 4, "largest": 2, "node": "gpu-1"},
                "Plain commands need all GPUs on one node. Ask for fewer, or use torchrun or Horovod.",
            ),
            (
                "not_under_this_policy",
                {"ahead": 1, "free": 2, "kept": False},
                "The policy keeps it back although it would fit, for example until it can have all it asked for.",
            ),
            (
                "short_of_resource",
                {
                    "ahead": 0,
                    "resource": "memory",
                    "gpus": 1,
                    "needed": 49152,
                    "node": "gpu-1",
                    "free": 2,
                    "left": 10240,
                },
                "Other jobs have [more than the shares of their GPUs](../user/resources.md). Ask for less, or wait.",
            ),
            (
                "of_requested_gpus",
                {"reason": SHORTAGE, "memory_mib": 24_576, "kinds": [], "same_kind": True, "accepted": 6},
                "Wait, or accept [other GPUs](../user/which-gpus.md): *What would help* tries that.",
            ),
            (
                "no_whole_machine",
                {"needed": 4, "free": 3},
                "It needs GPUs of several models of one machine. Ask for fewer, or use torchrun or Horovod on several machines.",
            ),
            ("promised", {"count": 2}, "Nothing: it takes seconds."),
        ),
    ),
    (
        "Others go first",
        "Rules of the lab, and policies that start jobs in order.",
        (
            ("in_line", {"ahead": 3, "first_needs": 8}, "Wait: the policy is strictly in order."),
            (
                "would_hold_up",
                {"ahead": 1, "first_needs": 8, "minutes": 40},
                "A shorter time limit lets it start, if it would end in time.",
            ),
            (
                "behind_tier",
                {"tier": "premium"},
                "Wait: a higher [tier](../policies/rules-around.md#tiers) goes first.",
            ),
            (
                "overdue",
                {"patience": 86_400},
                "Nothing: it is next ([patience](../policies/rules-around.md#patience)).",
            ),
            (
                "saving",
                {"waited": 5_400, "needed": 8, "saved": 5},
                "Nothing: GPUs are kept for it ([large jobs](../policies/fair-share.md#large-jobs)).",
            ),
            (
                "behind_saved",
                {"count": 5},
                "A shorter time limit lets it start on saved GPUs, if it would end in time; so does *Resumes from checkpoints*.",
            ),
            (
                "beside_reserved",
                {"reason": SHORTAGE, "count": 2, "node": "gpu-1", "name": "vision", "minutes": 180, "begun": True},
                "Wait for the end of the [reservation](../user/waiting.md#reservations).",
            ),
        ),
    ),
    (
        "Of one policy",
        "These begin with what is missing, and add why others get it. [How each policy works](../policies/how-each-works.md).",
        (
            (
                "behind_share",
                {"reason": SHORTAGE, "account": ACCOUNT, "group": None},
                "`fair_share`: old use counts less every day.",
            ),
            ("outserved", {"reason": SHORTAGE, "gpu_hours": 17.5}, "`tiresias`: jobs that had less go first."),
            ("in_turns", {"reason": SHORTAGE, "minutes": 10}, "`round_robin` with time slices."),
            ("shorter_first", {"reason": SHORTAGE, "seconds": 7_200}, "`afs`: shorter jobs go first."),
            ("less_served_first", {"reason": SHORTAGE, "seconds": 7_200}, "`afs`, where its length is not known."),
            (
                "worse_off_first",
                {"reason": SHORTAGE, "share": 1.6, "times": 1.2},
                "`themis`: those that are worse off go first.",
            ),
            (
                "booked_later",
                {"count": 2, "seconds": 4_200},
                "`pdors`: it starts then, unless others bid more ([what is guaranteed](../policies/pdors.md#what-is-guaranteed)).",
            ),
            ("booked_now", {"count": 2}, "`pdors`: nothing."),
            ("not_bid_yet", {"ahead": 50}, "`pdors`: it bids in one of the next cycles."),
            ("nothing_to_book", {"seconds": 86_400}, "`pdors`: wait, or ask for fewer GPUs."),
            (
                "not_worth_its_price",
                {"worth": 0.4, "cost": 1.2, "payoff": -0.8, "slot": 600},
                "`pdors`: it waits until GPUs are cheaper. Priority and weight raise what it is worth.",
            ),
        ),
    ),
    (
        "It starts after another job",
        "It has no place in the queue yet: [jobs that start after another](../user/after-another.md).",
        (
            (
                "waits_for_job",
                {"after": 12, "state": "RUNNING"},
                "It is queued when that job has succeeded, and cancelled if that job fails or is cancelled.",
            ),
            (
                "waits_for_outputs",
                {"after": 12, "node": "gpu-1"},
                "It is queued when the node has sent the rest. If the node does not come back, cancel it, or ask an admin to "
                "remove the node.",
            ),
        ),
    ),
    (
        "Of the scheduler",
        "",
        (
            (
                "cannot_decide",
                {},
                "An admin reads the error on **Admin > Scheduling policy** ([when the scheduler cannot decide](../admin/policies.md#when-the-scheduler-cannot-decide)).",
            ),
            (
                "not_started",
                {"why": {"code": "step_dropped", "why": "node_closed", "node": "gpu-1", "count": 0}},
                "Nothing.",
            ),
            ("unexplained", {}, "A policy of the lab's own gave no reason."),
        ),
    ),
)
PARTS = {"text", "in_cpu_slots", "account_has", "step_dropped"}
"""Codes that are no reason by themselves: a plain text, the same with CPU slots, and parts of others."""


def page() -> str:
    """Return the page: a table for each group of reasons."""
    lines = [INTRODUCTION]
    for title, about, rows in GROUPS:
        lines += [f"## {title}", "", *([about, ""] if about else [])]
        lines += [f"(reason-{code})=\n> {SENTENCES[code](**parameters)}\n\n{then}\n" for code, parameters, then in rows]
    dropped = [f"- {text.format(node='gpu-1', count=2)}" for text in reasons.DROPPED.values()]
    lines += ["After *It was about to start, but then:* comes one of these:", "", *dropped]
    return "\n".join(lines)
