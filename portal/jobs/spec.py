"""What users ask for when they submit a job. Each field is declared once, in ``Submission``.

The form, the API's request and answers, copies of a job, its specification and the filters of lists follow from these
declarations; a test compares ``models.Job`` and the table in docs/user/job-fields.md with them. A new field is a line
here, a column in ``models.Job`` with its migration, and a row of that table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from dataclasses import field as dataclass_field
from datetime import datetime
from enum import Enum
from typing import Any

from django.conf import settings
from django.db import models

from portal.environments.models import Environment
from portal.jobs.dataset_use import DatasetChoice
from portal.jobs.models import Job
from portal.jobs.word_lists import MAX_WORDS, normalise
from portal.projects.models import CodeVersion

MAX_GPUS = 4096
MAX_RETRIES = 10
MAX_PRIORITY = 10
MAX_ARGUMENTS = 200
MAX_ARGUMENT_LENGTH = 2000
MAX_ENV_VARS = 100
MAX_ENV_VALUE_LENGTH = 4096
MAX_SECRETS = 50
MAX_DATASETS = 20
MIN_SCRATCH_MIB = 640
MAX_GPU_MODELS = 20
MAX_GPU_MODEL_LENGTH = 80
MAX_NAME_LENGTH = 120
"""Of one of several names: long enough for the name of any secret, or GPU."""
DAY_SECONDS = 24 * 3600


class Kind(Enum):
    """The type of a field's values."""

    TEXT = "text"
    LONG_TEXT = "text of several lines"
    INTEGER = "whole number"
    FLAG = "true or false"
    CHOICE = "one of several words"
    MOMENT = "date and time"
    ARGUMENTS = "list of arguments"
    VARIABLES = "names and values"
    WORDS = "list of words"
    NAMES = "list of names"
    JOB = "number of a job"
    DATASETS = "list of datasets"


class FormPlace(Enum):
    """Where the form asks for a field."""

    MAIN = "where the form declares it"
    MORE = 'under "More", in the order of declaration'


@dataclass(frozen=True)
class JobField:
    """One field of a job, for all who show, accept or check it."""

    kind: Kind
    label: str = ""
    help: str = ""
    """Below the field on the form; also the API's description, if that has none of its own."""
    api_help: str = ""
    limits: tuple[int, int] | None = None
    """The smallest and largest number; of texts, the range of their length."""
    choices: type[models.TextChoices] | None = None
    empty_choice: str = ""
    """The label for no choice, if there may be none."""
    optional: bool = False
    """None is a value: the lab's setting, or nothing."""
    form_place: FormPlace = FormPlace.MORE
    in_lists: bool = True
    """Answers that list jobs contain it, not only those about one."""


def job_field(default: Any = None, factory: Callable[[], Any] | None = None, **about: Any) -> Any:
    """Declare a field of ``Submission`` with its default and the arguments of ``JobField``."""
    metadata = {"job_field": JobField(**about)}
    if factory is not None:
        return dataclass_field(default_factory=factory, metadata=metadata)
    return dataclass_field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job as a user asks for it. ``services.submit`` checks it."""

    code: CodeVersion
    environment: Environment
    launcher: str
    entry: str
    """The Python file that each rank runs; for a plain command, the whole command line."""
    arguments: tuple[str, ...] = job_field(
        (),
        kind=Kind.ARGUMENTS,
        help="Written after the file's name. Quote what contains spaces.",
        limits=(0, MAX_ARGUMENTS),
        in_lists=False,
    )
    env_vars: Mapping[str, str] = job_field(
        factory=dict,
        kind=Kind.VARIABLES,
        label="Environment variables",
        help="One NAME=value per line. Members of the project can read them: put tokens and passwords into secrets instead.",
        limits=(0, MAX_ENV_VARS),
        in_lists=False,
    )
    secrets: tuple[str, ...] = job_field(
        (),
        kind=Kind.NAMES,
        help="The job gets them as environment variables or files, and its log shows *** in their place.",
        api_help="Names of secrets that the job gets: HF_TOKEN for one of yours, project/HF_TOKEN for one of the project.",
        limits=(0, MAX_SECRETS),
        in_lists=False,
    )
    datasets: tuple[DatasetChoice, ...] = job_field(
        (),
        kind=Kind.DATASETS,
        help="The job finds each in /data/ under its name, read-only, and on request also where the program expects it.",
        api_help="Datasets that the job reads in /data/ under their names: of each its number or owner/name, and perhaps a version, "
        "a further path such as ../data, and whether the job may write there.",
        limits=(0, MAX_DATASETS),
        in_lists=False,
    )
    min_gpus: int = job_field(
        1,
        kind=Kind.INTEGER,
        label="GPUs, at least",
        help="The job waits until this many are free at once.",
        limits=(1, MAX_GPUS),
        form_place=FormPlace.MAIN,
    )
    max_gpus: int = job_field(
        1,
        kind=Kind.INTEGER,
        label="GPUs, at most",
        help="The job takes up to this many when they are idle.",
        limits=(1, MAX_GPUS),
        form_place=FormPlace.MAIN,
    )
    elastic: bool = job_field(
        False,
        kind=Kind.FLAG,
        label="Elastic: the number of GPUs may change while it runs",
        help="The job grows onto idle GPUs and releases them when others wait. With Horovod, for scripts that use "
        "hvd.elastic. With torchrun, for scripts that save a snapshot and load it when they start: whenever the number of "
        "GPUs changes, all ranks get SIGTERM and are restarted.",
        form_place=FormPlace.MAIN,
    )
    gpu_memory_mib: int | None = job_field(
        None,
        kind=Kind.INTEGER,
        label="Memory of each GPU, at least",
        help="The job gets no GPU with less memory. Its batch, its model and its optimizer have to fit.",
        api_help="The least memory of each GPU (not RAM), in MiB. Null: any.",
        limits=(1, 16 * 1024 * 1024),
        optional=True,
        form_place=FormPlace.MAIN,
        in_lists=False,
    )
    gpu_models: tuple[str, ...] = job_field(
        (),
        kind=Kind.NAMES,
        label="Models of GPUs",
        help="The job gets only GPUs of these models. Tick none for any.",
        api_help="The models of GPUs that the job accepts, as /gpus/ lists them. Empty: any.",
        limits=(0, MAX_GPU_MODELS),
        form_place=FormPlace.MAIN,
        in_lists=False,
    )
    same_gpu_model: bool = job_field(
        False,
        kind=Kind.FLAG,
        label="All of one model",
        help="For jobs on several GPUs: in each step all wait for the slowest.",
        api_help="All GPUs of the job must be of one model.",
        form_place=FormPlace.MAIN,
        in_lists=False,
    )
    time_limit_seconds: int = job_field(
        DAY_SECONDS,
        kind=Kind.INTEGER,
        label="Time limit",
        help="The job is stopped after this time, so that one that hangs does not block others.",
        api_help="The job is stopped after this time, so that one that hangs does not block others. The form proposes 14400.",
        limits=(10, 30 * DAY_SECONDS),
        form_place=FormPlace.MAIN,
        in_lists=False,
    )
    retries: int = job_field(
        0,
        kind=Kind.INTEGER,
        help="How often to restart when your code fails. Lost nodes do not count.",
        limits=(0, MAX_RETRIES),
        in_lists=False,
    )
    resumable: bool = job_field(
        False,
        kind=Kind.FLAG,
        label="Resumes from checkpoints",
        help="For code that writes checkpoints to /checkpoints and starts from the newest. Such a job may be stopped to "
        "make room for others, and resumes later.",
        api_help="Its code resumes from /checkpoints, so it may be stopped to make room for others.",
    )
    priority: int = job_field(
        0,
        kind=Kind.INTEGER,
        help="Higher goes first; the default is 0. Under fair_share it orders only your own jobs; under other policies it also "
        "orders yours among those of others. Above 0 the job uses more of your share: each GPU-hour counts twice at 1, three "
        "times at 2, and so on.",
        limits=(-MAX_PRIORITY, MAX_PRIORITY),
    )
    tier: str = job_field(
        Job.Tier.STANDARD,
        kind=Kind.CHOICE,
        help="Basic jobs make way for the others. Premium jobs are the last to do so and need an admin's permission.",
        choices=Job.Tier,
    )
    opportunistic: bool = job_field(
        False,
        kind=Kind.FLAG,
        label="Preemptible: uses idle GPUs only",
        help="The job starts while GPUs are idle and is the first to be stopped. Unless it resumes from checkpoints, it then "
        "restarts from the beginning.",
        api_help="Preemptible: runs only on GPUs that no other job wants, and is the first to be stopped.",
    )
    mode: str = job_field(
        "",
        kind=Kind.CHOICE,
        label="How ranks update the model",
        help="For code that uses schedulearn_train, where ranks differ in speed. All but the first two need torchrun.",
        api_help="How ranks update the model, for code that uses schedulearn_train; empty leaves that to the code.",
        choices=Job.Mode,
        empty_choice="as the code does",
    )
    deadline: datetime | None = job_field(
        None,
        kind=Kind.MOMENT,
        help="When you need the result. Only the policy pdors considers it, and none can promise it.",
        api_help="When the result is needed. Only the policy pdors considers it.",
        optional=True,
    )
    after: int | None = job_field(
        None,
        kind=Kind.JOB,
        label="Start after job",
        help="The number of a job of this project, or another of yours. This job is queued when that one has succeeded, and "
        "cancelled if it fails or is cancelled.",
        api_help="The id of a job of the same project, or another of yours. This one is queued when that one has succeeded, "
        "and cancelled if it fails or is cancelled.",
        optional=True,
    )
    use_outputs: bool = job_field(
        False,
        kind=Kind.FLAG,
        label="Use its outputs as input",
        help="The files in /outputs of that job are in /inputs, read-only. SCHEDULEARN_INPUTS names the folder.",
        api_help="The outputs of the job after which it starts are in /inputs, read-only.",
        in_lists=False,
    )
    restarts_without_progress: int | None = job_field(
        None,
        kind=Kind.INTEGER,
        help="For elastic Horovod jobs: the job fails after this many restarts in a row without a commit of its state. "
        f"Empty: the lab's setting, {settings.RESTARTS_WITHOUT_PROGRESS}.",
        api_help="For elastic Horovod jobs: restarts in a row without a commit after which the job fails. "
        "Null: the lab's setting.",
        limits=(1, 18),  # the driver keeps the latest 20 rank groups
        optional=True,
        in_lists=False,
    )
    silent_rank_minutes: int | None = job_field(
        None,
        kind=Kind.INTEGER,
        label="Minutes without output until a notice",
        help="A job that prints nothing for so long is reported on its page and by mail. It is never stopped for that; "
        f"0 switches the notice off. Empty: the lab's setting, {settings.SILENT_RANK_MINUTES}.",
        api_help="Minutes without output after which its owner gets a notice; 0 for none. Null: the lab's setting.",
        limits=(0, 7 * 24 * 60),
        optional=True,
        in_lists=False,
    )
    cpus_per_gpu: int | None = job_field(
        None,
        kind=Kind.INTEGER,
        label="Processors per GPU",
        help="Empty: as many as the node has for each of its GPUs. With more, the job waits until they are free.",
        api_help="Processors for each GPU. Null: as many as the node has for each of its GPUs.",
        limits=(1, 1024),
        optional=True,
        in_lists=False,
    )
    memory_mib_per_gpu: int | None = job_field(
        None,
        kind=Kind.INTEGER,
        label="Memory per GPU, in MiB",
        help="16384 are 16 GiB. Empty: as much as the node has for each of its GPUs. With more, the job waits until it is free. "
        "A job that needs more than it has is killed.",
        api_help="Memory (RAM) for each GPU, in MiB. Null: as much as the node has for each of its GPUs.",
        limits=(512, 16 * 1024 * 1024),
        optional=True,
        in_lists=False,
    )
    shm_mib: int | None = job_field(
        None,
        kind=Kind.INTEGER,
        label="Size of /dev/shm, in MiB",
        help="Through it DataLoader workers pass batches. Empty: a quarter of the memory, of which it is a part.",
        api_help="Size of /dev/shm in each container, in MiB, which is part of its memory. Null: a quarter of that.",
        limits=(64, 4 * 1024 * 1024),
        optional=True,
        in_lists=False,
    )
    scratch_mib: int | None = job_field(
        None,
        kind=Kind.INTEGER,
        label="Space for files, in MiB",
        help="For the working directory, /outputs and /tmp of each container together; a tenth of it is for /tmp, at most half "
        "of the memory. Empty: 10 GiB, and 1 GiB for /tmp.",
        api_help="Space for the working directory, /outputs and /tmp (a tenth of it, at most half of the memory) of each "
        "container together, in MiB. Null: 10 GiB, and 1 GiB for /tmp.",
        limits=(MIN_SCRATCH_MIB, 4 * 1024 * 1024),
        optional=True,
        in_lists=False,
    )
    name: str = job_field(
        "",
        kind=Kind.TEXT,
        help="To find the job again. Without one it is called after its file or command.",
        limits=(0, 80),
    )
    tags: tuple[str, ...] = job_field(
        (),
        kind=Kind.WORDS,
        help="Words to find the job by, with spaces between: baseline lr-sweep. Lists of jobs can be filtered by them.",
        api_help="Words to find the job by; lists of jobs can be filtered by them.",
        limits=(0, MAX_WORDS),
    )
    description: str = job_field(
        "",
        kind=Kind.LONG_TEXT,
        help="A note for yourself and the project's members.",
        limits=(0, 10_000),
        in_lists=False,
    )


FIELDS: dict[str, JobField] = {
    each.name: each.metadata["job_field"] for each in fields(Submission) if "job_field" in each.metadata
}
DEFAULTS: dict[str, Any] = {
    each.name: each.default_factory() if callable(each.default_factory) else each.default
    for each in fields(Submission)
    if each.name in FIELDS
}


LISTS = (Kind.ARGUMENTS, Kind.WORDS, Kind.NAMES)
ROWS = tuple(name for name, about in FIELDS.items() if about.kind is Kind.DATASETS)
"""Fields whose values are rows of their own, not columns of a job."""
OPTIONAL_NUMBERS = tuple(name for name, about in FIELDS.items() if about.kind is Kind.INTEGER and about.optional)
WORD_LISTS = tuple(name for name, about in FIELDS.items() if about.kind is Kind.WORDS)
"""Fields that lists of jobs show as labels and can be filtered by."""


def label_of(name: str) -> str:
    """Return the label of a field."""
    return FIELDS[name].label or name.replace("_", " ").capitalize()


def limits_of(name: str) -> tuple[int, int]:
    """Return the smallest and largest value of a field. Raises ValueError for one without limits."""
    limits = FIELDS[name].limits
    if limits is None:
        raise ValueError(f"{name} has no limits")
    return limits


def column_of(name: str) -> str:
    """Return the attribute of a job that has the value of a field: of another job, its number."""
    return f"{name}_id" if FIELDS[name].kind is Kind.JOB else name


def field_value(job: Job, name: str) -> Any:
    """Return what was asked for in this field."""
    kind = FIELDS[name].kind
    if kind is Kind.DATASETS:
        return tuple(row.choice for row in job.datasets.select_related("version"))
    value = getattr(job, column_of(name))
    return tuple(value) if kind in LISTS else dict(value) if kind is Kind.VARIABLES else value


def submission_of(job: Job) -> Submission:
    """Return what was asked for, for example to submit it again."""
    return Submission(
        code=job.code,
        environment=job.environment,
        launcher=job.launcher,
        entry=job.entry,
        **{name: field_value(job, name) for name in FIELDS},
    )


def as_columns(asked: Submission) -> dict[str, Any]:
    """Return the values as columns of ``models.Job``; those of ``ROWS`` are none."""
    values = {column_of(name): getattr(asked, name) for name in FIELDS if name not in ROWS}
    for name, about in FIELDS.items():
        if about.kind in (Kind.ARGUMENTS, Kind.NAMES):
            values[name] = list(values[name])
        elif about.kind is Kind.WORDS:
            values[name] = normalise(values[name])
    return values
