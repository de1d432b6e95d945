"""The actions of users on jobs: submit, cancel, hold, release, retry.

Each action records who did it and returns the job, or raises Refused with a sentence for the user. None needs the
scheduler to run.
"""

import hashlib
import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.models import Group
from django.db import IntegrityError, transaction
from django.utils import timezone

from portal.accounts.limits import limits_for, may_use_premium
from portal.accounts.models import User
from portal.cluster.models import GPU_OF_LAB, Gpu
from portal.cluster.slots import counted, lab_noun
from portal.jobs import (
    dependencies,
    events,
    gpu_choice,
    job_datasets,
    job_secrets,
    lifecycle,
    resources,
    rules,
    space_use,
)
from portal.jobs.events import Event
from portal.jobs.launch_lines import with_line_read
from portal.jobs.models import (
    FINISHED_STATES,
    MAX_ENTRY_LENGTH,
    WAITING_STATES,
    Attempt,
    IdempotencyKey,
    Job,
    JobDataset,
    StopReason,
)
from portal.jobs.names import default_name
from portal.jobs.permissions import env_vars_for, require_may_act
from portal.jobs.spec import (
    FIELDS,
    MAX_ARGUMENT_LENGTH,
    MAX_ARGUMENTS,
    MAX_GPUS,
    MAX_PRIORITY,
    MAX_RETRIES,
    OPTIONAL_NUMBERS,
    WORD_LISTS,
    Submission,
    as_columns,
    limits_of,
    submission_of,
)
from portal.jobs.survival import survival_rule_for
from portal.jobs.variables import check_variables
from portal.jobs.word_lists import MAX_WORD_LENGTH, invalid_word, normalise
from portal.names import is_unstorable, name_problem
from portal.projects.inspecting import entries
from portal.projects.models import Project
from portal.projects.services import code_is_gone, lock_code, require_member
from portal.refused import Refused
from portal.wake import wake_scheduler

MODES_WITHOUT_SERVER = (Job.Mode.BSP, Job.Mode.BSP_BALANCED)
"""The modes without a parameter server."""
LATEST_DEADLINE = datetime(3000, 1, 1, tzinfo=UTC)
"""A moment that has a date in every time zone."""


# --- submit ------------------------------------------------------------------------------------------------------


def submit(
    user: User,
    project: Project,
    submission: Submission,
    *,
    idempotency_key: str = "",
    body: bytes | None = None,
    copied_from: Job | None = None,
) -> Job:
    """Queue a job. The same key with the same body returns the same job; with another body it is a conflict."""
    require_member(user, project)
    body = _canonical_body(project, submission) if body is None else body
    if job := submitted_before(user, idempotency_key, body):
        return job
    submission, remarks = with_line_read(submission)
    check(project, submission)
    dependencies.check(user, project, submission)
    job_secrets.check(user, project, submission)
    if copied_from is None or submission.name != copied_from.name:  # a copy may keep what earlier releases allowed
        check_name(submission.name)
    if submission.tier == Job.Tier.PREMIUM and not may_use_premium(user):
        raise Refused("Premium jobs need an admin's permission. Choose standard, or ask an admin.", field="tier")
    try:
        with transaction.atomic():
            _check_limits(user, project, submission)
            lock_code(submission.code)
            job = _create_job(user, project, submission, copied_from)
            for remark in remarks:
                lifecycle.record(job, remark)
            if idempotency_key:
                IdempotencyKey.objects.create(user=user, key=idempotency_key, body_sha256=_body_digest(body), job=job)
    except IntegrityError:
        # Another request with the same key came at the same moment: return its job.
        if earlier := submitted_before(user, idempotency_key, body):
            return earlier
        raise
    return job


def _create_job(user: User, project: Project, asked: Submission, copied_from: Job | None) -> Job:
    values, datasets = as_columns(asked), job_datasets.resolve(user, asked)
    job = Job.objects.create(
        project=project,
        code=asked.code,
        environment=asked.environment,
        submitted_by=user,
        copied_from=copied_from,
        launcher=asked.launcher,
        entry=asked.entry,
        group=accounted_group(user, project),
        **values
        | {
            "name": asked.name.strip() or default_name(asked.launcher, asked.entry, asked.arguments),
            "description": asked.description.strip(),
        },
    )
    for row in datasets:
        row.job = job
    JobDataset.objects.bulk_create(datasets)
    lifecycle.record(job, events.Submitted(str(user), copied_from.pk if copied_from else None), user)
    wake_scheduler()
    return job


def accounted_group(user: User, project: Project) -> Group | None:
    """Return the group whose share a job uses: that of its owner; of several, the first that has the project's creator."""
    groups = list(user.groups.order_by("name"))
    if len(groups) > 1:
        shared = set(project.created_by.groups.values_list("pk", flat=True))
        return next((group for group in groups if group.pk in shared), groups[0])
    return groups[0] if groups else None


def job_with_key(user: User, key: str) -> Job | None:
    """Return the job that the user submitted with this key, whatever its values."""
    row = IdempotencyKey.objects.filter(user=user, key=key).select_related("job").first() if key else None
    return row.job if row else None


def submitted_before(user: User, key: str, body: bytes) -> Job | None:
    """Return the job that was submitted with this key, None if there is none. Raises Refused if its body was different."""
    if len(key) > 100 or "\0" in key:
        raise Refused("An Idempotency-Key has at most 100 characters.", field="idempotency_key")
    row = IdempotencyKey.objects.filter(user=user, key=key).select_related("job").first() if key else None
    if row is None:
        return None
    if row.body_sha256 != _body_digest(body):
        raise Refused("This Idempotency-Key was used for another job. Use a new key for a new job.", "conflict")
    return row.job


def _body_digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _canonical_body(project: Project, asked: Submission) -> bytes:
    values = {
        **{name: getattr(asked, name) for name in ("launcher", "entry", *FIELDS)},
        "project": project.pk,
        "code": asked.code.pk,
        "environment": asked.environment.pk,
        "env_vars": dict(asked.env_vars),
    }
    return json.dumps(values, sort_keys=True, default=str).encode()


def _check_limits(user: User, project: Project, asked: Submission) -> None:
    """Check the limits under the lock of their rows, so that two submissions cannot both take the last place."""
    limits = limits_for(user, lock=True)
    if all(limit.max_queued is None for limit in limits):
        waiting = Job.objects.filter(submitted_by=user, state__in=WAITING_STATES).count()
        if waiting >= settings.MAX_WAITING_JOBS:
            raise Refused(
                f"You may have at most {settings.MAX_WAITING_JOBS} jobs waiting, and {waiting} are. Cancel some, wait until "
                "some have started, or ask an admin for a limit of your own.",
                "limit",
            )
    for limit in limits:
        if limit.max_gpus is not None and asked.min_gpus > limit.max_gpus:
            max_gpus = counted(limit.max_gpus, lab_noun())
            raise Refused(
                f"{limit.name} may hold at most {max_gpus} at once. Ask for at most {limit.max_gpus}.",
                "limit",
                "min_gpus",
            )
        if limit.max_queued is not None:
            waiting = Job.objects.filter(submitted_by__in=limit.user_ids, state__in=WAITING_STATES).count()
            if waiting >= limit.max_queued:
                raise Refused(
                    f"{limit.name} may have at most {limit.max_queued} jobs waiting, and {waiting} are. "
                    "Cancel one, or wait until one has started.",
                    "limit",
                )
    space_use.require_space(user, project, limits)


# --- checks ------------------------------------------------------------------------------------------------------


def check(project: Project, asked: Submission) -> None:
    """Raise Refused for a job that could not run or is not allowed."""
    if asked.code.project_id != project.pk:
        raise Refused("This code version does not belong to this project.", field="code")
    if asked.code.deleted_at is not None:
        raise code_is_gone(asked.code)
    if asked.environment.retired:
        raise Refused("This environment is no longer offered. Choose another.", field="environment")
    if asked.environment.project_id not in (None, project.pk):
        raise Refused("This environment belongs to another project. Choose one of this project.", field="environment")
    if asked.launcher not in Job.Launcher.values:
        raise Refused(f"Choose a launcher: {', '.join(Job.Launcher.values)}.", field="launcher")
    _check_texts(asked)
    _check_entry(asked)
    _check_gpus(asked)
    _check_numbers(asked)
    gpu_choice.check(asked)
    resources.check(asked)
    _check_goals(asked)
    check_variables(asked.env_vars)
    _check_words(asked)


def check_values(asked: Submission, names: Collection[str]) -> None:
    """Raise Refused when one of these fields of a job that was submitted has a value that is not allowed."""
    _check_texts(asked)
    _check_numbers(asked)
    _check_words(asked)
    if "deadline" in names:  # that of a job that waits may have passed
        _check_goals(asked)


def check_name(name: str) -> None:
    if problem := name_problem(name):
        raise Refused(problem, field="name")


def _check_texts(asked: Submission) -> None:
    if len(asked.name.strip()) > 80:
        raise Refused("A name has at most 80 characters.", field="name")
    if len(asked.description) > 10_000:
        raise Refused("A description has at most 10,000 characters.", field="description")
    if len(asked.arguments) > MAX_ARGUMENTS or any(len(text) > MAX_ARGUMENT_LENGTH for text in asked.arguments):
        raise Refused(
            f"At most {MAX_ARGUMENTS} arguments of at most {MAX_ARGUMENT_LENGTH} characters each.", field="arguments"
        )
    for name, texts in (("name", (asked.name,)), ("description", (asked.description,)), ("arguments", asked.arguments)):
        if any(is_unstorable(text) for text in texts):
            raise Refused("This text has characters that cannot be stored.", field=name)


def _check_entry(asked: Submission) -> None:
    entry = asked.entry
    if not entry.strip() or len(entry) > MAX_ENTRY_LENGTH or is_unstorable(entry) or "\n" in entry:
        raise Refused(f"Enter what to run, in one line of at most {MAX_ENTRY_LENGTH:,} characters.", field="entry")
    if asked.launcher == Job.Launcher.COMMAND:
        try:
            words = shlex.split(entry)
        except ValueError as error:
            raise Refused(f"This command line cannot be read: {error}. Check the quotes.", field="entry") from error
        if not any(words):
            raise Refused("Enter what to run.", field="entry")
        return
    module = entries.module_of(entry)
    if module is None and not entry.endswith(".py"):
        raise Refused("The entry must be a Python file (.py), or a module: -m package.train.", field="entry")
    if entries.file_of(entry, {file["path"] for file in asked.code.files}) is None:
        raise Refused(
            f"There is no module {module!r} in this code version: Python would look for {' or '.join(entries.files_of(module))}."
            if module
            else f"There is no file {entry!r} in this code version. Choose one of its files.",
            field="entry",
        )


def _check_gpus(asked: Submission) -> None:
    if asked.min_gpus < 1:
        raise Refused(f"A job needs at least 1 {lab_noun()}.", field="min_gpus")
    if asked.max_gpus < asked.min_gpus:
        raise Refused(f"The maximum of {lab_noun()}s cannot be less than the minimum.", field="max_gpus")
    if asked.elastic and asked.launcher == Job.Launcher.COMMAND:
        sentence = "A plain command cannot be elastic. Choose Horovod or torchrun, or switch elastic off."
        raise Refused(sentence, field="elastic")
    in_lab = lab_gpus()
    if in_lab and asked.max_gpus > in_lab:
        raise Refused(f"The lab has {counted(in_lab, lab_noun())}. Ask for at most {in_lab}.", field="max_gpus")
    if asked.max_gpus > MAX_GPUS:
        raise Refused(f"Ask for at most {MAX_GPUS} GPUs.", field="max_gpus")


def lab_gpus() -> int:
    """Return the number of GPUs (or CPU slots) of all registered nodes; 0 before the first has joined."""
    return Gpu.objects.filter(GPU_OF_LAB).count()


def _check_numbers(asked: Submission) -> None:
    shortest, longest = limits_of("time_limit_seconds")
    if not shortest <= asked.time_limit_seconds <= longest:
        raise Refused("The time limit must be from 10 seconds to 30 days.", field="time_limit_seconds")
    if not 0 <= asked.retries <= MAX_RETRIES:
        raise Refused(f"Retries go from 0 to {MAX_RETRIES}.", field="retries")
    if not -MAX_PRIORITY <= asked.priority <= MAX_PRIORITY:
        raise Refused(f"Priority goes from {-MAX_PRIORITY} to {MAX_PRIORITY}.", field="priority")
    for name in OPTIONAL_NUMBERS:
        value, (low, high) = getattr(asked, name), limits_of(name)
        if value is not None and not low <= value <= high:
            raise Refused(f"Enter a number from {low} to {high:,}, or leave it empty.", field=name)


def _check_goals(asked: Submission) -> None:
    if asked.tier not in Job.Tier.values:
        raise Refused(f"Choose a tier: {', '.join(Job.Tier.values)}.", field="tier")
    if asked.opportunistic and asked.tier == Job.Tier.PREMIUM:
        raise Refused("A job that uses idle GPUs only cannot be premium. Choose one of the two.", field="tier")
    if asked.deadline is not None and asked.deadline <= timezone.now():
        raise Refused("This time has passed. Choose one in the future, or leave it empty.", field="deadline")
    if asked.deadline is not None and asked.deadline >= LATEST_DEADLINE:
        raise Refused("This time is too far away. Leave it empty instead.", field="deadline")
    if asked.mode not in ("", *Job.Mode.values):
        raise Refused(
            f"Choose how ranks make updates: {', '.join(Job.Mode.values)}, or leave it to the code.", field="mode"
        )
    if asked.mode not in ("", *MODES_WITHOUT_SERVER) and asked.launcher == Job.Launcher.HOROVOD:
        raise Refused(
            "Horovod's ranks can only make updates all together. Choose torchrun for this mode.", field="mode"
        )


def _check_words(asked: Submission) -> None:
    for name in WORD_LISTS:
        words, max_words = normalise(getattr(asked, name)), limits_of(name)[1]
        if len(words) > max_words:
            raise Refused(f"At most {max_words} of these.", field=name)
        if (unfit := invalid_word(words)) is not None:
            raise Refused(
                f"{unfit[:MAX_WORD_LENGTH]!r} cannot be used: at most {MAX_WORD_LENGTH} letters, digits and . + : / - _",
                field=name,
            )


# --- descriptions ------------------------------------------------------------------------------------------------


def specification(job: Job, user: User) -> dict[str, Any]:
    """Return the specification of a job with the names of the API; values of variables as in ``env_vars_for``."""
    asked = submission_of(job)
    return {
        **{name: getattr(asked, name) for name in ("launcher", "entry", *FIELDS)},
        "project": job.project_id,
        "code": job.code.number,
        "code_sha256": job.code.sha256,
        "environment": job.environment.key,
        "deadline": asked.deadline.isoformat() if asked.deadline else None,
        "env_vars": env_vars_for(user, job),
    }


def command_for(guess: Mapping[str, Any]) -> str:
    """Return the command line that inspection found, or the one that runs its entry; empty when it found none."""
    if command := str(guess.get("command") or ""):  # versions of earlier releases have none
        return command
    entry = entries.entry_of(guess)
    return shlex.join(["python", *entries.python_arguments(entry)]) if entry else ""


# --- act on a job ------------------------------------------------------------------------------------------------


@transaction.atomic
def cancel(user: User, job: Job) -> Job:
    """Cancel a job: at once if it waits, otherwise as soon as its containers have stopped.

    A job that has finished, or whose work is done, cannot be cancelled: a conflict.
    """
    require_may_act(user, job)
    row = lifecycle.get_locked(job.pk)
    attempt = _live_attempt(row)
    if row.state in FINISHED_STATES:
        raise Refused(f"This job has already ended: it is {row.get_state_display()}.", "conflict")
    if row.intent == Job.Intent.CANCEL:
        return row
    if attempt is not None and rules.work_is_done(list(attempt.containers.all()), survival_rule_for(row, attempt)):
        raise Refused("This job has just finished.", "conflict")
    _set_intent(row, Job.Intent.CANCEL)
    lifecycle.record(row, events.Cancelled(str(user)), user)
    if attempt is not None:
        lifecycle.stop_attempt(attempt, StopReason.CANCELLED)
    lifecycle.settle(row)
    return row


@transaction.atomic
def hold(user: User, job: Job) -> Job:
    """Put a job on hold until it is released. A running job is stopped, and restarts from its checkpoints later."""
    require_may_act(user, job)
    row = lifecycle.get_locked(job.pk)
    if row.state in FINISHED_STATES or row.intent == Job.Intent.CANCEL:
        raise Refused("This job has ended and cannot be held.", "conflict")
    return _hold(row, events.Held(str(user)), user)


@transaction.atomic
def hold_by_rule(job: Job, why: Event) -> Job:
    """Put a job on hold by a rule of the lab; ``why`` is for its history. A job that has finished or is being cancelled does not change."""
    row = lifecycle.get_locked(job.pk)
    if row.state in FINISHED_STATES or row.intent == Job.Intent.CANCEL:
        return row
    return _hold(row, why, None)


def _hold(row: Job, event: Event, actor: User | None) -> Job:
    if row.intent == Job.Intent.HOLD:
        return row
    _set_intent(row, Job.Intent.HOLD)
    lifecycle.record(row, event, actor)
    if attempt := _live_attempt(row):
        lifecycle.stop_attempt(attempt, StopReason.HELD)
    lifecycle.settle(row)
    return row


@transaction.atomic
def release(user: User, job: Job) -> Job:
    """Release a job that is on hold, so that it is queued again."""
    require_may_act(user, job)
    row = lifecycle.get_locked(job.pk)
    if row.intent != Job.Intent.HOLD or row.state in FINISHED_STATES:
        raise Refused("This job is not on hold.", "conflict")
    _set_intent(row, Job.Intent.RUN)
    lifecycle.record(row, events.Released(str(user)), user)
    lifecycle.settle(row)
    return row


def retry(user: User, job: Job, *, idempotency_key: str = "") -> Job:
    """Submit a copy of a job that has finished."""
    if job.state not in FINISHED_STATES:
        raise Refused("This job has not finished yet. Cancel it first, or submit a copy.", "conflict")
    asked = submission_of(job)
    if asked.deadline is not None and asked.deadline <= timezone.now():
        asked = replace(asked, deadline=None)
    return submit(user, job.project, asked, idempotency_key=idempotency_key, copied_from=job)


def _live_attempt(job: Job) -> Attempt | None:
    return job.attempts.filter(ended_at__isnull=True).first()


def _set_intent(job: Job, intent: Job.Intent) -> None:
    job.intent = intent
    job.save(update_fields=["intent"])
