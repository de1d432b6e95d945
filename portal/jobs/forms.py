"""The form that submits a job: guesses filled in, a sentence under each field, nothing lost on error."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django import forms
from django.utils import timezone

from portal.accounts.models import User
from portal.cluster.slots import lab_noun
from portal.environments.models import Environment
from portal.form_fields import RefusableForm
from portal.jobs import dependencies, gpu_choice, job_datasets, job_secrets, services
from portal.jobs.dataset_use import DatasetChoice
from portal.jobs.environments import best_environment, environment_labels, offered_environments
from portal.jobs.form_fields import MAX_REFERENCE, form_field
from portal.jobs.models import MAX_ENTRY_LENGTH, Job
from portal.jobs.names import typed_name
from portal.jobs.spec import FIELDS, FormPlace, Submission, field_value, label_of
from portal.projects.inspecting import entries
from portal.projects.models import CodeVersion
from portal.refused import Refused
from portal.sentences.words import gibibytes, in_cpu_slots

UNITS = ((60, "minutes"), (3600, "hours"), (86_400, "days"))
REFUSAL_FIELDS = {"time_limit_seconds": "time_amount", "idempotency_key": None, "code": None, "project": None}
"""Where a refusal about a job's field is shown, if not at the form's field of the same name."""
MORE_FIELDS = tuple(name for name, about in FIELDS.items() if about.form_place is FormPlace.MORE)
GPU_FIELDS = ("gpu_memory_mib", "gpu_models", "same_gpu_model")
MAX_DIGITS = 10
UNSET: tuple[Any, ...] = ("", None, False, [], ())
INITIAL_VALUES: dict[str, Any] = {"retries": 0, "priority": 0, "tier": Job.Tier.STANDARD}
"""Values that are in the form from the start."""


class TimeLimitForm(RefusableForm):
    """A form with a time limit as a number and its unit."""

    time_amount = forms.IntegerField(
        label=label_of("time_limit_seconds"),
        min_value=1,
        max_value=100_000,
        error_messages={"min_value": "Enter at least 1."},
        help_text=FIELDS["time_limit_seconds"].help,
    )
    time_unit = forms.TypedChoiceField(label="Unit", choices=UNITS, coerce=int)

    @property
    def time_limit_seconds(self) -> int:
        """The limit that was typed; the form must be valid."""
        return int(self.cleaned_data["time_amount"] * self.cleaned_data["time_unit"])

    def field_of(self, refusal: Refused) -> str | None:
        return REFUSAL_FIELDS.get(refusal.field, refusal.field)


class JobForm(TimeLimitForm):
    """Three questions first: what to run, on how many GPUs, for how long. The rest is under "More"."""

    launcher = forms.ChoiceField(
        choices=Job.Launcher.choices,
        widget=forms.RadioSelect,
        help_text="Horovod and torchrun start one process per GPU and connect them. A plain command runs once, as you write it.",
    )
    entry = forms.ChoiceField(
        label="File or module",
        required=False,
        help_text="What each process runs. A file of a package with relative imports (from .model import ...) runs as a module, -m.",
    )
    command = forms.CharField(
        label="Command line",
        required=False,
        max_length=MAX_ENTRY_LENGTH,
        widget=forms.TextInput(attrs={"class": "mono", "placeholder": "python train.py --epochs 3"}),
        help_text="What to type in the folder of your code. A shell reads it: pipes, && and variables work.",
    )
    min_gpus = form_field("min_gpus")
    max_gpus = form_field("max_gpus")
    elastic = form_field("elastic")
    gpu_memory_mib = forms.TypedChoiceField(
        label=label_of("gpu_memory_mib"),
        required=False,
        coerce=int,
        empty_value=None,
        help_text=FIELDS["gpu_memory_mib"].help,
    )
    gpu_models = form_field("gpu_models")
    same_gpu_model = form_field("same_gpu_model")
    environment = forms.ChoiceField(help_text="The packages your code finds installed.")
    key = forms.CharField(widget=forms.HiddenInput, max_length=100)
    """Makes a form that is sent twice submit once."""

    FIRST = ("launcher", "entry", "command")
    measured: gpu_choice.MeasuredMemory | None = None
    """What the last run of the program used at most, if that was filled in."""
    SUGGESTED = frozenset(
        {
            "min_gpus",
            "max_gpus",
            "elastic",
            "environment",
            "time_amount",
            "time_unit",
            "resumable",
            "opportunistic",
            "after",
            "use_outputs",
        }
        | set(GPU_FIELDS)
    )

    def __init__(
        self,
        code: CodeVersion,
        data: Any = None,
        copy_of: Job | None = None,
        copied_env_vars: Mapping[str, str | None] | None = None,
        *,
        user: User | None = None,
    ) -> None:
        self.code = code
        self.user = user
        self.environments = offered_environments(code.project)
        super().__init__(
            data,
            initial=_initial_from_job(copy_of, copied_env_vars or {})
            if copy_of
            else _initial_from_guess(code, self.environments),
        )
        self.fields |= {name: form_field(name) for name in MORE_FIELDS}
        self.fields["entry"].choices = _entries(code)  # type: ignore[attr-defined]
        self.fields["environment"].choices = environment_labels(self.environments)  # type: ignore[attr-defined]
        self._offer_gpus()
        self._offer_secrets()
        if copy_of is not None:
            self.initial["datasets"] = self._dataset_rows(self.initial["datasets"])
        if lab_noun() != "GPU":
            _name_slots(self.fields.values())

    @classmethod
    def draft(cls, user: User, code: CodeVersion, data: Any, environment: Environment | None = None) -> "JobForm":
        """Return a form with what was typed so far, not checked yet, and perhaps another environment."""
        form = cls(code, user=user)
        for name, field in form.fields.items():
            form.initial[name] = field.widget.value_from_datadict(data, {}, form.add_prefix(name))
        if environment is not None:
            form.initial["environment"] = environment.key
        return form

    def suggest(self, values: Mapping[str, str]) -> None:
        """Start with these values, for example with a change that would let a copy start sooner."""
        self.initial.update({name: value for name, value in values.items() if name in self.SUGGESTED})
        if dataset := values.get("dataset"):
            self.initial["datasets"] = [{"reference": dataset[:MAX_REFERENCE]}]

    def _offer_gpus(self) -> None:
        """Offer the models and sizes that the lab has, and those of the job that is copied or that are sent.

        What is sent may have left the lab since the form was opened: ``gpu_choice.check`` refuses that with what there is now.
        Fill in the memory that the last run of the program used at most, where some GPUs have less.
        """
        gpus = gpu_choice.read_lab_gpus()
        sizes = dict(gpu_choice.memory_choices(gpus))
        models = {each.name: each.label for each in gpu_choice.models_of(gpus)}
        self.offers_gpu_choice = gpu_choice.offers_choice(gpus)
        if self.offers_gpu_choice and not self.is_bound and not any(self.initial.get(name) for name in GPU_FIELDS):
            self.measured = gpu_choice.last_measured(self.code.project, self.initial)
            if self.measured and (enough := gpu_choice.size_for(self.measured.memory_mib, list(sizes))):
                self.initial["gpu_memory_mib"] = enough
        size, names = (self[name].value() for name in ("gpu_memory_mib", "gpu_models"))
        if str(size or "").isdecimal() and len(str(size)) < MAX_DIGITS:
            sizes.setdefault(int(size), gibibytes(int(size)))
        for name in names or ():
            models.setdefault(name, f"{name} (not in the lab)")
        self.fields["gpu_memory_mib"].choices = [("", "any"), *sorted(sizes.items())]  # type: ignore[attr-defined]
        self.fields["gpu_models"].choices = list(models.items())  # type: ignore[attr-defined]

    def _offer_secrets(self) -> None:
        """Offer the secrets that the user may use, and those of the job that is copied or that are sent: ``job_secrets.check``
        refuses those."""
        chosen = self["secrets"].value() or ()
        offered = job_secrets.choices(self.user, self.code.project, chosen)
        self.fields["secrets"].choices = offered  # type: ignore[attr-defined]

    def _dataset_rows(self, choices: Iterable[DatasetChoice]) -> list[dict[str, Any]]:
        """Return datasets as the form shows them, with the versions that the copied job read."""
        return [
            {
                "reference": job_datasets.reference_of(self.user, choice),
                "path": choice["path"],
                "writable": choice["writable"],
            }
            for choice in choices
        ]

    @property
    def proposed_datasets(self) -> list[job_datasets.Proposal]:
        """The datasets that the field for them proposes."""
        return job_datasets.proposals(self.user)

    @property
    def chooses_gpus(self) -> bool:
        """Whether it does not accept any GPU, or has an error there."""
        return any(self[name].value() not in UNSET or self[name].errors for name in GPU_FIELDS)

    @property
    def shows_gpu_choice(self) -> bool:
        """Whether to ask which GPUs: if the lab has different ones, or the job does not accept all."""
        return self.offers_gpu_choice or self.chooses_gpus

    @property
    def more(self) -> list[forms.BoundField]:
        """The fields under "More"."""
        return [self[name] for name in MORE_FIELDS]

    @property
    def proposed_jobs(self) -> list[Job]:
        """The jobs that the field for an earlier job proposes."""
        return dependencies.proposals(self.code.project)

    @property
    def more_is_open(self) -> bool:
        """Whether a field under "More" has an unusual value or an error, so that neither is hidden."""
        if self.is_bound and any(name in self.errors for name in MORE_FIELDS):
            return True
        values = {name: self[name].value() for name in MORE_FIELDS}
        return any(
            value not in (*UNSET, INITIAL_VALUES.get(name), str(INITIAL_VALUES.get(name)))
            for name, value in values.items()
        )

    @property
    def shown(self) -> dict[str, Any]:
        """What the fields of the form have now."""
        return {name: self[name].value() for name in self.fields}

    @property
    def chosen_environment(self) -> Environment | None:
        """The environment that is selected."""
        key = self["environment"].value()
        return next((each for each in self.environments if each.key == key), None)

    def clean(self) -> None:
        """Require a command line of a plain command, and a file of the other launchers."""
        given = self.cleaned_data
        if given.get("launcher") == Job.Launcher.COMMAND:
            if not given.get("command", "").strip():
                self.add_error("command", "Write the command line to run.")
        elif "launcher" in given and "entry" in given and not given["entry"]:
            self.add_error("entry", "This code has no Python file. Choose “plain command” and write what to run.")

    def submission(self) -> Submission:
        """Return what the user asked for; the form must be valid."""
        given = self.cleaned_data
        is_command = given["launcher"] == Job.Launcher.COMMAND
        values = {name: given[name] for name in FIELDS if name in self.fields}
        values["elastic"] = given["elastic"] and not is_command
        values["time_limit_seconds"] = self.time_limit_seconds
        return Submission(
            code=self.code,
            environment=next(each for each in self.environments if each.key == given["environment"]),
            launcher=given["launcher"],
            entry=given["command"].strip() if is_command else given["entry"],
            **values,
        )

    def renew_key(self, job: Job) -> None:
        """Let a form that has already submitted a job, as after Back in the browser, submit another with its new values."""
        self.data = {**dict(self.data.items()), "key": uuid.uuid4().hex}
        self.add_error(
            None,
            f"This form has already submitted job {job.pk}, with other values. To queue another job with these, submit it again.",
        )

    def field_of(self, refusal: Refused) -> str | None:
        name = super().field_of(refusal)
        is_command = self.cleaned_data.get("launcher") == Job.Launcher.COMMAND
        return "command" if name == "entry" and is_command else name


def _name_slots(fields: Iterable[forms.Field]) -> None:
    """Name CPU slots where the fields name GPUs: the lab has none."""
    for field in fields:
        if field.label is not None:  # otherwise the label is made of the field's name
            field.label = in_cpu_slots(str(field.label))
        field.help_text = in_cpu_slots(str(field.help_text))


def _entries(code: CodeVersion) -> list[tuple[str, str | list[tuple[str, str]]]]:
    """Return the files as choices, then the modules of packages."""
    scripts = _scripts(code)
    files: list[tuple[str, str | list[tuple[str, str]]]] = [(path, path) for path in scripts] or [("", "")]
    modules = [(entry, f"python {entry}") for entry in entries.module_entries(scripts)]
    return [*files, ("As a module", modules)] if modules else files


def _scripts(code: CodeVersion) -> list[str]:
    """Return the Python files, the likeliest entries first."""
    candidates: Sequence[str] = code.guess.get("candidates", [])
    paths = [file["path"] for file in code.files if file["path"].endswith(".py")]
    likely = [path for path in candidates if path in paths]
    return likely + [path for path in paths if path not in likely]


def _initial_from_guess(code: CodeVersion, environments: Sequence[Environment]) -> dict[str, Any]:
    guess: Mapping[str, Any] = code.guess
    launcher = guess.get("launcher") or Job.Launcher.COMMAND
    entry = entries.entry_of(guess)
    elastic = bool(guess.get("elastic"))
    lab_gpus = services.lab_gpus()
    several = launcher != Job.Launcher.COMMAND and (lab_gpus == 0 or lab_gpus > 1)
    best = best_environment(guess, environments)
    return {
        "launcher": launcher,
        "entry": entry,
        "command": services.command_for(guess),
        "min_gpus": 1,
        "max_gpus": 2 if several else 1,
        "elastic": elastic,
        "environment": best.key if best else "",
        "time_amount": 4,
        "time_unit": 3600,
        **INITIAL_VALUES,
        "key": uuid.uuid4().hex,
    }


def _initial_from_job(job: Job, env_vars: Mapping[str, str | None]) -> dict[str, Any]:
    is_command = job.launcher == Job.Launcher.COMMAND
    return {
        **{name: field_value(job, name) for name in FIELDS},
        "name": typed_name(job),
        "launcher": job.launcher,
        "entry": "" if is_command else job.entry,
        "command": job.entry if is_command else "",
        "environment": job.environment.key,
        **time_limit_in_units(job.time_limit_seconds),
        "env_vars": env_vars,
        "deadline": job.deadline if job.deadline and job.deadline > timezone.now() else None,
        "key": uuid.uuid4().hex,
    }


def time_limit_in_units(seconds: int) -> dict[str, int]:
    """Return a limit as the form's number and unit, in the largest unit that divides it; minutes are rounded up."""
    unit = next((each for each, _ in reversed(UNITS) if seconds % each == 0), 60)
    return {"time_amount": -(-seconds // unit), "time_unit": unit}
