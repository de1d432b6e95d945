import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('gauges', '0001_initial'),
        ('jobs', '0005_ring'),
    ]

    operations = [
        migrations.CreateModel(
            name='Ring',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveIntegerField()),
                ('at', models.DateTimeField()),
                ('hosts', models.JSONField(default=list)),
                ('cost_seconds', models.FloatField(null=True)),
                ('driver', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='rings', to='jobs.container')),
            ],
            options={
                'ordering': ['driver', 'number'],
                'constraints': [models.UniqueConstraint(fields=('driver', 'number'), name='ring_number_once_per_driver')],
            },
        ),
    ]
