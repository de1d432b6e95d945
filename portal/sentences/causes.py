"""Why an attempt did not succeed, in words for the user who submitted it, with one next step.

``portal/jobs/causes.py`` finds the code and its parameters, which are stored; there is a function here for each code.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from portal.sentences.registry import nested_sentence
from portal.ui import duration


class Explanation(NamedTuple):
    title: str
    advice: str = ""


CAUSES: dict[str, Callable[..., Explanation]] = {}


def cause(function: Callable[..., Explanation]) -> Callable[..., Explanation]:
    """Register the function that explains the causes with its name as their code."""
    CAUSES[function.__name__] = function
    return function


def explain_cause(content: Mapping[str, Any]) -> dict[str, str]:
    """Return a cause as it is stored as code, title, detail and advice; empty for none.

    A row of an earlier release has its title and advice. A code of another release gives a title without advice.
    """
    if not content or "title" in content:
        return dict(content)
    code, parameters, detail = content["code"], content["parameters"], nested_sentence(content.get("detail"))
    try:
        found = CAUSES[code](**parameters)
    except (KeyError, TypeError):  # another code, or other parameters than ours
        found = Explanation(code.replace("_", " ").capitalize())
    if content.get("ended_early"):
        detail = f"{detail}\n{EARLY_END}".strip()
    return {"code": code, "title": found.title, "detail": detail, "advice": found.advice}


EARLY_END = "A rank ended without an error while others still worked: all ranks must run the same number of steps."
NOT_TRIED_AGAIN = "It has happened too often in a row to be tried again. Report it to an admin, and submit the job again when it is fixed."


def _not_the_codes_fault(final: bool) -> str:
    then = NOT_TRIED_AGAIN if final else "It is tried again; report it to an admin if that fails too."
    return f"This is not your code's fault. {then}"


# --- stopped, or lost --------------------------------------------------------------------------------------------


@cause
def cancelled() -> Explanation:
    return Explanation("Cancelled")


@cause
def held() -> Explanation:
    return Explanation("Put on hold", "Release the job to restart it from its checkpoints.")


@cause
def preempted(drained: bool, resumable: bool) -> Explanation:
    then = "restarts from its checkpoint" if resumable else "restarts from the beginning"
    return Explanation(
        "Its node is being drained" if drained else "Stopped to make room for others",
        f"Nothing: it {then} automatically.",
    )


@cause
def time_limit(seconds: int, was_silent: bool) -> Explanation:
    longer = "Submit it again with a longer time limit; it can restart from what it wrote to /checkpoints only if the code does so."
    may_have_hung = (
        "It ran without output for a long time (see its history), so it may have hung: look at the end of its log first. If it "
        "was still computing, submit it again with a longer time limit."
    )
    return Explanation(
        f"It reached its time limit of {duration(seconds)}",
        may_have_hung if was_silent else longer,
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


# --- memory, disk and devices ------------------------------------------------------------------------------------


@cause
def out_of_memory(over_limit: bool = False, limit_mib: int = 0) -> Explanation:
    if over_limit:
        limit = f" of {limit_mib} MiB" if limit_mib else ""
        return Explanation(
            f"It needed more memory than its limit{limit}",
            "Load less data at once, use fewer DataLoader workers, or a smaller batch.",
        )
    return Explanation(
        "The machine's memory was not enough",
        "Load less data at once, or use fewer DataLoader workers.",
    )


@cause
def killed() -> Explanation:
    return Explanation(
        "A rank was killed, most likely because it was out of memory",
        "Load less data at once, or use fewer DataLoader workers.",
    )


@cause
def shared_memory() -> Explanation:
    return Explanation(
        "Shared memory was not enough",
        "Give your DataLoader fewer workers (num_workers=0 uses none).",
    )


@cause
def disk_full(over_limit: bool = False) -> Explanation:
    if over_limit:
        return Explanation(
            "It wrote more than its disk limit",
            "Keep fewer checkpoints, and delete files you no longer need while the job runs.",
        )
    return Explanation(
        "The disk was full",
        "Write less: keep fewer checkpoints, and delete files you no longer need while the job runs.",
    )


@cause
def gpu_out_of_memory() -> Explanation:
    return Explanation(
        "The GPU's memory was not enough",
        "Use a smaller batch, or more GPUs so that each holds less. With schedulearn_train Run(..., most_samples=N) computes "
        "what does not fit at once in several passes.",
    )


@cause
def gpu_hardware() -> Explanation:
    return Explanation(
        "A GPU reported a fault",
        "Submit it again; if it happens on the same node, report it to an admin.",
    )


@cause
def no_gpu() -> Explanation:
    return Explanation(
        "The code asked for a CUDA GPU where there is none",
        "Choose the device by torch.cuda.is_available(), or an environment made for the lab's GPUs.",
    )


@cause
def cuda_error() -> Explanation:
    return Explanation(
        "A CUDA operation failed",
        "Often an index out of range, e.g. a label beyond the last class. Run it once on the CPU: the message will be clearer.",
    )


# --- the code ----------------------------------------------------------------------------------------------------


@cause
def import_error(module: str = "", environments: Sequence[str] = ()) -> Explanation:
    if not module:
        return Explanation(
            "An import failed",
            "Check that your code fits the versions in this environment; its page lists them.",
        )
    return Explanation(
        f"The package {module} is missing",
        f"Choose the environment {' or '.join(environments)}, which has it."
        if environments
        else "If it is a file of yours, upload it with the code. If it is a package, ask an admin: no environment has it.",
    )


@cause
def syntax_error() -> Explanation:
    return Explanation(
        "Python could not read the code",
        "Fix the line shown at the end of the log and upload the code again.",
    )


@cause
def file_not_found(file: str = "", entry: str = "") -> Explanation:
    return Explanation(
        f"The file {entry or file} was not there",
        "Choose one of the uploaded files as the entry."
        if entry
        else "Upload it with the code (files are in /workspace) or check its name, capital letters included.",
    )


@cause
def not_writable() -> Explanation:
    return Explanation(
        "The job may not write there",
        "Write results to the folder in SCHEDULEARN_OUTPUTS and checkpoints to the one in SCHEDULEARN_CHECKPOINTS.",
    )


@cause
def arguments() -> Explanation:
    return Explanation(
        "The script did not accept its arguments",
        "Compare the arguments of the job with what the script expects.",
    )


@cause
def no_internet() -> Explanation:
    return Explanation(
        "The job tried to reach the Internet",
        "Jobs have no access to it. Upload the data with the code, or ask an admin to put it under /data.",
    )


@cause
def exception(name: str) -> Explanation:
    return Explanation(
        f"The code raised {name}",
        "The log shows the line it came from, just above the message.",
    )


@cause
def signal(name: str) -> Explanation:
    return Explanation(
        f"A rank was ended by {name}",
        "A crash in compiled code. Run it once on one GPU: the log may then show where.",
    )


@cause
def exit_code(number: int) -> Explanation:
    return Explanation(
        f"It ended with exit code {number}",
        "Look at the end of the log: the last lines usually show why.",
    )


@cause
def unknown() -> Explanation:
    return Explanation(
        "It ended without a reason",
        "Look at the end of the log; submit it again if there is no error.",
    )


# --- ranks -------------------------------------------------------------------------------------------------------


@cause
def ranks_diverged() -> Explanation:
    return Explanation(
        "The ranks no longer trained the same model",
        "Update parameters by run.step alone, and write or initialise weights with the same random numbers on all ranks. Where "
        "parameters are meant to differ, pass Run(..., check_divergence=False).",
    )


@cause
def rank_hangs(seconds: str) -> Explanation:
    return Explanation(
        f"A rank let the others wait for more than {seconds} s",
        "All ranks must take the same steps. If one really takes longer alone, give the job the variable "
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS with more seconds (0: the others wait without limit).",
    )


@cause
def stood_still(seconds: str) -> Explanation:
    return Explanation(
        f"A process stood still for {seconds} s and was ended",
        "Something sent it SIGSTOP. Check what stops processes in your code; a debugger must detach from them.",
    )


@cause
def ring() -> Explanation:
    return Explanation(
        "The ranks lost each other",
        "Look for the rank that ended first. If none reports an error, submit it again and report it to an admin.",
    )


@cause
def ranks_apart() -> Explanation:
    return Explanation(
        "Its ranks did not work together",
        "Let it train with schedulearn_train, Horovod or torch.distributed, or submit it as a single rank, "
        "which takes as long. If it divides its work by rank itself, there is nothing to do.",
    )
