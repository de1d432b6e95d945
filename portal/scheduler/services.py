"""What admins do with the scheduler: look at the policy in force, and switch it."""

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.refused import Refused
from portal.scheduler.models import PolicyState, SchedulerConfig
from portal.wake import wake_scheduler
from scheduling import registry
from scheduling.version import version_of


def current_config() -> SchedulerConfig:
    """The configuration in force. Before anybody chose one: the default, not stored."""
    newest = SchedulerConfig.objects.order_by("-id").first()
    return newest or SchedulerConfig(policy=registry.DEFAULT, params=registry.complete(registry.DEFAULT, {}))


def config_in_force() -> SchedulerConfig:
    """The same as a row, for what refers to it."""
    config = current_config()
    if config.pk is None:
        config.version = version_of(registry.POLICIES[config.policy])
        config.save(force_insert=True)
    return config


def config_identity(config: SchedulerConfig) -> int:
    """Its id, to know it again; 0 for the default before anybody chose, whether it has been stored by then or not."""
    if config.pk is None:
        return 0
    chosen = config.created_by_id is not None or SchedulerConfig.objects.exclude(pk=config.pk).exists()
    return config.pk if chosen else 0


def has_former_default(config: SchedulerConfig) -> bool:
    """Whether the lab still runs a default that new labs no longer get, and no admin has ever chosen a policy."""
    return config.pk is not None and config.policy != registry.DEFAULT and config_identity(config) == 0


def keep_policy(actor: User) -> SchedulerConfig:
    """Choose the former default that is in force. Raises Refused when the policy was chosen already."""
    config = current_config()
    if not has_former_default(config):
        raise Refused(
            f"An admin has chosen “{title_of(config.policy)}” already, so there is nothing to keep.", "conflict"
        )
    return switch_policy(actor, config.policy, config.params, expected=config_identity(config))


def policy_name(config: SchedulerConfig) -> str:
    """As attempts remember it: ``elastic_fifo v3``."""
    return f"{config.policy} v{config.pk}"


def state_of(config: SchedulerConfig) -> Mapping[str, Any]:
    """The policy's memory of its last plan."""
    kept = PolicyState.objects.filter(config=config.pk).first() if config.pk else None
    return kept.state if kept else {}


def who_switched() -> str:
    """A sentence about the configuration in force, for somebody who thought of another one."""
    config = current_config()
    who = config.created_by.username if config.created_by else "The portal"
    return f"{who} has switched to “{title_of(config.policy)}” meanwhile."


def title_of(key: str) -> str:
    """One that has left the code keeps its key as its name."""
    return registry.describe(key).title if key in registry.POLICIES else key


def switch_policy(
    actor: User | None,
    key: str,
    params: Mapping[str, Any],
    *,
    expected: int | None = None,
    snapshot_sha256: str = "",
    undoes: SchedulerConfig | None = None,
) -> SchedulerConfig:
    """From the next turn on the scheduler decides by this policy; what runs goes on.

    ``expected`` is the ``config_identity`` of the configuration that must still be in force, else Refused is raised. Raises ValueError with plain sentences when there is no such policy or a parameter is wrong.
    """
    values = registry.complete(key, params)
    with transaction.atomic():
        # Two who switch at once queue here, on the newest row; on SQLite only one writes at a time anyway.
        SchedulerConfig.objects.select_for_update(no_key=True).order_by("-id").first()
        before = config_in_force()
        if expected is not None and config_identity(before) != expected:
            raise Refused(f"{who_switched()} Nothing was switched. Look again.", "conflict")
        config = SchedulerConfig.objects.create(
            policy=key,
            params=values,
            created_by=actor,
            version=version_of(registry.POLICIES[key]),
            snapshot_sha256=snapshot_sha256,
            undoes=undoes,
        )
        audit(
            actor,
            "scheduler.switch_undone" if undoes else "scheduler.policy_switched",
            registry.describe(key).title,
            before={"policy": before.policy, "params": before.params},
            after={"policy": key, "params": values},
        )
        wake_scheduler()
    return config


def before_last() -> SchedulerConfig | None:
    """What an undo would return to: the configuration that was in force before the present one."""
    return SchedulerConfig.objects.order_by("-id")[1:2].first()


def undo_switch(actor: User, config: int | None = None) -> SchedulerConfig:
    """Returns to the configuration before the one in force, as a new row. Undoing twice is doing it again.

    ``config`` is the one to take back, for somebody who saw it in force. Raises Refused with a sentence when it is not
    in force any more, when there is nothing to return to, or what there was has left the code.
    """
    last, previous = current_config(), before_last()
    if config is not None and config != last.pk:
        raise Refused(f"{who_switched()} Nothing was undone. Look again.", "conflict")
    if previous is None:
        raise Refused("There was no switch that could be undone.", "conflict")
    try:
        return switch_policy(actor, previous.policy, previous.params, expected=config_identity(last), undoes=last)
    except ValueError as error:
        raise Refused(
            f"“{title_of(previous.policy)}” can no longer be chosen as it was: {error}", "conflict"
        ) from error
