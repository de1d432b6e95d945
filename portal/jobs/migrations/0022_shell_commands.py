"""Quotes the plain commands of earlier releases: these ran the words themselves, this release gives the line to a shell."""

import shlex

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

MEANS_SOMETHING_TO_A_SHELL = set("$`*?[]~;&|<>()#!{}")
MAX_LENGTH = 255


def quoted(line: str) -> str:
    """Return a line of which a shell makes the words that earlier releases made of this one."""
    if not MEANS_SOMETHING_TO_A_SHELL & set(line):
        return line
    try:
        return shlex.join(shlex.split(line))
    except ValueError:  # an earlier release accepted no such line
        return line


def quote(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    jobs = apps.get_model("jobs", "Job").objects
    for pk, entry in jobs.filter(launcher="command").values_list("pk", "entry").iterator():
        line = quoted(entry)
        if line != entry and len(line) <= MAX_LENGTH:
            jobs.filter(pk=pk).update(entry=line)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0021_messages")]

    operations = [migrations.RunPython(quote, migrations.RunPython.noop)]
