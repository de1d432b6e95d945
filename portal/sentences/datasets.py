"""Why a version of a dataset was refused."""

from portal.sentences.registry import sentence


@sentence
def dataset_same_content(number: int) -> str:
    return f"These are exactly the files of version {number}, so there is no new version. Use that one."


@sentence
def dataset_bad_files(path: str, problem: str) -> str:
    return f"{path}: {problem}" if path else problem


@sentence
def dataset_wrong_checksum(path: str) -> str:
    return f"“{path}” does not have the SHA-256 that its sender announced. Send it again in a new version."


@sentence
def dataset_lost_upload(path: str) -> str:
    return f"What was sent of “{path}” is no longer on the disk of the portal. Send it again in a new version."


@sentence
def dataset_unpacking_stopped(path: str) -> str:
    return (
        f"“{path}” could not be unpacked within the limits of time and memory. Pack it as several archives, or send its files as "
        "a folder."
    )


@sentence
def dataset_check_interrupted(times: int) -> str:
    return f"The check was interrupted {times} times by a restart of the portal. Send the files again in a new version."


@sentence
def dataset_check_broke(error: str) -> str:
    return f"The check failed with an error of the portal ({error}). Ask an admin to look at the log of the worker."
