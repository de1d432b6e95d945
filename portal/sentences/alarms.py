"""What an admin should look at: nodes that no longer report, and GPUs that are out of use, with the reason."""

from datetime import datetime
from typing import Any

from django.utils import timezone

from portal.sentences.registry import nested_sentence, sentence
from runners.messages import message_from


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
def node_disk_filling(node: str, problem: dict[str, Any]) -> str:
    what = "accepts no jobs" if problem.get("blocking") else "is running out of disk space"
    message = message_from({name: value for name, value in problem.items() if name != "blocking"})
    return " ".join(f"Node {node} {what}: {message.text}".split())


@sentence
def portal_disk_filling(folder: str, free_mib: int, total_mib: int, full: bool) -> str:
    free = f"{free_mib / 1024:.1f} of {total_mib / 1024:,.0f} GiB are free ({folder})"
    if full:
        return f"The disk of the portal is full: {free}. Uploads to it are refused."
    return f"The disk of the portal fills up: {free}."


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
