import importlib

from django.db import migrations

from portal.jobs.word_lists import WordsField

guards = importlib.import_module("portal.jobs.migrations.0003_guards")


class Migration(migrations.Migration):
    dependencies = [("jobs", "0016_rank_group")]

    operations = [
        migrations.AddField("job", "tags", WordsField()),
        # SQLite has rebuilt the table and lost its triggers.
        migrations.RunPython(guards.guard, guards.unguard),
    ]
