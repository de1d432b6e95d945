"""Which GPUs a job accepts: any, those with enough memory, some models, or whatever is of one model.

The scheduler applies the same rule to the nodes of a snapshot (``scheduling.gpu_requests``).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from django.db.models import Count, Exists, Min, OuterRef, Q

from portal.cluster.models import GPU_OF_LAB, Gpu, usable_gpu
from portal.cluster.pools import is_part_of_gpu
from portal.cluster.slots import CPU_SLOT_MODEL, counted
from portal.jobs.models import Allocation, Attempt, Job
from portal.jobs.spec import MAX_GPU_MODEL_LENGTH, MAX_GPU_MODELS, Submission
from portal.names import is_unstorable
from portal.projects.models import Project
from portal.refused import Refused
from portal.sentences.words import gibibytes, requested_gpus

MODELS_SHOWN = 6


class GpuChoice(Protocol):
    """What a job or a submission has of it."""

    @property
    def gpu_memory_mib(self) -> int | None: ...
    @property
    def gpu_models(self) -> Sequence[str]: ...
    @property
    def same_gpu_model(self) -> bool: ...
    @property
    def max_gpus(self) -> int: ...


class Device(Protocol):
    """What decides about a GPU."""

    @property
    def model(self) -> str: ...
    @property
    def memory_mib(self) -> int: ...


def accepts(job: GpuChoice, gpu: Device) -> bool:
    """Return whether the job can use a GPU; only jobs of one GPU can use parts of GPUs."""
    return (
        gpu.memory_mib >= (job.gpu_memory_mib or 0)
        and (not job.gpu_models or gpu.model in job.gpu_models)
        and (job.max_gpus == 1 or not is_part_of_gpu(gpu.model))
    )


def in_words(job: GpuChoice) -> str:
    """Return which GPUs a job accepts, as in ``NVIDIA A100 GPUs all of one model``; empty for any."""
    if not (job.gpu_memory_mib or job.gpu_models or job.same_gpu_model):
        return ""
    return requested_gpus(job.gpu_memory_mib or 0, list(job.gpu_models), job.same_gpu_model)


# --- what the lab has --------------------------------------------------------------------------------------------


class LabGpus(NamedTuple):
    """The GPUs of one model on a node of the lab, also of one that is closed now."""

    node: int
    model: str
    memory_mib: int
    """Of the smallest one: policies see all of them as one node."""
    total: int
    free: int
    """Those on which a job could be placed now, as far as they themselves are concerned."""


def read_lab_gpus() -> list[LabGpus]:
    """Return the GPUs of the lab, in one query."""
    held = Exists(Allocation.objects.filter(gpu=OuterRef("pk"), released_at__isnull=True))
    rows = Gpu.objects.filter(GPU_OF_LAB).order_by().values_list("node", "model")
    is_free = usable_gpu() & Q(~held)
    counted = rows.annotate(memory=Min("memory_mib"), total=Count("pk"), free=Count("pk", filter=is_free))
    return [LabGpus(*row) for row in counted]


@dataclass(frozen=True)
class GpuModel:
    """A model that the form offers."""

    name: str
    memory_mib: int
    """Of the smallest one."""
    count: int
    free: int

    @property
    def label(self) -> str:
        memory = f"{gibibytes(self.memory_mib)}, " if self.memory_mib else ""
        return f"{self.name} ({memory}{self.free} of {self.count} free now)"


def models_of(gpus: Iterable[LabGpus]) -> list[GpuModel]:
    """Return the models of these GPUs, the largest memory first."""
    by_name: dict[str, list[LabGpus]] = defaultdict(list)
    for each in gpus:
        by_name[each.model].append(each)
    found = [
        GpuModel(
            name,
            min(each.memory_mib for each in those),
            sum(each.total for each in those),
            sum(each.free for each in those),
        )
        for name, those in by_name.items()
    ]
    return sorted(found, key=lambda each: (-each.memory_mib, each.name))


def memory_choices(gpus: Sequence[LabGpus]) -> list[tuple[int, str]]:
    """Return the sizes of memory that a job can ask for, the smallest first, with how many GPUs have as much."""
    total = sum(each.total for each in gpus)
    found = []
    for size in sorted({each.memory_mib for each in gpus if each.memory_mib}):
        enough = sum(each.total for each in gpus if each.memory_mib >= size)
        found.append((size, f"{gibibytes(size)} ({enough} of {counted(total, 'GPU')})"))
    return found


# --- what a program has used --------------------------------------------------------------------------------------

MEMORY_MARGIN = 1.1
"""A GPU is large enough if it has so many times the memory that the last run used at most."""


class MeasuredMemory(NamedTuple):
    """The most memory that a run of a program used on one of its GPUs."""

    job: int
    memory_mib: int


def last_measured(project: Project, values: Mapping[str, Any]) -> MeasuredMemory | None:
    """Return what the last run of a program used, if it was measured; ``values`` are those of the form."""
    is_command = values.get("launcher") == Job.Launcher.COMMAND
    rows = Attempt.objects.filter(
        job__project=project,
        job__launcher=values.get("launcher"),
        job__entry=values.get("command" if is_command else "entry") or "",
        peak_gpu_memory_mib__gt=0,
    )
    newest = rows.order_by("-ended_at").first()
    return MeasuredMemory(newest.job_id, newest.peak_gpu_memory_mib or 0) if newest else None


def size_for(memory_mib: int, sizes: Sequence[int]) -> int | None:
    """Return the smallest of these sizes that is large enough; None if all are, or none is."""
    enough = [size for size in sorted(sizes) if size >= MEMORY_MARGIN * memory_mib]
    return enough[0] if 0 < len(enough) < len(sizes) else None


# --- refusing what cannot be -------------------------------------------------------------------------------------


def check(asked: Submission) -> None:
    """Raise Refused for GPUs that no nodes of the lab have, with the nearest that they have."""
    if len(asked.gpu_models) > MAX_GPU_MODELS or any(map(_is_impossible_name, asked.gpu_models)):
        raise Refused(
            f"At most {MAX_GPU_MODELS} models, each of at most {MAX_GPU_MODEL_LENGTH} characters.", field="gpu_models"
        )
    gpus = read_lab_gpus()
    if not gpus or not (in_words(asked) or any(is_part_of_gpu(each.model) for each in gpus)):
        return
    _check_names(asked, gpus)
    if _largest(asked, gpus, lambda each: accepts(asked, each)) >= asked.min_gpus:
        return
    _check_parts(asked, gpus)
    if asked.gpu_memory_mib is not None:
        _check_memory(asked, asked.gpu_memory_mib, gpus)
    named = [each for each in gpus if accepts(asked, each)]
    most = _largest(asked, named, lambda each: True)
    where = "" if asked.launcher != Job.Launcher.COMMAND else " on one node"
    if asked.same_gpu_model and _most_together(asked, named) >= asked.min_gpus:
        best = max(models_of(named), key=lambda each: each.count)
        whose = "None of the chosen models" if asked.gpu_models else "No model"
        raise Refused(
            f"{whose} has {asked.min_gpus} GPUs{where}: the most are {most} of {best.name}. "
            f"Ask for at most {most}, or allow GPUs of several models in one job.",
            field="same_gpu_model",
        )
    others = [each for each in models_of(gpus) if each.name not in asked.gpu_models]
    instead = f", or accept others: {_listed(others)}" if others and asked.gpu_models else ""
    raise Refused(
        f"The lab has only {counted(most, 'such GPU')}{where}, and the job needs at least {asked.min_gpus}. "
        f"Ask for at most {most}{instead}.",
        field="gpu_models" if asked.gpu_models else "min_gpus",
    )


def _is_impossible_name(name: str) -> bool:
    return not name.strip() or len(name) > MAX_GPU_MODEL_LENGTH or is_unstorable(name)


def _check_names(asked: Submission, gpus: Sequence[LabGpus]) -> None:
    known = models_of(gpus)
    if missing := [name for name in asked.gpu_models if name not in {each.name for each in known}]:
        raise Refused(
            f"The lab has no GPU of the model {missing[0][:80]!r}. It has {_listed(known)}.", field="gpu_models"
        )


def _check_parts(asked: Submission, gpus: Sequence[LabGpus]) -> None:
    """Raise Refused if there would be enough GPUs if those that MIG has divided could be connected."""
    if (
        _largest(replace(asked, max_gpus=1), gpus, lambda each: accepts(replace(asked, max_gpus=1), each))
        >= asked.min_gpus
    ):
        raise Refused(
            "Parts of GPUs (MIG) cannot be connected with each other, so they are only for jobs of one GPU. "
            "Ask for exactly one, or for other GPUs.",
            field="max_gpus",
        )


def _check_memory(asked: Submission, memory_mib: int, gpus: Sequence[LabGpus]) -> None:
    """Raise Refused if less memory would do, with the most that the job can ask for."""
    of_models = [each for each in gpus if not asked.gpu_models or each.model in asked.gpu_models]
    if not any(each.memory_mib for each in of_models):
        raise Refused("These GPUs do not report their memory. Leave it empty.", field="gpu_memory_mib")
    there = _largest(asked, of_models, lambda each: each.memory_mib >= memory_mib)
    for size in sorted({each.memory_mib for each in of_models if 0 < each.memory_mib < memory_mib}, reverse=True):
        enough = [each for each in of_models if each.memory_mib >= size]
        if _largest(asked, enough, lambda each: True) >= asked.min_gpus:
            fewer = f"{there}, or for at most " if there else ""
            raise Refused(
                f"{_number_of(asked, there)} {gibibytes(memory_mib)} of memory. "
                f"Ask for at most {fewer}{gibibytes(size)} ({size} MiB): {_listed(models_of(enough))}"
                f"{_or_others(asked, gpus, memory_mib)}.",
                field="gpu_memory_mib",
            )


def _number_of(asked: Submission, count: int) -> str:
    """Return the begin of a sentence, as in ``Only 2 GPUs of the lab have``: how many of some GPUs the job could have."""
    whose = "of the chosen models" if asked.gpu_models else "of the lab"
    if not count:
        return f"No GPU {whose} has"
    if asked.launcher == Job.Launcher.COMMAND:
        whose += " on one node"
    if asked.same_gpu_model:
        whose = whose.replace("of the chosen", "of one of the chosen") if asked.gpu_models else f"{whose} of one model"
    return f"Only {counted(count, 'GPU')} {whose} {'has' if count == 1 else 'have'}"


def _or_others(asked: Submission, gpus: Sequence[LabGpus], memory_mib: int) -> str:
    """Return which other models have enough, for the end of a sentence; empty where the job accepts all models."""
    others = [each for each in gpus if each.model not in asked.gpu_models and each.memory_mib >= memory_mib]
    return f". Or accept others: {_listed(models_of(others))}" if others and asked.gpu_models else ""


def _largest(asked: Submission, gpus: Sequence[LabGpus], wanted: Callable[[LabGpus], bool]) -> int:
    """Return how many of these GPUs the job could have at once if all were free."""
    those = [each for each in gpus if wanted(each)]
    if not asked.same_gpu_model:
        return _most_together(asked, those)
    models = {each.model for each in those}
    return max((_most_together(asked, [each for each in those if each.model == name]) for name in models), default=0)


def _most_together(asked: Submission, gpus: Iterable[LabGpus]) -> int:
    by_node: Counter[int] = Counter()
    for each in gpus:
        by_node[each.node] += each.total
    if asked.launcher == Job.Launcher.COMMAND:  # one container on one machine
        return max(by_node.values(), default=0)
    return by_node.total()


def _listed(models: Sequence[GpuModel]) -> str:
    shown = ", ".join(f"{each.name} ({each.count})" for each in models[:MODELS_SHOWN])
    return f"{shown} and others" if len(models) > MODELS_SHOWN else shown


def offers_choice(gpus: Sequence[LabGpus]) -> bool:
    """Return whether the lab has different GPUs; it makes no difference which CPU slots a job gets."""
    return len({(each.model, each.memory_mib) for each in gpus if each.model != CPU_SLOT_MODEL}) > 1
