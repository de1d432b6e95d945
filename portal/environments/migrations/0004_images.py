"""Adds environments that are images of registries: the image, what admins allow, and how nodes sign in."""

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('environments', '0003_allowed_hosts'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='environment',
            name='image',
            field=models.CharField(blank=True, max_length=300),
        ),
        migrations.AddField(
            model_name='lock',
            name='archive_wanted_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='lock',
            name='facts',
            field=models.JSONField(default=dict),
        ),
        migrations.CreateModel(
            name='ImageSettings',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('allowed', models.JSONField(default=list)),
                ('archives', models.CharField(choices=[('needed', 'for nodes that cannot pull them'), ('always', 'always'), ('never', 'never')], default='needed', max_length=6)),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('pk', 1)), name='one_row_of_image_settings')],
                'verbose_name_plural': 'image settings',
            },
        ),
        migrations.CreateModel(
            name='Registry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('host', models.CharField(max_length=255, unique=True)),
                ('user', models.CharField(blank=True, max_length=200)),
                ('sealed_token', models.TextField(blank=True)),
                ('insecure', models.BooleanField(default=False)),
                ('changed_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('changed_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name_plural': 'registries',
                'ordering': ['host'],
            },
        ),
    ]
