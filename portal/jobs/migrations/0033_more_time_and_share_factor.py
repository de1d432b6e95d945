"""Keeps requests for more time, and how often the GPU time of an attempt counts in shares: that of earlier ones counts once."""

import importlib

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

guards = importlib.import_module("portal.jobs.migrations.0003_guards")


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0032_gpu_choice'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='attempt',
            name='share_factor',
            field=models.PositiveSmallIntegerField(default=1),
        ),
        migrations.CreateModel(
            name='TimeExtension',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('asked_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('seconds', models.PositiveIntegerField()),
                ('reason', models.TextField(blank=True)),
                ('status', models.CharField(choices=[('asked', 'waits for an admin'), ('granted', 'granted'), ('refused', 'refused'), ('withdrawn', 'withdrawn')], default='asked', max_length=9)),
                ('by_rule', models.BooleanField(default=False)),
                ('decided_at', models.DateTimeField(blank=True, null=True)),
                ('answer', models.TextField(blank=True)),
                ('delays', models.JSONField(blank=True, null=True)),
                ('delays_at', models.DateTimeField(blank=True, null=True)),
                ('asked_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('decided_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='time_extensions', to='jobs.job')),
            ],
            options={
                'ordering': ['-id'],
                'indexes': [models.Index(fields=['status', '-id'], name='time_extension_status')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('status', 'asked')), fields=('job',), name='one_open_time_extension_per_job'), models.CheckConstraint(condition=models.Q(('seconds__gte', 1)), name='time_extension_is_positive'), models.CheckConstraint(condition=models.Q(models.Q(('decided_at__isnull', True), ('status', 'asked')), models.Q(models.Q(('status', 'asked'), _negated=True), ('decided_at__isnull', False)), _connector='OR'), name='time_extension_decided_at_when_decided')],
            },
        ),
        # SQLite may have rebuilt the table of attempts and lost its triggers.
        migrations.RunPython(guards.guard, guards.unguard),
    ]
