"""Gives problems that an agent of an earlier release reported their ``fix``, which was called otherwise."""

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

FORMER = "mend"


def name_fixes(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    """Change rows in which a problem has the former name only."""
    nodes = apps.get_model("cluster", "Node").objects
    for node in nodes.exclude(problems=[]):
        if any(FORMER in problem and "fix" not in problem for problem in node.problems):
            node.problems = [{**problem, "fix": problem.get("fix", problem.get(FORMER, ""))} for problem in node.problems]
            node.save(update_fields=["problems"])


class Migration(migrations.Migration):
    dependencies = [("cluster", "0008_report_digest")]

    operations = [migrations.RunPython(name_fixes, migrations.RunPython.noop)]
