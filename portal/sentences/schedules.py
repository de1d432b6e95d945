"""Why a schedule is paused, and the line in the history of its jobs."""

from portal.sentences.registry import sentence


@sentence
def schedule_owner_inactive(owner: str) -> str:
    return f"The account of its owner {owner} is deactivated. Someone else can make a schedule from one of its jobs."


@sentence
def schedule_owner_without_access(owner: str) -> str:
    return (
        f"Its owner {owner} may no longer submit jobs to the project, or the project is archived. Resume it when that has "
        "changed, or delete it."
    )


@sentence
def schedule_zone_unknown(zone: str) -> str:
    return f"The portal knows no time zone “{zone}”, or no longer. Edit the schedule to choose another one, then resume it."


@sentence
def schedule_refused_again(times: int, why: str) -> str:
    return f"Its job was refused {times} times in a row, the last time with: {why} Change it, then resume it."


@sentence
def job_from_schedule(schedule: int, name: str) -> str:
    return f"Submitted by the schedule “{name}”."
