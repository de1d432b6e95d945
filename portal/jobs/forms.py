"""The form that submits a job: guesses filled in, a sentence under each field, nothing lost on error."""

import shlex
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.conf import settings
from django.db.models import Count, Q
from django.utils import timezone

from portal.accounts.models import User
from portal.cluster.models import Environment, NodeEnvironment
from portal.jobs import services
from portal.jobs.models import Job
from portal.jobs.services import PROGRESS_LIMITS, Submission
from portal.projects import inspection
from portal.projects.models import CodeVersion
from portal.refused import Refused

RESTARTS, SILENCE = PROGRESS_LIMITS["restarts_without_progress"], PROGRESS_LIMITS["silent_rank_minutes"]
UNITS = ((60, "minutes"), (3600, "hours"), (86_400, "days"))
FIELD_OF = {"time_limit_seconds": "time_amount", "idempotency_key": None, "code": None, "project": None}
"""Where a refusal about a job's field is shown, if not at the form's field of the same name."""


def offered_environments() -> list[Environment]:
    """Those a job can choose, with on how many nodes each is ready and being prepared."""
    on_live = Q(on_nodes__node__removed_at__isnull=True, on_nodes__node__approved_at__isnull=False)
    ready = Q(on_nodes__state=NodeEnvironment.State.READY)
    rows = Environment.objects.filter(retired=False).annotate(
        ready_on=Count("on_nodes", filter=on_live & ready), known_on=Count("on_nodes", filter=on_live)
    )
    return list(rows.order_by("position", "key"))


def environment_label(environment: Any) -> str:
    if environment.ready_on:
        return f"{environment.title}"
    if environment.known_on:
        return f"{environment.title} (being prepared)"
    return f"{environment.title} ({'prepared when a job asks for it' if environment.on_demand else 'on no node yet'})"


class JobForm(forms.Form):
    """Three questions first: what to run, on how many GPUs, for how long. The rest is under "More"."""

    launcher = forms.ChoiceField(
        choices=Job.Launcher.choices,
        widget=forms.RadioSelect,
        help_text="Horovod and torchrun start one process per GPU and connect them. A plain command runs once, as you write it.",
    )
    entry = forms.ChoiceField(label="File", required=False, help_text="The Python file that each process runs.")
    command = forms.CharField(
        label="Command line",
        required=False,
        max_length=255,
        widget=forms.TextInput(attrs={"class": "mono", "placeholder": "python train.py --epochs 3"}),
        help_text="For a plain command only: what to type in the folder of your code.",
    )
    min_gpus = forms.IntegerField(
        label="GPUs, at least", min_value=1, max_value=4096, help_text="The job waits until this many are free at once."
    )
    max_gpus = forms.IntegerField(
        label="GPUs, at most", min_value=1, max_value=4096, help_text="It takes up to this many when they are idle."
    )
    elastic = forms.BooleanField(
        label="Elastic: GPUs may come and go while it runs",
        required=False,
        help_text="The job grows into idle GPUs and gives them back when others wait. With Horovod, for scripts that use "
        "hvd.elastic. With torchrun, for scripts that keep a snapshot and load it at their start: whenever GPUs come or "
        "go, all ranks get SIGTERM and are started anew.",
    )
    environment = forms.ChoiceField(help_text="The packages your code finds installed.")
    time_amount = forms.IntegerField(
        label="Longest time",
        min_value=1,
        max_value=100_000,
        help_text="The job is stopped after this, so that a hanging one blocks nobody.",
    )
    time_unit = forms.TypedChoiceField(label="Unit", choices=UNITS, coerce=int)

    arguments = forms.CharField(
        required=False,
        max_length=20_000,
        widget=forms.TextInput(attrs={"class": "mono", "placeholder": "--epochs 3 --lr 0.1"}),
        help_text="Written after the file's name. Quote what contains spaces.",
    )
    env_vars = forms.CharField(
        label="Environment variables",
        required=False,
        max_length=100_000,
        widget=forms.Textarea(attrs={"class": "mono", "rows": 3, "placeholder": "NAME=value"}),
        help_text="One NAME=value per line. Members of the project can read them: put no passwords here.",
    )
    retries = forms.IntegerField(
        min_value=0,
        max_value=services.MAX_RETRIES,
        help_text="How often to start again when your code fails. Lost nodes do not count.",
    )
    priority = forms.IntegerField(
        min_value=-services.MAX_PRIORITY,
        max_value=services.MAX_PRIORITY,
        help_text="Higher goes first, 0 is usual. Go below 0 to let others pass.",
    )
    resumable = forms.BooleanField(
        label="It can go on after a stop",
        required=False,
        help_text="For code that writes checkpoints to /checkpoints and begins from the newest. Such a job may be stopped to make room for others and goes on later.",
    )
    tier = forms.ChoiceField(
        choices=Job.Tier.choices,
        help_text="Basic jobs make way for the others. Premium ones are the last to do so and need an admin's permission.",
    )
    opportunistic = forms.BooleanField(
        label="Only on GPUs that nobody else wants",
        required=False,
        help_text="It starts while GPUs are idle and is the first to go. If it cannot go on after a stop, it starts over.",
    )
    mode = forms.ChoiceField(
        label="Updates are made",
        required=False,
        choices=[("", "as the code says"), *Job.Mode.choices],
        help_text="For code that uses schedulearn_train, where ranks are not equally fast. All but the first two need torchrun.",
    )
    restarts_without_progress = forms.IntegerField(
        label="Restarts without progress",
        required=False,
        min_value=RESTARTS[0],
        max_value=RESTARTS[1],
        help_text="For elastic Horovod jobs: after so many restarts in a row without a commit the job fails. "
        f"Empty: the lab's setting, {settings.RESTARTS_WITHOUT_PROGRESS}.",
    )
    silent_rank_minutes = forms.IntegerField(
        label="Minutes without output until a notice",
        required=False,
        min_value=SILENCE[0],
        max_value=SILENCE[1],
        help_text="The job's page and a mail report a job that runs without output for so long. It is never stopped for "
        f"that; 0 switches the notice off. Empty: the lab's setting, {settings.SILENT_RANK_MINUTES}.",
    )
    deadline = forms.DateTimeField(
        label="Needed by",
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        help_text=f"When the result must be there ({settings.TIME_ZONE} time). Only some policies look at it; none can promise it.",
    )
    name = forms.CharField(
        required=False, max_length=80, help_text="To find it again. Without one it is called like its file."
    )
    description = forms.CharField(
        required=False,
        max_length=10_000,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="A note for yourself and the project's members.",
    )
    key = forms.CharField(widget=forms.HiddenInput, max_length=100)
    """Makes a form that is sent twice submit once."""

    FIRST = ("launcher", "entry", "command")
    SUGGESTED = frozenset(
        {"min_gpus", "max_gpus", "elastic", "environment", "time_amount", "time_unit", "resumable", "opportunistic"}
    )
    MORE = (
        "arguments",
        "env_vars",
        "retries",
        "resumable",
        "priority",
        "tier",
        "opportunistic",
        "mode",
        "deadline",
        "restarts_without_progress",
        "silent_rank_minutes",
        "name",
        "description",
    )

    def __init__(
        self,
        code: CodeVersion,
        data: Any = None,
        copy_of: Job | None = None,
        copied_env_vars: Mapping[str, str | None] | None = None,
    ) -> None:
        self.code = code
        self.environments = offered_environments()
        super().__init__(
            data, initial=_from_job(copy_of, copied_env_vars or {}) if copy_of else _from_guess(code, self.environments)
        )
        self.fields["entry"].choices = [("", "")] * (not _scripts(code)) + [(path, path) for path in _scripts(code)]  # type: ignore[attr-defined]
        self.fields["environment"].choices = [(each.key, environment_label(each)) for each in self.environments]  # type: ignore[attr-defined]
        for name, field in self.fields.items():
            if self.is_bound and name in self.errors:
                field.widget.attrs["aria-invalid"] = "true"

    def suggest(self, values: Mapping[str, str]) -> None:
        """Begins with these values, e.g. with a change that would let a copy start sooner."""
        self.initial.update({name: value for name, value in values.items() if name in self.SUGGESTED})

    @property
    def more(self) -> list[forms.BoundField]:
        return [self[name] for name in self.MORE]

    @property
    def more_is_open(self) -> bool:
        """Open when something in it is unusual or wrong, so that nothing is hidden."""
        if self.is_bound and any(name in self.errors for name in self.MORE):
            return True
        usual: dict[str, Any] = {"retries": 0, "priority": 0, "tier": Job.Tier.STANDARD}
        values = {name: self[name].value() for name in self.MORE}
        return any(
            value not in ("", None, False, usual.get(name), str(usual.get(name))) for name, value in values.items()
        )

    @property
    def chosen_environment(self) -> Environment | None:
        key = self["environment"].value()
        return next((each for each in self.environments if each.key == key), None)

    def clean_env_vars(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for number, line in enumerate(self.cleaned_data["env_vars"].splitlines(), 1):
            if not line.strip():
                continue
            name, sign, value = line.partition("=")
            if not sign:
                raise forms.ValidationError(f"Line {number} has no “=”. Write it as NAME=value.")
            found[name.strip()] = value
        return found

    def clean_arguments(self) -> tuple[str, ...]:
        try:
            return tuple(shlex.split(self.cleaned_data["arguments"]))
        except ValueError as error:
            raise forms.ValidationError(f"These arguments cannot be read: {error}. Check the quotes.") from error

    def clean(self) -> None:
        given = self.cleaned_data
        if given.get("launcher") == Job.Launcher.COMMAND:
            if not given.get("command", "").strip():
                self.add_error("command", "Write the command line to run.")
        elif "launcher" in given and "entry" in given and not given["entry"]:
            self.add_error("entry", "This code has no Python file. Choose “plain command” and write what to run.")

    def submission(self) -> Submission:
        """What the person asked for; the form must be valid."""
        given = self.cleaned_data
        is_command = given["launcher"] == Job.Launcher.COMMAND
        environment = next(each for each in self.environments if each.key == given["environment"])
        return Submission(
            code=self.code,
            environment=environment,
            launcher=given["launcher"],
            entry=given["command"].strip() if is_command else given["entry"],
            name=given["name"],
            description=given["description"],
            arguments=given["arguments"],
            env_vars=given["env_vars"],
            min_gpus=given["min_gpus"],
            max_gpus=given["max_gpus"],
            elastic=given["elastic"] and given["launcher"] != Job.Launcher.COMMAND,
            time_limit_seconds=given["time_amount"] * given["time_unit"],
            retries=given["retries"],
            priority=given["priority"],
            resumable=given["resumable"],
            tier=given["tier"],
            opportunistic=given["opportunistic"],
            deadline=given["deadline"],
            mode=given["mode"],
            restarts_without_progress=given["restarts_without_progress"],
            silent_rank_minutes=given["silent_rank_minutes"],
        )

    def refuse(self, refusal: Refused) -> None:
        """Shows a refusal where it belongs."""
        name = FIELD_OF.get(refusal.field, refusal.field)
        if name == "entry" and self.cleaned_data.get("launcher") == Job.Launcher.COMMAND:
            name = "command"
        if name in self.fields:
            self.fields[name].widget.attrs["aria-invalid"] = "true"
            self.add_error(name, refusal.message)
        else:
            self.add_error(None, refusal.message)


def _scripts(code: CodeVersion) -> list[str]:
    """Python files, the likeliest entries first."""
    candidates: Sequence[str] = code.guess.get("candidates", [])
    paths = [file["path"] for file in code.files if file["path"].endswith(".py")]
    likely = [path for path in candidates if path in paths]
    return likely + [path for path in paths if path not in likely]


def _from_guess(code: CodeVersion, environments: Sequence[Environment]) -> dict[str, Any]:
    guess: Mapping[str, Any] = code.guess
    launcher = guess.get("launcher") or Job.Launcher.COMMAND
    entry = str(guess.get("entry") or "")
    elastic = bool(guess.get("elastic"))
    most = services.lab_gpus()
    several = launcher != Job.Launcher.COMMAND and (most == 0 or most > 1)
    best = best_environment(guess, environments)
    return {
        "launcher": launcher,
        "entry": entry,
        "command": command_for(guess),
        "min_gpus": 1,
        "max_gpus": 2 if several else 1,
        "elastic": elastic,
        "environment": best.key if best else "",
        "time_amount": 4,
        "time_unit": 3600,
        "retries": 0,
        "priority": 0,
        "tier": Job.Tier.STANDARD,
        "key": uuid.uuid4().hex,
    }


def command_for(guess: Mapping[str, Any]) -> str:
    """The command line that runs what inspection found; empty when it found nothing."""
    entry = str(guess.get("entry") or "")
    if not entry or (guess.get("launcher") == Job.Launcher.COMMAND and " " in entry):
        return entry
    return f"python {shlex.quote(entry)}"


def best_environment(guess: Mapping[str, Any], environments: Sequence[Environment]) -> Environment | None:
    return min(environments, key=lambda each: _unfitness(guess, each), default=None)


def _unfitness(guess: Mapping[str, Any], environment: Any) -> tuple[int, bool, int]:
    """Few missing packages first, then those that some node has ready."""
    missing = len(inspection.missing_modules(dict(guess), environment.packages))
    missing += guess.get("launcher") == Job.Launcher.HOROVOD and "horovod" not in environment.packages
    return missing, not environment.ready_on, environment.position


def _from_job(job: Job, env_vars: Mapping[str, str | None]) -> dict[str, Any]:
    is_command = job.launcher == Job.Launcher.COMMAND
    unit = next((seconds for seconds, _ in reversed(UNITS) if job.time_limit_seconds % seconds == 0), 60)
    return {
        "launcher": job.launcher,
        "entry": "" if is_command else job.entry,
        "command": job.entry if is_command else "",
        "min_gpus": job.min_gpus,
        "max_gpus": job.max_gpus,
        "elastic": job.elastic,
        "environment": job.environment.key,
        "time_amount": -(-job.time_limit_seconds // unit),  # rounded up: a copy has no less time
        "time_unit": unit,
        "arguments": shlex.join(job.arguments),
        "env_vars": "\n".join(f"{name}={value}" for name, value in env_vars.items() if value is not None),
        "retries": job.retries,
        "priority": job.priority,
        "resumable": job.resumable,
        "tier": job.tier,
        "opportunistic": job.opportunistic,
        "deadline": job.deadline if job.deadline and job.deadline > timezone.now() else None,
        "mode": job.mode,
        "restarts_without_progress": job.restarts_without_progress,
        "silent_rank_minutes": job.silent_rank_minutes,
        "name": job.name,
        "description": job.description,
        "key": uuid.uuid4().hex,
    }


def warnings_for(code: CodeVersion, environment: Environment | None) -> list[dict[str, Any]]:
    """What looks wrong before it runs. None of it stops anybody."""
    found = list(code.guess.get("warnings", []))
    if environment is not None:
        found += inspection.missing_modules(code.guess, environment.packages)
    return found


def specification(job: Job, user: User) -> dict[str, Any]:
    """What was asked for, in the words of the API, to be read and copied, as far as this person may read it."""
    asked = services.submission_of(job)
    kept = {name: getattr(asked, name) for name in Submission.__slots__}
    return {
        **kept,
        "project": job.project_id,
        "code": job.code.number,
        "code_sha256": job.code.sha256,
        "environment": job.environment.key,
        "arguments": list(asked.arguments),
        "deadline": asked.deadline.isoformat() if asked.deadline else None,
        "env_vars": services.env_vars_for(user, job),
    }
