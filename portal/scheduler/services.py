"""What admins do with the scheduler: read the policy in force, and switch it."""

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.refused import Refused
from portal.scheduler.models import Cycle, PolicyState, SchedulerConfig
from portal.wake import wake_scheduler
from scheduling import registry
from scheduling.version import version_of


def current_config() -> SchedulerConfig:
    """Return the configuration in force. Until one was chosen it is the default, which is not stored."""
    newest = SchedulerConfig.objects.order_by("-id").first()
    return newest or SchedulerConfig(policy=registry.DEFAULT, params=registry.complete(registry.DEFAULT, {}))


def config_in_force() -> SchedulerConfig:
    """Return the configuration in force as a stored row, which others can refer to."""
    config = current_config()
    if config.pk is None:
        config.version = version_of(registry.POLICIES[config.policy])
        config.save(force_insert=True)
    return config


def config_identity(config: SchedulerConfig) -> int:
    """Return its id, to recognise it later; 0 for the default until a policy was chosen, whether it is stored or not."""
    if config.pk is None:
        return 0
    chosen = config.created_by_id is not None or SchedulerConfig.objects.exclude(pk=config.pk).exists()
    return config.pk if chosen else 0


def has_former_default(config: SchedulerConfig) -> bool:
    """Return whether the lab still runs a default that new labs no longer get, and no admin ever chose a policy."""
    return config.pk is not None and config.policy != registry.DEFAULT and config_identity(config) == 0


def keep_policy(actor: User) -> SchedulerConfig:
    """Choose the former default that is in force. Raises Refused when a policy was chosen already."""
    config = current_config()
    if not has_former_default(config):
        raise Refused(
            f"An admin has chosen “{title_of(config.policy)}” already, so there is nothing to keep.", "conflict"
        )
    return switch_policy(actor, config.policy, config.params, expected=config_identity(config))


def policy_name(config: SchedulerConfig) -> str:
    """Return the name that attempts record: ``elastic_fifo v3``."""
    return f"{config.policy} v{config.pk}"


def state_of(config: SchedulerConfig) -> Mapping[str, Any]:
    """Return the state that the policy stored with its last plan."""
    kept = PolicyState.objects.filter(config=config.pk).first() if config.pk else None
    return kept.state if kept else {}


def switched_sentence() -> str:
    """Return a sentence about the last switch, for a user who expected another configuration to be in force."""
    config = current_config()
    who = config.created_by.username if config.created_by else "The portal"
    return f"{who} has switched to “{title_of(config.policy)}” meanwhile."


def title_of(key: str) -> str:
    """Return a policy's title, or its key when the policy is no longer in the code."""
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
    """Make the scheduler decide by this policy from the next cycle on; running jobs keep running.

    ``expected`` is the ``config_identity`` of the configuration that must still be in force, else Refused is raised.
    Raises ValueError with a plain sentence for an unknown policy or a wrong parameter.
    """
    values = registry.complete(key, params)
    with transaction.atomic():
        # Two simultaneous switches wait for each other here, on the newest row; SQLite allows one writer anyway.
        SchedulerConfig.objects.select_for_update(no_key=True).order_by("-id").first()
        before = config_in_force()
        if expected is not None and config_identity(before) != expected:
            raise Refused(f"{switched_sentence()} Nothing was switched. Reload the page.", "conflict")
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


def previous_config() -> SchedulerConfig | None:
    """Return the configuration to which an undo returns: the last one that decided otherwise than the present one.

    A policy that was switched to itself, or a former default that was kept, is passed over.
    """
    rows = SchedulerConfig.objects.order_by("-id").iterator(chunk_size=20)
    last = next(rows, None)
    return next((row for row in rows if last and (row.policy, row.params) != (last.policy, last.params)), None)


def undo_switch(actor: User, config: int | None = None) -> SchedulerConfig:
    """Restore the configuration before the one in force, as a new row. A second undo reverts the first.

    ``config`` is the one to undo, as the user saw it in force. Raises Refused with a sentence when it is no longer in
    force, when there is no earlier one, or when the earlier policy is no longer in the code.
    """
    last, previous = current_config(), previous_config()
    if config is not None and config != last.pk:
        raise Refused(f"{switched_sentence()} Nothing was undone. Reload the page.", "conflict")
    if previous is None:
        raise Refused("There is no switch to undo.", "conflict")
    try:
        return switch_policy(actor, previous.policy, previous.params, expected=config_identity(last), undoes=last)
    except ValueError as error:
        raise Refused(
            f"“{title_of(previous.policy)}” can no longer be chosen as it was: {error}", "conflict"
        ) from error


def last_failure() -> Cycle | None:
    """Return the last recorded cycle if it failed and the policy was not switched since.

    It may be long ago: a failure that persists is recorded once, and so is its end (``cycle._record``).
    """
    last = Cycle.objects.select_related("config").first()
    if last is None or not last.error or last.config_id != current_config().pk:
        return None
    return last
