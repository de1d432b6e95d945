"""Forgets the model Ring, which is jobs.RankGroup now. The table stays."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("gauges", "0003_ring_at"), ("jobs", "0016_rank_group")]

    operations = [migrations.SeparateDatabaseAndState(state_operations=[migrations.DeleteModel("Ring")])]
