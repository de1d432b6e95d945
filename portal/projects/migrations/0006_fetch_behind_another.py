from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('projects', '0005_commit_times'),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='gitfetch',
            name='one_git_fetch_of_a_project',
        ),
        migrations.AddConstraint(
            model_name='gitfetch',
            constraint=models.UniqueConstraint(condition=models.Q(('state', 'running')), fields=('project',), name='one_running_git_fetch_of_a_project'),
        ),
        migrations.AddConstraint(
            model_name='gitfetch',
            constraint=models.UniqueConstraint(condition=models.Q(('state', 'waiting')), fields=('project',), name='one_waiting_git_fetch_of_a_project'),
        ),
    ]
