"""The fields of a job are declared once: the column, the form, the API, copies and docs/user/job-fields.md agree with ``spec``."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django import forms
from django.db import models
from django.http import QueryDict
from django.utils import timezone

from portal.jobs import job_datasets, services
from portal.jobs.form_fields import DatasetsField
from portal.jobs.forms import JobForm
from portal.jobs.models import Job
from portal.jobs.serializers import JobDetailSerializer, JobSerializer, SubmitSerializer
from portal.jobs.spec import DEFAULTS, FIELDS, ROWS, Kind, Submission, label_of, submission_of
from portal.storage.models import Dataset, DatasetVersion
from tests.portal.jobs_world import make_job, make_project, make_user

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "user" / "job-fields.md"
BEGIN, END = "<!-- fields -->\n", "<!-- end of fields -->"


def unusual(name: str) -> Any:
    """Return a value that is not the default."""
    about = FIELDS[name]
    match about.kind:
        case Kind.INTEGER:
            assert about.limits
            return next(value for value in range(*about.limits)[1:] if value != DEFAULTS[name])
        case Kind.FLAG:
            return True
        case Kind.CHOICE:
            assert about.choices
            return next(value for value in reversed(about.choices.values) if value != DEFAULTS[name])
        case Kind.MOMENT:
            return (timezone.now() + timedelta(days=3)).replace(second=0, microsecond=0)
        case Kind.ARGUMENTS:
            return ("--name", "two words", "")
        case Kind.VARIABLES:
            return {"SEED": "3", "EMPTY": ""}
        case Kind.WORDS:
            return ("baseline", "lr-0.1")
        case Kind.JOB:
            return Job.objects.order_by("pk").values_list("pk", flat=True)[0]
        case Kind.NAMES:
            return ("NVIDIA T4", "NVIDIA A100")
        case Kind.DATASETS:
            return ({"dataset": Dataset.objects.get().pk, "version": 1, "path": "../data", "writable": True},)
        case Kind.LONG_TEXT:
            return "first line\nsecond line"
        case _:
            return "a name"


def unusual_submission(job: Job) -> Submission:
    values = {name: unusual(name) for name in FIELDS}
    values |= {"max_gpus": values["min_gpus"] + 1, "time_limit_seconds": 2 * 86_400}
    return Submission(code=job.code, environment=job.environment, launcher="torchrun", entry="train.py", **values)


def docs_table() -> str:
    """Return the table of fields as docs/user/job-fields.md has it."""
    rows = ["| field | on the form | value | default | |", "|---|---|---|---|---|"]
    for name, about in FIELDS.items():
        low, high = about.limits or (None, None)
        value = about.kind.value
        if about.choices:
            value = ", ".join(f"`{choice}`" for choice in about.choices.values)
        elif about.kind is Kind.INTEGER:
            value = f"{low:,} to {high:,}"
        elif about.limits:
            value += f", at most {high:,}" + (" characters" if about.kind in (Kind.TEXT, Kind.LONG_TEXT) else "")
        default = DEFAULTS[name]
        shown = "" if default in ((), {}, "", None) else f"`{str(default).lower()}`"
        rows.append(f"| `{name}` | {label_of(name)} | {value} | {shown} | {about.api_help or about.help} |")
    return "\n".join(rows) + "\n"


def test_the_document_has_the_table_of_fields() -> None:
    text = DOCUMENT.read_text()
    assert text.partition(BEGIN)[2].partition(END)[0] == docs_table(), f"write it as\n{docs_table()}"


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in ROWS])
def test_a_column_can_hold_what_is_declared(name: str) -> None:
    column, about = Job._meta.get_field(name), FIELDS[name]
    assert isinstance(column, models.Field)
    assert column.null == about.optional
    if about.choices:
        assert list(column.choices or ()) == list(about.choices.choices)
        assert column.max_length and column.max_length >= max(map(len, about.choices.values))
    elif about.kind is Kind.INTEGER and about.limits:
        largest = 32_767 if "Small" in column.get_internal_type() else 2**31 - 1
        assert about.limits[1] <= largest
        assert about.limits[0] >= 0 or not column.get_internal_type().startswith("Positive")
    elif about.kind is Kind.TEXT and about.limits:
        assert (column.max_length or 0) >= about.limits[1]


@pytest.mark.django_db
class TestFields:
    @pytest.fixture
    def job(self) -> Job:
        alice = make_user("alice")
        dataset = Dataset.objects.create(owner=alice, name="digits")
        ready = {"state": DatasetVersion.State.READY, "sha256": "0" * 64}
        DatasetVersion.objects.create(dataset=dataset, number=1, created_by=alice, **ready)
        return make_job(make_project(alice))

    def stored(self, job: Job) -> tuple[Job, Submission]:
        asked = unusual_submission(job)
        return services._create_job(job.submitted_by, job.project, asked, None), asked

    def test_each_is_stored_and_read_back(self, job: Job) -> None:
        copy, asked = self.stored(job)
        assert submission_of(Job.objects.get(pk=copy.pk)) == asked

    def test_each_is_in_the_form_and_copied_by_it(self, job: Job) -> None:
        copy, asked = self.stored(job)
        form = JobForm(copy.code, None, copy, asked.env_vars, user=job.submitted_by)
        sent = QueryDict(mutable=True)
        for bound in form:
            value = bound.value()
            if isinstance(bound.field, forms.MultipleChoiceField):
                sent.setlist(bound.html_name, list(value))
            elif isinstance(bound.field, DatasetsField):
                sent.update(
                    {"datasets-0": "alice/digits:1", "datasets-0-path": "../data", "datasets-0-mode": "writable"}
                )
                assert value == [{"reference": "alice/digits:1", "path": "../data", "writable": True}]
            elif value not in (None, False):
                sent[bound.html_name] = value.strftime("%Y-%m-%dT%H:%M") if hasattr(value, "strftime") else str(value)
        assert asked.deadline
        sent["deadline"] = timezone.localtime(asked.deadline).strftime("%Y-%m-%dT%H:%M")
        again = JobForm(copy.code, sent)
        assert again.is_valid(), again.errors
        typed = again.submission()
        assert [row.choice for row in job_datasets.resolve(job.submitted_by, typed)] == list(asked.datasets)
        assert replace(typed, datasets=asked.datasets) == asked

    def test_each_is_accepted_and_answered_by_the_api(self, job: Job) -> None:
        copy, asked = self.stored(job)
        values = {name: getattr(asked, name) for name in FIELDS}
        sent = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        request = SubmitSerializer(data={"project": job.project_id, **sent})
        assert request.is_valid(), request.errors
        assert {name: request.validated_data[name] for name in FIELDS} == sent
        answer = JobDetailSerializer(copy, context={"env_vars": copy.env_vars}).data
        shown = {name: answer[name] for name in FIELDS}
        assert {**shown, "deadline": asked.deadline} == {**sent, "deadline": asked.deadline}
        assert set(JobSerializer(copy).data) >= {name for name, about in FIELDS.items() if about.in_lists}

    def test_each_is_in_the_specification(self, job: Job) -> None:
        copy, asked = self.stored(job)
        found = services.specification(copy, copy.submitted_by)
        assert {name: found[name] for name in FIELDS if name != "deadline"} == {
            name: getattr(asked, name) for name in FIELDS if name != "deadline"
        }
