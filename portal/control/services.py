"""What admins do with the scheduler: look at the policy in force, and switch it."""

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.control.models import SchedulerConfig
from portal.wake import wake_scheduler
from scheduling import registry


def current_config() -> SchedulerConfig:
    """The configuration in force. Before anybody chose one: the default, not stored."""
    newest = SchedulerConfig.objects.order_by("-id").first()
    return newest or SchedulerConfig(policy=registry.DEFAULT, params=registry.complete(registry.DEFAULT, {}))


def config_in_force() -> SchedulerConfig:
    """The same as a row, for what refers to it."""
    config = current_config()
    if config.pk is None:
        config.save(force_insert=True)
    return config


def policy_name(config: SchedulerConfig) -> str:
    """As attempts remember it: ``elastic_fifo v3``."""
    return f"{config.policy} v{config.pk}"


def switch_policy(actor: User | None, key: str, params: Mapping[str, Any]) -> SchedulerConfig:
    """From the next turn on the scheduler decides by this policy; what runs goes on.

    Raises ValueError with plain sentences when there is no such policy or a parameter is wrong.
    """
    values = registry.complete(key, params)
    with transaction.atomic():
        before = current_config()
        config = SchedulerConfig.objects.create(policy=key, params=values, created_by=actor)
        audit(
            actor,
            "scheduler.policy_switched",
            registry.describe(key).title,
            before={"policy": before.policy, "params": before.params},
            after={"policy": key, "params": values},
        )
        wake_scheduler()
    return config
