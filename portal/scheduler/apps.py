from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class SchedulerConfig(AppConfig):
    name = "portal.scheduler"
    label = "control"  # tables and migrations bear it, from before the app was called scheduler
    verbose_name = "Scheduler"

    def ready(self) -> None:
        post_migrate.connect(offer_environments, sender=self)


def offer_environments(using: str = "default", **kwargs: Any) -> None:
    """Update the rows of the curated environments: add new ones, update changed ones, retire those that were dropped."""
    from portal.environments.models import Environment
    from runners.environments.images import catalogue

    entries = catalogue()
    rows = Environment.objects.using(using)
    for entry in entries:
        facts: dict[str, Any] = {
            "title": entry.title,
            "description": entry.description,
            "packages": list(entry.packages),
        }
        facts |= {"position": entry.position, "on_demand": entry.on_demand, "retired": False}
        rows.update_or_create(key=entry.key, defaults=facts)
    rows.exclude(key__in=[entry.key for entry in entries]).update(retired=True)
