"""The reasons of a plan as its readers see them."""

from portal.sentences import sentence_of
from scheduling.messages import Message
from scheduling.types import JobId, Plan


def reasons_of(plan: Plan) -> dict[JobId, str]:
    """Return the sentences, by job."""
    return {job: sentence_or_empty(reason) for job, reason in plan.reasons.items()}


def sentence_or_empty(message: Message | None) -> str:
    """Return the sentence of a message; empty for none."""
    return sentence_of(message.data() if message else None)
