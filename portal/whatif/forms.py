"""The form of a new simulation: days, and policies with their parameters."""

import json
from typing import Any

from django.http import Http404, QueryDict

from portal.scheduler.forms import PolicyForm
from portal.scheduler.models import SchedulerConfig
from portal.whatif.services import MAX_POLICIES, WINDOWS, Choice
from scheduling import registry

DEFAULT_DAYS = 14
SUGGESTED = ("elastic_fifo", "srjf", "fair_share")
MAX_CHOICES = MAX_POLICIES - 1


class WhatifForm:
    """Takes the policies from a GET request, and their parameters from a POST to the same page."""

    def __init__(self, asked: QueryDict, sent: QueryDict | None, config: SchedulerConfig) -> None:
        data = asked if sent is None else sent
        self.days = next((days for days in WINDOWS if data.get("days") == str(days)), DEFAULT_DAYS)
        keys = [str(key) for key in data.getlist("policy") if key]
        if not keys and "policy" not in data:
            keys = [key for key in SUGGESTED if key != config.policy][: MAX_CHOICES - 1]
        if any(key not in registry.POLICIES for key in keys):
            raise Http404
        self.too_many = len(keys) > MAX_CHOICES
        self.wrong = ""
        self.policies = []
        for place, key in enumerate(keys[:MAX_CHOICES]):
            given = config.params if key == config.policy else {}
            if place == 0 and sent is None and asked.get("params"):
                given = self._params_from_address(key, str(asked["params"])) or given
            form = PolicyForm(registry.describe(key), sent, given)
            form.prefix = f"p{place}"
            self.policies.append(form)

    def _params_from_address(self, key: str, text: str) -> dict[str, Any]:
        try:
            params = json.loads(text)
            if not isinstance(params, dict):
                raise ValueError("they are not an object")
            return registry.complete(key, params)
        except (ValueError, RecursionError) as error:
            self.wrong = f"The parameters in the address were ignored: {error}"
            return {}

    @property
    def slots(self) -> list[str]:
        """The value of each field that chooses a policy."""
        return [*(form.policy.key for form in self.policies), "", "", ""][:MAX_CHOICES]

    def is_valid(self) -> bool:
        checked = [form.is_valid() for form in self.policies]  # validate all forms, so that each shows its errors
        return all(checked)

    @property
    def choices(self) -> list[Choice]:
        return [(form.policy.key, form.cleaned_data) for form in self.policies]
