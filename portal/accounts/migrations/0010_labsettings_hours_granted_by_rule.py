"""Lets a lab grant more time without an admin; none unless that is set."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0009_invite_recovers'),
    ]

    operations = [
        migrations.AddField(
            model_name='labsettings',
            name='hours_granted_by_rule',
            field=models.PositiveSmallIntegerField(default=0),
        ),
    ]
