from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate

if TYPE_CHECKING:
    from runners.environments.images import Entry


class SchedulerConfig(AppConfig):
    name = "portal.scheduler"
    label = "control"  # tables and migrations bear it, from before the app was called scheduler
    verbose_name = "Scheduler"

    def ready(self) -> None:
        post_migrate.connect(offer_environments, sender=self)


def offer_environments(using: str = "default", **kwargs: Any) -> None:
    """Update the rows of the curated environments: add new ones, update changed ones, retire those that were dropped."""
    from portal.environments.models import Build, Environment
    from portal.environments.recipes import recipe_hash
    from runners.environments.images import catalogue

    entries = [entry for entry in catalogue() if not entry.hidden]
    rows = Environment.objects.using(using)
    for entry in sorted(entries, key=lambda entry: bool(entry.base)):  # bases first
        base = rows.get(key=entry.base) if entry.base else None
        facts: dict[str, Any] = {
            "title": entry.title,
            "description": entry.description,
            "packages": [*(base.packages if base else ()), *entry.packages],
            "position": entry.position,
            "on_demand": entry.on_demand,
            "retired": False,
            "pins": [] if entry.base else _pins(entry),
        }
        if base is not None:
            facts |= {"base": base, "lines": list(entry.lines)}
            facts["recipe"] = recipe_hash(Environment(base=base, lines=facts["lines"]))
            if Build.objects.using(using).filter(recipe=facts["recipe"], state=Build.State.DONE).exists():
                del facts["packages"]  # the build knows better
        rows.update_or_create(key=entry.key, defaults=facts)
    rows.filter(created_by=None).exclude(key__in=[entry.key for entry in entries]).update(retired=True)


def _pins(entry: "Entry") -> list[str]:
    return [*entry.lines, *([f"horovod=={entry.horovod.version}"] if entry.horovod else [])]
