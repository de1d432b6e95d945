"""Keeps the hosts that an attempt may reach, and those that its containers contacted."""

import importlib

import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models

guards = importlib.import_module("portal.jobs.migrations.0003_guards")


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0030_job_resources'),
    ]

    operations = [
        migrations.AddField(
            model_name='attempt',
            name='allowed_hosts',
            field=models.JSONField(default=list),
        ),
        migrations.CreateModel(
            name='NetworkUse',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('hosts', models.JSONField(default=list)),
                ('updated_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('container', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='network_use', to='jobs.container')),
            ],
        ),
        # SQLite may have rebuilt the table of attempts and lost its triggers.
        migrations.RunPython(guards.guard, guards.unguard),
    ]
