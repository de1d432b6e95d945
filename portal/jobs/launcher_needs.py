"""What a launcher, or a plain command that calls one, needs of the environment: a package that has the program."""

from collections.abc import Sequence
from typing import Any

from portal.environments.models import Environment
from portal.environments.services import frameworks_of
from portal.jobs.models import Job
from portal.jobs.package_offers import missing_modules
from portal.projects.inspecting.launch_lines import tool_of
from portal.projects.models import CodeVersion

MODULES = {
    "torchrun": "torch",
    "torch.distributed.launch": "torch",
    "accelerate launch": "accelerate",
    "deepspeed": "deepspeed",
    "horovodrun": "horovod",
}
"""The package that has a launcher which is called in a plain command. No environment has mpirun and srun."""
INSTALLABLE = ("accelerate", "deepspeed")
"""Those that can be added to any base with PyTorch."""
LAUNCHERS = {Job.Launcher.HOROVOD: ("Horovod", "horovod"), Job.Launcher.TORCHRUN: ("torchrun", "torch")}


def needed_for(launcher: str, command: str = "") -> tuple[str, str]:
    """Return the program that a job calls and the package that has it; empty if it calls no launcher."""
    if launcher in Job.Launcher and Job.Launcher(launcher) in LAUNCHERS:
        return LAUNCHERS[Job.Launcher(launcher)]
    tool = tool_of(command) or ""
    return (tool, MODULES[tool]) if tool in MODULES else ("", "")


def lacks(environment: Environment, module: str) -> bool:
    """Return whether an environment is known not to have a package."""
    return bool(module) and bool(environment.packages) and module not in environment.packages


def environment_with(
    module: str, code: CodeVersion, chosen: Environment, choices: Sequence[Environment]
) -> Environment | None:
    """Return the environment that has a package, and lacks the fewest modules of the code; None if none has it.

    ``choices`` are those of ``offered_environments``. It keeps PyTorch or TensorFlow if the one that is chosen has it.
    """
    frameworks = set(frameworks_of(chosen)) - {"horovod"}
    able: list[Any] = [
        each
        for each in choices
        if module in each.packages and frameworks <= set(each.packages) and not getattr(each, "has_failed", False)
    ]
    return min(able, key=lambda each: (len(missing_modules(code, each)), each.position), default=None)


def lacking_launcher(
    code: CodeVersion, launcher: str, command: str, environment: Environment | None, choices: Sequence[Environment]
) -> list[dict[str, Any]]:
    """Return a warning if the environment lacks the program that is to start the code; ``packages``: those of one to make."""
    program, module = needed_for(launcher, command)
    if environment is None or not lacks(environment, module):
        return []
    if launcher != Job.Launcher.COMMAND and module in code.guess.get("imports", {}):
        return []  # it is among the modules that the code imports and the environment lacks
    text = f"“{environment.title}” does not have {program}, which is to start the code."
    other = environment_with(module, code, environment, choices)
    if other is not None:
        text = f"{text} “{other.title}” has it: choose it as the environment."
    elif module in INSTALLABLE:
        text = f"{text} Make an environment with {module}."
    else:
        text = f"{text} Choose an environment that has it."
    packages = module if other is None and module in INSTALLABLE else ""
    return [{"code": "lacks-launcher", "path": "", "line": 0, "text": text, "packages": packages}]
