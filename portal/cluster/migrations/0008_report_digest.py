from django.db import migrations, models


class Migration(migrations.Migration):
    """Name the field for what it is; its column stays."""

    dependencies = [
        ("cluster", "0007_installation"),
    ]

    operations = [
        migrations.AlterField(
            model_name="node",
            name="said",
            field=models.CharField(blank=True, db_column="said", default="", max_length=64),
        ),
        migrations.RenameField(model_name="node", old_name="said", new_name="report_digest"),
    ]
