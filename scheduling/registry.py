"""All policies. A new one takes a file in ``policies/`` and one line here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scheduling import params
from scheduling.policies.afs import Afs
from scheduling.policies.elastic_fifo import ElasticFifo
from scheduling.policies.fair_share import FairShare
from scheduling.policies.ffdl import Ffdl
from scheduling.policies.fifo import Fifo
from scheduling.policies.goodput import Goodput
from scheduling.policies.ones import Ones
from scheduling.policies.pdors import Pdors
from scheduling.policies.round_robin import RoundRobin
from scheduling.policies.srjf import Srjf
from scheduling.policies.themis import Themis
from scheduling.policies.tiresias import Tiresias
from scheduling.types import Knows, Policy

POLICIES: dict[str, type[Policy]] = {
    "fifo": Fifo,
    "round_robin": RoundRobin,
    "elastic_fifo": ElasticFifo,
    "srjf": Srjf,
    "tiresias": Tiresias,
    "fair_share": FairShare,
    "afs": Afs,
    "themis": Themis,
    "pdors": Pdors,
    "ffdl": Ffdl,
    "goodput": Goodput,
    "ones": Ones,
}
DEFAULT = "fair_share"
"""The policy of a new lab until an admin chooses. Labs keep their first default (migration 0005 of control)."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a form needs to offer a policy."""

    key: str
    title: str
    explanation: str
    params: tuple[params.Param, ...]
    good_for: str = ""
    needs: str = ""
    knows: Knows = "nothing"
    experimental: bool = False


def build(key: str, given: Mapping[str, Any]) -> Policy:
    """Return the policy with its parameters; those not given have their defaults. Raises ValueError with plain sentences."""
    return _policy(key)(**params.validate(_policy(key), given))


def complete(key: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters with the defaults filled in, as they are stored. Raises ValueError like ``build``."""
    return params.validate(_policy(key), given)


def describe(key: str) -> Description:
    policy = _policy(key)
    return Description(
        key,
        policy.title,
        policy.explanation,
        params.describe(policy),
        getattr(policy, "good_for", ""),
        getattr(policy, "needs", ""),
        getattr(policy, "knows", "nothing"),
        getattr(policy, "experimental", False),
    )


def describe_all() -> tuple[Description, ...]:
    return tuple(describe(key) for key in POLICIES)


def _policy(key: str) -> type[Policy]:
    try:
        return POLICIES[key]
    except KeyError:
        raise ValueError(f"There is no policy {key!r}. The policies are: {', '.join(POLICIES)}.") from None
