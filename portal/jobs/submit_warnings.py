"""What looks wrong with a job before it is submitted. No warning prevents that."""

from collections.abc import Sequence
from typing import Any

from portal.cluster.slots import in_cpu_slots, lab_noun
from portal.environments.models import Environment
from portal.jobs import launch_lines
from portal.jobs.launcher_needs import lacking_launcher
from portal.jobs.models import Job
from portal.projects.models import CodeVersion
from portal.projects.unpacking.installs import packages_of
from portal.projects.unpacking.names import listed

LAUNCHER_NAMES = {Job.Launcher.HOROVOD: "Horovod", Job.Launcher.TORCHRUN: "torch.distributed"}


def warnings_for(
    code: CodeVersion,
    launcher: str = "",
    entry: str = "",
    gpus: int = 1,
    environment: Environment | None = None,
    choices: Sequence[Environment] = (),
) -> list[dict[str, Any]]:
    """Return warnings about a code, with a launcher and the GPUs that the job asks for at most, in an environment of those that
    can be chosen. Modules that the environment lacks are in ``package_offers``."""
    about_launcher = lacking_launcher(code, launcher, entry, environment, choices)
    about_launcher += _other_launcher(code, launcher, entry, gpus) + _lightning(code, launcher, gpus)
    about_launcher += _installs(launcher, entry)
    return about_launcher + _idle_gpus(code, launcher, entry, gpus) + _found_in_code(code)


def _other_launcher(code: CodeVersion, launcher: str, entry: str, gpus: int) -> list[dict[str, Any]]:
    """Return a warning about a plain command that calls torchrun or the like; ``translated``: the form can take its values."""
    advice = launch_lines.advice(code, launcher, entry, gpus)
    if advice is None:
        return []
    translated = advice.translation is not None
    return [{"code": "other-launcher", "path": "", "line": 0, "text": advice.text, "translated": translated}]


def _found_in_code(code: CodeVersion) -> list[dict[str, Any]]:
    """Return what was found when the code was uploaded, where it counts what the lab has."""
    warnings = list(code.guess.get("warnings", []))
    if lab_noun() == "GPU":
        return warnings
    return [
        {**each, "text": in_cpu_slots(each["text"])} if each["code"] == "started-with" else each for each in warnings
    ]


def _installs(launcher: str, command: str) -> list[dict[str, Any]]:
    """Return a warning about a plain command that installs packages; ``packages``: those of an environment to make instead."""
    packages = packages_of(command) if launcher == Job.Launcher.COMMAND else None
    if packages is None:
        return []
    if packages:
        what = f"Remove that part, and make an environment with {listed(packages)}."
    else:
        what = "Remove that part. Packages of Python come from an environment; what the system lacks, an admin can install."
    text = f"A job installs nothing: such a command fails, or has no effect when the job ends. {what}"
    return [{"code": "installs", "path": "", "line": 0, "text": text, "packages": "\n".join(packages)}]


def _lightning(code: CodeVersion, launcher: str, gpus: int) -> list[dict[str, Any]]:
    """Return a warning if torchrun starts several ranks of code with Lightning, whose Trainer compares their number with its own."""
    imported = [name for name in ("lightning", "pytorch_lightning") if name in code.guess.get("imports", {})]
    if launcher != Job.Launcher.TORCHRUN or gpus < 2 or not imported:
        return []
    path, line = code.guess["imports"][imported[0]]
    text = (
        'Lightning needs the numbers of the job: Trainer(devices=int(os.environ["LOCAL_WORLD_SIZE"]), '
        'num_nodes=int(os.environ["GROUP_WORLD_SIZE"])). With others it stops, or each rank trains by itself.'
    )
    return [{"code": "lightning-ranks", "path": path, "line": line, "text": text}]


def _idle_gpus(code: CodeVersion, launcher: str, entry: str, gpus: int) -> list[dict[str, Any]]:
    """Return a warning if a job asks for several GPUs, and its code can only use one. Old versions were not inspected for it."""
    if gpus < 2 or not code.guess.get("one_gpu", False):
        return []
    if name := LAUNCHER_NAMES.get(Job.Launcher(launcher)) if launcher in Job.Launcher else None:
        text = (
            f"This code does not use {name}: each of its {gpus} ranks would run all of it, alike, and none would be faster. Ask "
            f"for 1, or divide the work; the gallery has an example."
        )
    elif entry.split(" ", 1)[0].rpartition("/")[2].startswith("python"):
        others = "the other would be" if gpus == 2 else f"the other {gpus - 1} would be"
        text = f"This code uses one {lab_noun()}, as far as it shows: {others} idle. Ask for 1."
    else:
        return []
    return [{"code": "idle-gpus", "path": "", "line": 0, "text": text}]
