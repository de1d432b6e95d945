from datetime import datetime, timezone

from django.db import migrations


def forget_impossible_times(apps, schema_editor):
    """Times of the year 9999 are out of range in zones east of UTC."""
    rows = apps.get_model('projects', 'VersionCommit').objects
    rows.filter(committed_at__gte=datetime(2100, 1, 1, tzinfo=timezone.utc)).update(committed_at=None)


class Migration(migrations.Migration):

    dependencies = [
        ('projects', '0004_git_access_by'),
    ]

    operations = [
        migrations.RunPython(forget_impossible_times, migrations.RunPython.noop),
    ]
