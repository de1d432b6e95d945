"""What to simulate: days, and policies each with its parameters."""

import json
from typing import Any

from django.http import Http404, QueryDict

from portal.scheduler.forms import PolicyForm
from portal.scheduler.models import SchedulerConfig
from portal.whatif.services import MOST_POLICIES, WINDOWS, Choice
from scheduling import registry

USUAL_DAYS = 14
SUGGESTED = ("elastic_fifo", "srjf", "fair_share")
MOST_CHOICES = MOST_POLICIES - 1


class WhatifForm:
    """Which policies is asked by GET; the parameters of these, by POST on the same page."""

    def __init__(self, asked: QueryDict, sent: QueryDict | None, config: SchedulerConfig) -> None:
        said = asked if sent is None else sent
        self.days = next((days for days in WINDOWS if said.get("days") == str(days)), USUAL_DAYS)
        keys = [str(key) for key in said.getlist("policy") if key]
        if not keys and "policy" not in said:
            keys = [key for key in SUGGESTED if key != config.policy][: MOST_CHOICES - 1]
        if any(key not in registry.POLICIES for key in keys):
            raise Http404
        self.too_many = len(keys) > MOST_CHOICES
        self.wrong = ""
        self.policies = []
        for place, key in enumerate(keys[:MOST_CHOICES]):
            given = config.params if key == config.policy else {}
            if place == 0 and sent is None and asked.get("params"):
                given = self._given(key, str(asked["params"])) or given
            form = PolicyForm(registry.describe(key), sent, given)
            form.prefix = f"p{place}"
            self.policies.append(form)

    def _given(self, key: str, text: str) -> dict[str, Any]:
        try:
            params = json.loads(text)
            if not isinstance(params, dict):
                raise ValueError("they are not an object")
            return registry.complete(key, params)
        except (ValueError, RecursionError) as error:
            self.wrong = f"The parameters in the address were left out: {error}"
            return {}

    @property
    def slots(self) -> list[str]:
        """What each of the fields to choose a policy shows."""
        return [*(form.policy.key for form in self.policies), "", "", ""][:MOST_CHOICES]

    def is_valid(self) -> bool:
        checked = [form.is_valid() for form in self.policies]  # each, so that each shows what is wrong with it
        return all(checked)

    @property
    def choices(self) -> list[Choice]:
        return [(form.policy.key, form.cleaned_data) for form in self.policies]
