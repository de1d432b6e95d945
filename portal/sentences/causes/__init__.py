"""Why an attempt did not succeed, in words for the user who submitted it, with one next step.

``portal/jobs/causes`` finds the code and its parameters, which are stored; there is a function here for each code.
"""

from collections.abc import Mapping
from typing import Any

from portal.sentences.causes import code, machine, stops, training
from portal.sentences.causes.explanation import CAUSES, Explanation
from portal.sentences.registry import nested_sentence

__all__ = ["CAUSES", "Explanation", "code", "explain_cause", "machine", "stops", "training"]

ONE_RANK = (
    "Only this rank failed: look for what differs there, such as its share of the data. An end that is wanted must be decided on "
    "all ranks together."
)
EARLY_END = "A rank ended without an error while others still worked: all ranks must run the same number of steps."


def explain_cause(content: Mapping[str, Any]) -> dict[str, str]:
    """Return a cause as it is stored as code, title, detail and advice; empty for none.

    A row of an earlier release has its title and advice. A code of another release gives a title without advice.
    """
    if not content or "title" in content:
        return dict(content)
    key, parameters, detail = content["code"], content["parameters"], nested_sentence(content.get("detail"))
    try:
        found = CAUSES[key](**parameters)
    except (KeyError, TypeError):  # another code, or other parameters than ours
        found = Explanation(key.replace("_", " ").capitalize())
    if content.get("ended_early"):
        detail = f"{detail}\n{EARLY_END}".strip()
    rank = content.get("rank")
    if rank is None:
        return {"code": key, "title": found.title, "detail": detail, "advice": found.advice}
    advice = f"{found.advice} {ONE_RANK}" if key == "exception" else found.advice
    return {"code": key, "title": f"{found.title} (rank {rank})", "detail": detail, "advice": advice}
