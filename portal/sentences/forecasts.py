"""Why there is no forecast for a waiting job. The classes of these messages are in ``portal/forecast/messages.py``."""

from portal.sentences.registry import sentence


@sentence
def not_by_itself() -> str:
    return "There is no forecast: how long the job waits for this cannot be known beforehand."


@sentence
def after_another_job(job: int) -> str:
    return f"It depends on job {job}: a forecast is made once that job has succeeded."


@sentence
def too_far_back(jobs: int) -> str:
    return f"It is too far back in the queue for a forecast: these are made for the first {jobs} jobs."
