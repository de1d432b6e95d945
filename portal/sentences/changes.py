"""Changes that would start a waiting job sooner, and why there is none to propose.

The classes of these messages are in ``portal/forecast/messages.py``. The sentence for a change is a clause, which follows or
precedes others.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from portal.sentences import words
from portal.sentences.registry import nested_sentence, sentence
from portal.sentences.spans import rough_duration, rough_range, wait_range

KINDS = {
    "gpus": "fewer GPUs",
    "memory": "less memory",
    "processors": "fewer processors",
    "elastic": "running elastically",
    "environment": "another environment",
    "kinds": "GPUs of different models",
    "models": "GPUs of other models",
    "gpumemory": "GPUs with less memory",
    "time": "a shorter time limit",
    "resumable": "restarting from a checkpoint",
    "opportunistic": "using idle GPUs only",
}


# --- changes -----------------------------------------------------------------------------------------------------


@sentence
def fewer_gpus(gpus: int, instead_of: int) -> str:
    return f"with {words.gpus(gpus)} instead of {instead_of}"


@sentence
def smaller_minimum(gpus: int, instead_of: int) -> str:
    return f"with a minimum of {words.gpus(gpus)} instead of {instead_of}"


@sentence
def less_per_gpu(resource: str, amount: int, instead_of: int) -> str:
    return f"with {words.amount(resource, amount)} per GPU instead of {words.amount(resource, instead_of)}"


@sentence
def less_gpu_memory(memory_mib: int, instead_of: int) -> str:
    return f"with GPUs from {words.gibibytes(memory_mib)} instead of {words.gibibytes(instead_of)}"


@sentence
def other_models(models: Sequence[str]) -> str:
    return f"also on {' or '.join(models)}"


@sentence
def different_models() -> str:
    return "on GPUs of different models"


@sentence
def elastic_from_one(max_gpus: int) -> str:
    return f"as an elastic job with 1 to {words.gpus(max_gpus)}"


@sentence
def other_environment(title: str, nodes: int, runs_elsewhere: bool) -> str:
    where = f"{nodes} {'other ' if runs_elsewhere else ''}node{'s' * (nodes != 1)}"
    return f"in the environment {title}, which is ready on {where},"


@sentence
def shorter_limit(seconds: int, instead_of: int, length_known: bool) -> str:
    return f"with at most {rough_duration(seconds)} instead of {rough_duration(instead_of)}"


@sentence
def restarting_from_checkpoint() -> str:
    return "as a job that can restart from its checkpoint"


@sentence
def preemptible_on_idle_gpus() -> str:
    return "as a preemptible job on idle GPUs"


def _condition(change: Mapping[str, Any]) -> str:
    """Return a sentence about what only the owner knows or must accept; empty for most changes."""
    if change["code"] == "shorter_limit" and change["length_known"]:
        return ""
    return {
        "shorter_limit": "It is stopped after that time.",
        "less_gpu_memory": "Only if its model and batch fit into that memory.",
        "different_models": "In each step all its GPUs wait for the slowest.",
        "restarting_from_checkpoint": "Only if its code resumes from /checkpoints after a stop.",
        "preemptible_on_idle_gpus": "It is the first to be stopped when others need these GPUs.",
    }.get(change["code"], "")


# --- advice ------------------------------------------------------------------------------------------------------


@sentence
def change_starts_now(change: Mapping[str, Any]) -> str:
    return _advice(change, "starts now")


@sentence
def change_starts_sooner(change: Mapping[str, Any]) -> str:
    return _advice(change, "probably starts sooner")


@sentence
def change_saves_time(change: Mapping[str, Any], low: float, high: float) -> str:
    return _advice(change, f"probably starts {rough_range(low, high)} sooner")


@sentence
def change_starts_within(change: Mapping[str, Any], low: float, high: float) -> str:
    return _advice(change, f"probably starts {wait_range(low, high)}")


def _advice(change: Mapping[str, Any], then: str) -> str:
    clause, condition = nested_sentence(change), _condition(change)
    return f"{clause[0].upper()}{clause[1:]} it {then}.{f' {condition}' if condition else ''}"


@sentence
def nothing_helps(tried: Sequence[str]) -> str:
    if not tried:
        return "There is no change to try."
    *others, last = (KINDS.get(kind, kind) for kind in tried)
    return f"None of these starts it clearly sooner: {', '.join(others)}{' or ' if others else ''}{last}."


@sentence
def about_to_start() -> str:
    return "It is about to start as it is, even if the last forecast was later."


@sentence
def no_longer_waiting() -> str:
    return "This job has left the queue."


@sentence
def scheduler_cannot_decide() -> str:
    return "The scheduler cannot decide at the moment, so nothing can be tried."


@sentence
def advice_busy() -> str:
    return "Another request of this kind is being computed. Try again in a few seconds."
