"""Half of each page of the jobs' table is kept free for newer versions of its rows.

When a job starts, all behind it move up in the queue. A new version beside the old one leaves the table's eleven indexes
as they are, which makes a third of the time. Pages that are there already keep their fill. SQLite updates in place.
"""

from collections.abc import Callable

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps


def fill(percent: int) -> Callable[[StateApps, BaseDatabaseSchemaEditor], None]:
    def run(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
        if editor.connection.vendor == "postgresql":
            editor.execute(f"ALTER TABLE jobs_job SET (fillfactor = {percent})")

    return run


class Migration(migrations.Migration):
    dependencies = [("jobs", "0007_gpu_fault")]
    operations = [migrations.RunPython(fill(50), fill(100))]
