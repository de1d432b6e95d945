"""The text that searches of jobs look into, filled for the jobs of earlier releases."""

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

from portal.names import search_key
from portal.search import SearchTextField

ROWS_AT_ONCE = 500


def fill(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    jobs = apps.get_model("jobs", "Job").objects
    texts = jobs.order_by("pk").values_list("pk", "name", "entry", "arguments", "description")
    last = 0
    while rows := list(texts.filter(pk__gt=last)[:ROWS_AT_ONCE]):
        for pk, name, entry, arguments, description in rows:
            text = search_key("\n".join((name, entry, " ".join(map(str, arguments)), description)))
            jobs.filter(pk=pk).update(search_text=text)
        last = rows[-1][0]


class Migration(migrations.Migration):
    dependencies = [("jobs", "0023_long_commands")]

    operations = [
        migrations.AddField("job", "search_text", SearchTextField()),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
