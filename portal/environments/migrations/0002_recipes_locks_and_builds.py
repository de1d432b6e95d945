"""Adds recipes to environments, and the locks and builds of their layers."""

import django.db.models.deletion
import django.utils.timezone
import portal.message_field
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('cluster', '0011_environments_app'),
        ('environments', '0001_initial'),
        ('projects', '0001_initial'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Lock',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(max_length=64, unique=True)),
                ('kind', models.CharField(max_length=120)),
                ('text', models.TextField()),
                ('modules', models.JSONField(default=list)),
                ('unpacked_bytes', models.PositiveBigIntegerField()),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('archive_sha256', models.CharField(blank=True, max_length=64)),
                ('archive_bytes', models.PositiveBigIntegerField(default=0)),
                ('used_at', models.DateTimeField(default=django.utils.timezone.now)),
            ],
        ),
        migrations.AddField(
            model_name='environment',
            name='base',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='extended_by', to='environments.environment'),
        ),
        migrations.AddField(
            model_name='environment',
            name='constraints',
            field=models.JSONField(default=list),
        ),
        migrations.AddField(
            model_name='environment',
            name='created_at',
            field=models.DateTimeField(default=django.utils.timezone.now),
        ),
        migrations.AddField(
            model_name='environment',
            name='created_by',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='environment',
            name='generation',
            field=models.PositiveIntegerField(default=1),
        ),
        migrations.AddField(
            model_name='environment',
            name='horovod',
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name='environment',
            name='indexes',
            field=models.JSONField(default=list),
        ),
        migrations.AddField(
            model_name='environment',
            name='lines',
            field=models.JSONField(default=list),
        ),
        migrations.AddField(
            model_name='environment',
            name='project',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='environments', to='projects.project'),
        ),
        migrations.AddField(
            model_name='environment',
            name='python',
            field=models.CharField(blank=True, max_length=10),
        ),
        migrations.AddField(
            model_name='environment',
            name='recipe',
            field=models.CharField(blank=True, db_index=True, max_length=64),
        ),
        migrations.AddField(
            model_name='environment',
            name='requested_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='environment',
            name='source_builds',
            field=models.BooleanField(default=False),
        ),
        migrations.CreateModel(
            name='PackageSettings',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('allowed_sources', models.JSONField(default=list)),
                ('source_builds', models.BooleanField(default=False)),
            ],
            options={
                "verbose_name_plural": "package settings",
                'constraints': [models.CheckConstraint(condition=models.Q(('pk', 1)), name='one_row_of_package_settings')],
            },
        ),
        migrations.CreateModel(
            name='Build',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('recipe', models.CharField(max_length=64)),
                ('kind', models.CharField(max_length=120)),
                ('generation', models.PositiveIntegerField(default=1)),
                ('node_name', models.CharField(max_length=80)),
                ('state', models.CharField(choices=[('running', 'running'), ('done', 'built'), ('failed', 'failed'), ('cancelled', 'cancelled'), ('lost', 'lost')], default='running', max_length=9)),
                ('progress_percent', models.PositiveSmallIntegerField(default=0)),
                ('message', portal.message_field.MessageField(blank=True)),
                ('started_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('renewed_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('cancelled_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('environment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='builds', to='environments.environment')),
                ('node', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='cluster.node')),
                ('lock', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='builds', to='environments.lock')),
            ],
            options={
                'ordering': ['-id'],
                'indexes': [models.Index(fields=['recipe', 'kind', '-id'], name='build_of_recipe_and_kind')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('state', 'running')), fields=('recipe', 'kind'), name='one_running_build_per_recipe_and_kind')],
            },
        ),
    ]
