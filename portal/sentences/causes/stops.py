"""Attempts that were stopped, or lost with their node."""

from portal.sentences.causes.explanation import Explanation, cause
from portal.ui import duration

NOT_TRIED_AGAIN = "It has happened too often in a row to be tried again. Report it to an admin, and submit the job again when it is fixed."


def _not_the_codes_fault(final: bool) -> str:
    then = NOT_TRIED_AGAIN if final else "It is tried again; report it to an admin if that fails too."
    return f"This is not your code's fault. {then}"


@cause
def cancelled() -> Explanation:
    return Explanation("Cancelled")


@cause
def held(resumable: bool | None = None) -> Explanation:
    where = {None: "", True: " from its newest checkpoint", False: " from the beginning: it keeps no checkpoints"}
    return Explanation("Put on hold", f"Release the job, and it restarts{where[resumable]}.")


@cause
def preempted(drained: bool, resumable: bool) -> Explanation:
    then = "restarts from its checkpoint" if resumable else "restarts from the beginning"
    return Explanation(
        "Its node is being drained" if drained else "Stopped to make room for others",
        f"Nothing: it {then} automatically.",
    )


@cause
def time_limit(seconds: int, was_silent: bool, raised: str = "") -> Explanation:
    longer = (
        "Submit it again with a longer time limit. The new job begins without checkpoints: to continue from one, download it "
        "under Files, upload it with the code, and let the code load it from there."
    )
    may_have_hung = (
        "It ran without output for a long time (see its history), so it may have hung: look at the end of its log first. If it "
        "was still computing, submit it again with a longer time limit."
    )
    failed_before = (
        f"After {raised} nothing more was written: the process that it ended may be the one for which the others waited. "
        "Fix that first."
    )
    return Explanation(
        f"It reached its time limit of {duration(seconds)}",
        failed_before if raised else may_have_hung if was_silent else longer,
    )


@cause
def node_lost(node: str, fenced: bool, final: bool) -> Explanation:
    where = f" {node}" if node else ""
    return Explanation(
        f"The node{where} was {'cut off' if fenced else 'lost'}",
        NOT_TRIED_AGAIN if final else "Nothing: it restarts on another node.",
    )


@cause
def environment(final: bool) -> Explanation:
    return Explanation("Its environment was not ready on the node", _not_the_codes_fault(final))


@cause
def node_trouble(node: str, final: bool) -> Explanation:
    return Explanation(f"The node{f' {node}' if node else ''} could not start it", _not_the_codes_fault(final))


@cause
def stuck(final: bool) -> Explanation:
    return Explanation("The node did not get it started in time", _not_the_codes_fault(final))


@cause
def launch(final: bool) -> Explanation:
    return Explanation("The ranks could not be brought together", _not_the_codes_fault(final))
