"""Plain commands may have 4,000 characters: a line with a dozen options has more than 255."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0022_shell_commands")]

    operations = [migrations.AlterField("job", "entry", models.CharField(max_length=4000))]
