"""Columns that the rows of the database never show, search, sort or filter by."""

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.contrib.auth.models import Group
from django.db import models

HIDDEN: dict[str, frozenset[str]] = {
    "accounts.user": frozenset({"password", "session_salt", "user_permissions"}),
    "accounts.invite": frozenset({"token_digest"}),
    "accounts.apitoken": frozenset({"prefix", "token_digest"}),
    "auth.group": frozenset({"permissions"}),
    "cluster.jointoken": frozenset({"token_digest"}),
    "cluster.node": frozenset({"token_digest", "next_token_digest", "report_digest"}),
    "deletion.erasure": frozenset({"names"}),  # of the person who is being erased
    "environments.build": frozenset({"recipe"}),
    "environments.environment": frozenset({"recipe"}),
    "environments.lock": frozenset({"archive_sha256"}),
    "environments.nodeenvironment": frozenset({"digest"}),
    "environments.registry": frozenset({"sealed_token"}),
    "home.walllink": frozenset({"token_digest"}),
    "jobs.attempt": frozenset({"secret"}),
    "jobs.checkpointset": frozenset({"files"}),  # with the SHA-256 of each piece
    "jobs.container": frozenset({"spec"}),  # with the environment variables and the key of the attempt
    "jobs.idempotencykey": frozenset({"key", "body_sha256"}),
    "jobs.job": frozenset({"env_vars", "search_text"}),
    "jobs.output": frozenset({"sha256"}),
    "schedules.schedule": frozenset({"values"}),  # with the environment variables of the job
    "notifications.channel": frozenset({"sealed_config"}),
    "notifications.notice": frozenset({"sealed_mail"}),
    "projects.codeversion": frozenset({"sha256", "files"}),  # the files with their SHA-256
    "projects.gitsource": frozenset({"sealed_token", "sealed_key", "sealed_secret", "hook"}),
    "secrets.secret": frozenset({"sealed"}),
    "storage.datasetversion": frozenset({"sha256"}),
    "storage.upload": frozenset({"sha256", "expected_sha256"}),
    "control.cycle": frozenset({"snapshot_sha256"}),
    "control.recording": frozenset({"content"}),  # with the whole snapshot of a cycle
    "control.schedulerconfig": frozenset({"snapshot_sha256"}),
}
"""By model. Sessions, permissions and tables of packages are not listed as a whole."""


def shown_models() -> list[type[models.Model]]:
    """Return the models whose rows are listed: all of the portal's, and Django's groups."""
    ours = (config for config in apps.get_app_configs() if config.name.startswith("portal."))
    return [Group, *(model for config in ours for model in config.get_models())]


def is_hidden(model: type[models.Model], name: str) -> bool:
    return name in HIDDEN.get(model._meta.label_lower, ())


def shown_fields(model: type[models.Model]) -> "Iterator[models.Field[Any, Any]]":
    """Yield the fields of a model that may be shown, those with several rows last."""
    for field in (*model._meta.concrete_fields, *model._meta.many_to_many):
        if not is_hidden(model, field.name):
            yield field
