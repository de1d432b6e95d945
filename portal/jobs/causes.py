"""Why an attempt did not succeed, with one next step."""

from collections.abc import Sequence

from portal.jobs.models import Attempt, Container, Job, Outcome


def explain(job: Job, attempt: Attempt, parts: Sequence[Container]) -> dict[str, str]:
    """{"code", "title", "detail", "advice"} for an ended attempt; empty when it succeeded."""
    if attempt.outcome == Outcome.SUCCEEDED:
        return {}
    detail = next((part.detail for part in parts if part.exit_reason not in ("exited", "stopped") and part.detail), "")
    return {"code": attempt.outcome, "title": Outcome(attempt.outcome).label, "detail": detail, "advice": ""}
