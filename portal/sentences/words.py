"""Counts, amounts and durations in words."""

import re
from collections.abc import Sequence

from scheduling.words import amount as amount
from scheduling.words import duration as duration
from scheduling.words import gibibytes as gibibytes
from scheduling.words import gpus as gpus
from scheduling.words import jobs_are as jobs_are

POLICY_WORDS = {
    "fifo": "FIFO",
    "srjf": "SRJF",
    "afs": "AFS",
    "ffdl": "FfDL",
    "pdors": "PD-ORS",
    "ones": "ONES",
    "tiresias": "Tiresias",
    "themis": "Themis",
}
VERSION = re.compile(r" v\d+$")
GPUS = re.compile(r"\bGPU(s?)\b(?!-)")


def devices(count: int, cpu_slots: bool) -> str:
    """Return a count of GPUs, or of CPU slots."""
    return f"{count} CPU slot{'s' * (count != 1)}" if cpu_slots else gpus(count)


def policy_words(name: str) -> str:
    """Return the recorded name of a policy, ``elastic_fifo v3``, as people write it: ``elastic FIFO``."""
    return " ".join(POLICY_WORDS.get(word, word) for word in VERSION.sub("", name).split("_"))


def is_or_are(count: int) -> str:
    return "is" if count == 1 else "are"


def minutes(count: int) -> str:
    """Return minutes, from two hours on as hours, and from two days on as days."""
    if count < 120:
        return "1 minute" if count == 1 else f"{count} minutes"
    hours = round(count / 60)
    return f"{hours} hours" if hours < 48 else f"{round(hours / 24)} days"


def requested_gpus(memory_mib: int, kinds: Sequence[str], same_kind: bool, number: int = 2) -> str:
    """Return which GPUs a job accepts: ``A100 or V100 GPUs with at least 16 GiB, all of one model``. ``number``: how many."""
    noun = "GPU" if number == 1 else "GPUs"
    named = f"{', '.join(kinds[:-1])} or {kinds[-1]}" if len(kinds) > 1 else "".join(kinds)
    memory = f" with at least {gibibytes(memory_mib)}" if memory_mib else ""
    alike = f"{',' if memory else ''} all of one model" if same_kind and number != 1 else ""
    return f"{named} {noun}{memory}{alike}".strip()


def clause(sentence: str) -> str:
    """Return a sentence without its full stop, to be continued."""
    return sentence.removesuffix(".")


def capitalised(clause: str) -> str:
    """Return a clause as a sentence."""
    return f"{clause[0].upper()}{clause[1:]}."


def in_cpu_slots(sentence: str) -> str:
    """Replace GPUs by CPU slots in a sentence."""
    return GPUS.sub(r"CPU slot\1", sentence)
