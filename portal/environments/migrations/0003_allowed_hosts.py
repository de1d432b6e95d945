"""Adds the hosts that admins allow to jobs."""

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('environments', '0002_recipes_locks_and_builds'),
        ('projects', '0001_initial'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='AllowedHost',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('host', models.CharField(max_length=260)),
                ('internal', models.BooleanField(default=False)),
                ('note', models.CharField(blank=True, max_length=200)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('created_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('environment', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='allowed_hosts', to='environments.environment')),
                ('project', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='allowed_hosts', to='projects.project')),
            ],
            options={
                'ordering': ['host', 'pk'],
                'constraints': [models.CheckConstraint(condition=models.Q(('project', None), ('environment', None), _connector='OR'), name='allowed_host_of_a_project_or_an_environment'), models.UniqueConstraint(condition=models.Q(('environment', None), ('project', None)), fields=('host',), name='allowed_host_once_in_the_lab'), models.UniqueConstraint(condition=models.Q(('project__isnull', False)), fields=('host', 'project'), name='allowed_host_once_in_a_project'), models.UniqueConstraint(condition=models.Q(('environment__isnull', False)), fields=('host', 'environment'), name='allowed_host_once_in_an_environment')],
            },
        ),
    ]
