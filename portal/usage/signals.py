"""Records an admin's change of a node or a weight at once, instead of with the task a minute later."""

from typing import Any

from django.db.models.signals import post_delete, post_save
from django.dispatch import receiver

from portal.accounts.models import Limit
from portal.cluster.models import Node
from portal.usage import capacity


@receiver(post_save, sender=Node, dispatch_uid="usage.node")
def node_changed(instance: Node, created: bool, raw: bool = False, **_: Any) -> None:
    if not created and not raw:
        capacity.record(nodes=[instance.pk])


@receiver(post_save, sender=Limit, dispatch_uid="usage.weight")
def weight_changed(raw: bool = False, **_: Any) -> None:
    if not raw:
        capacity.record_weights()


@receiver(post_delete, sender=Limit, dispatch_uid="usage.weight_gone")
def weight_gone(**_: Any) -> None:
    capacity.record_weights()
