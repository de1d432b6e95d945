"""One zip with all that the portal stores about a person, as JSON and text.

Each relation to a user gives a file with its rows, so that a new table is in the export by itself. Values that open something, such as
digests of tokens and encrypted values, are left out. The zip is written piece by piece: memory does not grow with what is stored.
"""

import json
import zipfile
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time
from typing import IO, Any
from uuid import UUID

from django.apps import apps
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Field, Model, QuerySet
from django.utils import timezone

from portal.accounts.models import User
from portal.jobs import logs
from portal.jobs.models import Attempt, Job, JobEvent, LogStream, MetricPoint, Output
from portal.jobs.spec import FIELDS, submission_of

NEVER = frozenset(
    (
        "password", "session_salt", "name_key", "token_digest", "next_token_digest", "prefix", "secret", "search_text",
        "session_data", "session_key", "hook",
    )
)  # fmt: skip
"""Names of columns that open something, or repeat another one for searches."""
OF_OTHERS = frozenset(("deleted_by", "decided_by", "changed_by", "cancelled_by", "access_by", "by"))
"""Relations of what a person did to things of others: the export has the numbers of the rows alone."""
PLAIN = (str, int, float, bool, dict, list, datetime, date, time, UUID)
BATCH = 500
README = """Data of {name} in {portal}, exported on {date}.

account.json      the account, with groups
tables/           one file for each way in which rows of the portal refer to this person, named app.Table.column
jobs/NUMBER/      each job: its specification, attempts, history, list of outputs, curves (JSON lines), and log as text

Left out: values of secrets, tokens and passwords, which open something; the files that jobs left (the pages have them as zips),
and the code (on the page of each version).
"""


def write(user: User, file: IO[bytes], portal: str = "Schedulearn") -> None:
    """Write the zip to a file, which need not be seekable."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        about = README.format(name=user, portal=portal, date=timezone.now().date())
        archive.writestr("README.txt", about)
        account = _values(user) | {"groups": sorted(user.groups.values_list("name", flat=True))}
        archive.writestr("account.json", _json(account, indent=1))
        for name, rows in _tables(user):
            brief = name.rpartition(".")[2] in OF_OTHERS or name.startswith("whatif.")
            values = ({"id": row.pk} if brief else _values(row) for row in rows.iterator(BATCH))
            _write_rows(archive, f"tables/{name}.json", values)
        for job in Job.objects.filter(submitted_by=user, erased_at=None).order_by("pk").iterator(BATCH):
            _write_job(archive, job)


def _json(value: Any, **options: Any) -> str:
    return json.dumps(value, cls=DjangoJSONEncoder, ensure_ascii=False, **options)


def _tables(user: User) -> Iterator[tuple[str, QuerySet[Any]]]:
    """Yield the rows of all relations to a user but the jobs, which have folders of their own."""
    for model in apps.get_models():
        for field in model._meta.get_fields():
            if isinstance(field, Field) and field.is_relation and field.related_model is User and model is not User:
                if (model, field.name) == (Job, "submitted_by"):
                    continue
                rows = model._base_manager.filter(**{field.name: user.pk}).order_by("pk")
                if rows.exists():
                    yield f"{model._meta.label}.{field.name}", rows


def _values(row: Model) -> dict[str, Any]:
    """Return the columns of a row by their names, without those that open something."""
    found = {}
    for field in row._meta.concrete_fields:
        if field.name not in NEVER and not field.name.startswith("sealed") and not field.name.endswith("_digest"):
            value = getattr(row, field.attname)
            found[field.attname] = value if value is None or isinstance(value, PLAIN) else str(value)
    return found


def _write_rows(archive: zipfile.ZipFile, name: str, rows: Iterable[dict[str, Any]]) -> None:
    """Write a JSON list with one row a line."""
    with archive.open(name, "w", force_zip64=True) as file:
        file.write(b"[")
        for number, row in enumerate(rows):
            file.write(f"{',' * (number > 0)}\n{_json(row)}".encode())
        file.write(b"\n]\n")


def _write_job(archive: zipfile.ZipFile, job: Job) -> None:
    folder = f"jobs/{job.pk}"
    asked = submission_of(job)
    spec = {name: getattr(asked, name) for name in ("launcher", "entry", *FIELDS)}
    about = {
        "specification": spec | {"env_vars": dict(job.env_vars)},
        **{
            name: getattr(job, name)
            for name in ("id", "name", "state", "submitted_at", "started_at", "finished_at", "kept", "deleted_at")
        },
        "project": job.project_id,
        "code": job.code_id,
        "environment": job.environment_id,
    }
    archive.writestr(f"{folder}/job.json", _dump(about))
    parts: tuple[tuple[str, QuerySet[Any], Callable[[Any], dict[str, Any]]], ...] = (
        ("attempts", Attempt.objects.filter(job=job), _values),
        ("history", JobEvent.objects.filter(job=job), lambda row: _values(row) | {"sentence": row.sentence}),
        ("outputs", Output.objects.filter(job=job), lambda row: {"path": row.path, "bytes": row.size}),
        ("curves", MetricPoint.objects.filter(attempt__job=job), _values),
    )
    for name, rows, values in parts:
        if rows.exists():
            _write_rows(archive, f"{folder}/{name}.json", map(values, rows.order_by("pk").iterator(BATCH)))
    streams = LogStream.printed.filter(container__attempt__job=job).select_related("container__attempt")
    for row in streams.order_by("container__attempt__number", "container__index", "name"):
        name = f"{folder}/log-attempt-{row.container.attempt.number}-{row.container.index}-{row.name}.txt"
        with archive.open(name, "w", force_zip64=True) as file:
            try:
                for piece in logs.pieces(row):
                    file.write(piece)
            except OSError:
                file.write(b"(the log is gone)\n")


def _dump(about: dict[str, Any]) -> str:
    """Return a job as JSON; sets and other collections of its specification as lists."""
    return json.dumps(about, indent=1, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, (set, frozenset, tuple)):
        return sorted(value)
    return DjangoJSONEncoder().default(value)
