"""What decides before anyone has chosen: in a new lab, in one that is older than this default, which gets a notice."""

import json
from importlib import import_module
from urllib.parse import parse_qs, urlsplit

import pytest
from django.apps import apps
from django.test import Client

from portal.accounts.models import AuditEntry, User
from portal.refused import Refused
from portal.scheduler import services
from portal.scheduler.models import SchedulerConfig
from portal.whatif.models import Simulation
from scheduling import registry
from tests.portal import jobs_world as world
from tests.scheduling.worlds import NOW, draw, running, sizes, waiting

pytestmark = pytest.mark.django_db

FORMER = {"strict": False, "grow_after_seconds": 10, "up_to": "asked", "least_gain": 0.05}
OLD_FAIR_SHARE = {
    "half_life_days": 3.0, "elastic": True, "preempt": True, "tolerance": 0.5, "pays_within_seconds": 300.0,
}  # fmt: skip
"""All parameters that ``fair_share`` had in the previous release."""


@pytest.fixture
def admin() -> User:
    return world.make_user("admin", is_staff=True)


@pytest.fixture
def client(admin: User) -> Client:
    client = Client()
    client.force_login(admin)
    return client


def upgrade(app: str, migration: str) -> None:
    """Carry out the data migration on the rows that there are, as an upgrade does."""
    import_module(f"portal.{app}.migrations.{migration}").keep(apps, None)


def upgrade_control() -> None:
    upgrade("scheduler", "0005_keep_the_chosen_policy")


# --- upgrades


def test_a_new_lab_starts_with_fair_share_and_its_new_parameters() -> None:
    upgrade_control()
    assert not SchedulerConfig.objects.exists()
    config = services.current_config()
    assert config.policy == "fair_share"
    assert config.params["passed_over_hours"] > 0 and config.params["yields_after_minutes"] > 0


def test_a_lab_without_a_chosen_policy_keeps_the_default_it_began_with(admin: User) -> None:
    upgrade_control()
    config = services.current_config()
    assert (config.policy, config.params) == ("elastic_fifo", FORMER)
    assert services.has_former_default(config)


def test_a_lab_that_stored_its_default_keeps_it(admin: User) -> None:
    stored = SchedulerConfig.objects.create(policy="elastic_fifo", params=FORMER)
    upgrade_control()
    assert SchedulerConfig.objects.get() == stored and services.has_former_default(services.current_config())


def test_fair_share_decides_as_before_until_an_admin_sets_its_new_parameters(admin: User) -> None:
    SchedulerConfig.objects.create(policy="fair_share", params=OLD_FAIR_SHARE, created_by=admin)
    upgrade_control()
    upgrade_control()
    config = services.current_config()
    assert config.params == {**OLD_FAIR_SHARE, "passed_over_hours": 0.0, "yields_after_minutes": 0.0}
    lab = draw(
        {"a": 4},
        running("busy", {"a": 3}, owner="bo"),
        waiting("large", 4, owner="lena", submitted_at=NOW - 90_000.0),
        waiting("small", owner="sam"),
    )
    assert sizes(registry.build(config.policy, config.params).plan(lab)) == {"busy": 3, "small": 1}
    chosen = services.switch_policy(admin, "fair_share", {**config.params, "passed_over_hours": 2.0})
    assert sizes(registry.build(chosen.policy, chosen.params).plan(lab)) == {"busy": 3}
    upgrade_control()
    assert services.current_config().params["passed_over_hours"] == 2.0


def test_what_was_simulated_stays_what_it_was(admin: User) -> None:
    config = SchedulerConfig.objects.create(policy="fifo", params={})
    policies = [{"policy": "fifo", "params": {}}, {"policy": "fair_share", "params": OLD_FAIR_SHARE}]
    row = Simulation.objects.create(
        created_by=admin, config=config, days=7, policies=policies, start=config.created_at, end=config.created_at
    )
    upgrade("whatif", "0003_keep_fair_share")
    row.refresh_from_db()
    assert row.policies[0] == policies[0]
    assert row.policies[1]["params"] == {**OLD_FAIR_SHARE, "passed_over_hours": 0.0, "yields_after_minutes": 0.0}


# --- the notice


def test_the_policy_page_offers_to_compare_the_former_default_with_the_new_one(client: Client) -> None:
    upgrade_control()
    response = client.get("/admin/policy/")
    page = response.content.decode()
    assert 'id="former-default"' in page and "New labs start with another policy." in page
    address = urlsplit(response.context["whatif"])
    query = parse_qs(address.query)
    assert query["policy"] == ["fair_share"] and json.loads(query["params"][0])["passed_over_hours"] > 0
    compared = client.get(response.context["whatif"])
    assert compared.status_code == 200
    assert [form.policy.key for form in compared.context["form"].policies] == ["fair_share"]
    assert compared.context["in_force"] == registry.describe("elastic_fifo").title


def test_keeping_the_former_default_is_a_choice_and_ends_the_notice(client: Client, admin: User) -> None:
    upgrade_control()
    page = client.post("/admin/policy/keep/", follow=True).content.decode()
    assert 'id="former-default"' not in page and "stays in force" in page
    assert "Undo: back to" not in page
    config = services.current_config()
    assert (config.policy, config.params, config.created_by) == ("elastic_fifo", FORMER, admin)
    assert AuditEntry.objects.filter(action="scheduler.policy_switched").exists()
    with pytest.raises(Refused, match="nothing to keep"):
        services.keep_policy(admin)
    assert SchedulerConfig.objects.count() == 2


@pytest.mark.parametrize("chosen", ["elastic_fifo", "srjf", ""])
def test_labs_with_a_chosen_policy_and_new_labs_see_no_notice(client: Client, admin: User, chosen: str) -> None:
    if chosen:
        services.switch_policy(admin, chosen, {})
    assert 'id="former-default"' not in client.get("/admin/policy/").content.decode()
    assert client.post("/admin/policy/keep/", follow=True).status_code == 200
    assert services.current_config().policy == (chosen or "fair_share")
    assert SchedulerConfig.objects.count() <= 2
