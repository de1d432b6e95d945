"""Why a scheduling cycle made no plan, or a simulation gave no result, for admins and for authors of policies.

The classes of these messages are in ``scheduling/failures.py``, ``portal/scheduler/failures.py`` and
``portal/whatif/messages.py``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from portal.sentences.registry import nested_sentence, sentence
from portal.sentences.words import amount


@sentence
def cycle_failed(error: str) -> str:
    return f"The scheduling cycle failed: {error}"


@sentence
def policy_failed(error: str) -> str:
    return f"The policy failed: {error}"


@sentence
def policy_too_slow(seconds: float) -> str:
    return f"The policy did not decide within {seconds:g} seconds."


@sentence
def policy_still_busy() -> str:
    return "The policy is still busy with an earlier scheduling cycle. Switch to another, then restart the scheduler."


@sentence
def unknown_policy(policy: str, policies: Sequence[str]) -> str:
    return f"There is no policy {policy!r}. The policies are: {', '.join(policies)}."


@sentence
def parameters_refused(error: str) -> str:
    return error


@sentence
def plan_refused(violations: Sequence[Mapping[str, Any]]) -> str:
    return f"The plan was refused: {' '.join(nested_sentence(each) for each in violations)}"


# --- simulations -------------------------------------------------------------------------------------------------


@sentence
def simulation_took_too_long(minutes: int) -> str:
    return f"It took longer than {minutes} minutes. Choose fewer days or fewer policies."


@sentence
def simulation_broke(error: str) -> str:
    return f"The simulation failed: {error}. The portal's log has the details."


@sentence
def simulation_interrupted() -> str:
    return "It was interrupted, probably by a restart of the portal. Start it again."


@sentence
def failed_on_history(error: str) -> str:
    return f"It failed on this history: {error}"


# --- the rules that a plan may break -----------------------------------------------------------------------------


@sentence
def job_not_in_snapshot(job: str) -> str:
    return f"Job {job} is not in the snapshot."


@sentence
def reason_missing(job: str) -> str:
    return f"The reason for job {job} is missing."


@sentence
def gpus_not_whole(job: str) -> str:
    return f"Job {job} is given a fraction of a GPU, or a negative number."


@sentence
def gpus_out_of_range(job: str, given: float, min_gpus: int, max_gpus: int) -> str:
    return f"Job {job} is given {given} GPUs, but runs on {min_gpus} to {max_gpus}."


@sentence
def gpus_of_unknown_nodes(job: str, nodes: Sequence[str]) -> str:
    return f"Job {job} is given GPUs of unknown nodes: {', '.join(nodes)}."


@sentence
def gpus_while_stopping(job: str) -> str:
    return f"Job {job} is being stopped, but is given GPUs."


@sentence
def gpus_while_blocked(job: str) -> str:
    return f"Job {job} cannot start now, but is given GPUs."


@sentence
def gpus_of_several_nodes(job: str) -> str:
    return f"Job {job} must be on one machine, but is given GPUs of several."


@sentence
def gpus_of_several_kinds(job: str) -> str:
    return f"All GPUs of job {job} must be of one model, but it is given several models."


@sentence
def stop_of_unstoppable(job: str) -> str:
    return f"Job {job} runs and cannot be stopped, but is given nothing."


@sentence
def resize_of_inelastic(job: str) -> str:
    return f"Job {job} is not elastic, but its GPUs are changed."


@sentence
def loss_of_base(job: str) -> str:
    return f"Job {job} runs, but loses its base."


@sentence
def gpus_of_excluded_node(job: str, node: str) -> str:
    return f"Job {job} cannot run on node {node}, but is given GPUs of it."


@sentence
def gpus_of_closed_node(node: str, given: float) -> str:
    return f"Node {node} is not open for new work, but {given} of its GPUs are given."


@sentence
def more_gpus_than_free(node: str, free: int, given: float) -> str:
    return f"Node {node} has {free} free GPUs, but {given} are given."


@sentence
def more_than_free(node: str, resource: str, free: int, given: float) -> str:
    return f"Node {node} has {amount(resource, free)} free, but {amount(resource, int(given))} are given."


@sentence
def limit_exceeded(limit: int, name: str, held: int, added: float) -> str:
    return f"The limit of {limit} GPUs for {name} is exceeded: {held} are held and {added} more given."
