"""What an admin should look at: nodes that no longer report, and GPUs that are out of use, with the reason."""

from datetime import datetime
from typing import Any

from django.utils import timezone

from portal.sentences.registry import nested_sentence, sentence


@sentence
def node_silent(node: str, since: str) -> str:
    local = timezone.localtime(datetime.fromisoformat(since))
    return f"Node {node} has not reported since {local:%d %b, %H:%M %Z}."


@sentence
def gpu_out_of_use(gpu: str, node: str, reason: Any) -> str:
    # The reason may quote an agent: line breaks must not get into a mail header.
    why = " ".join(nested_sentence(reason).split()).rstrip(".")
    return f"{gpu} of {node} is out of use: {why}."


@sentence
def gpu_reported_twice(node: str) -> str:
    return f"{node} reports this GPU, too, and keeps it. Delete the node that is not needed."


# --- why a GPU is in quarantine ------------------------------------------------------------------------------------


@sentence
def gpu_fault(fault: Any) -> str:
    return f"{nested_sentence(fault)}."


@sentence
def gpu_taken_out(user: str) -> str:
    return f"Taken out of use by {user}."


@sentence
def gpu_fails_jobs(jobs: int, seconds: int) -> str:
    return f"{jobs} different jobs in a row failed within {seconds} s of their start on it."
