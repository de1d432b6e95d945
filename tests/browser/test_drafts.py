"""What is typed in a long form survives the end of the session, an expired token and an error, and no one else sees it."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import Browser, Page, Route, expect

from portal.accounts import services as accounts
from portal.accounts.models import User
from portal.projects import services
from portal.projects.models import Project
from tests.browser.portal import PASSWORD
from tests.portal.jobs_world import make_code, make_environment

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
RESTORED = "Restored what you had typed"


@pytest.fixture
def page(browser: Browser, live_server: Any, settings: Any) -> Iterator[Page]:
    settings.ALLOWED_HOSTS = ["*"]
    for name in ("alice", "bob"):
        User.objects.create_user(name, password=PASSWORD)
    project = services.create_project(User.objects.get(username="alice"), "Vision", "Seeing things.")
    services.share(project.created_by, project, "bob", "owner")
    page = browser.new_context(base_url=live_server.url).new_page()
    page.route_web_socket("**/ws/page/**", lambda socket: None)  # the server of these tests has no sockets
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"/accounts/sign-in/?next={address_of_form()}")
    sign_in(page, "alice")
    yield page
    page.wait_for_load_state(
        "networkidle"
    )  # the tables are emptied next, which a request that still runs would prevent
    page.context.close()
    assert complaints == []


def address_of_form() -> str:
    return reverse("projects:edit", args=[Project.objects.get().pk])


def sign_in(page: Page, name: str) -> None:
    page.fill("[name=username]", name)
    page.fill("[name=password]", PASSWORD)
    with page.expect_navigation():  # and its scripts
        page.get_by_role("button", name="Sign in").click()


def save(page: Page) -> None:
    page.get_by_role("button", name="Save").click()


def end_sessions() -> None:
    for user in User.objects.all():
        accounts.end_sessions(user)


def kept(page: Page) -> str:
    return str(page.evaluate("JSON.stringify(Object.entries(sessionStorage))"))


def test_the_end_of_a_session_in_mid_form_loses_nothing(page: Page) -> None:
    page.fill("[name=description]", "A long text.\nWith two lines.")
    end_sessions()
    save(page)
    expect(page.get_by_text("nothing was done")).to_be_visible()
    sign_in(page, "alice")
    expect(page.get_by_text(RESTORED)).to_be_visible()
    expect(page.locator("[name=description]")).to_have_value("A long text.\nWith two lines.")
    save(page)
    expect(page.get_by_role("heading", name="Vision")).to_be_visible()
    assert Project.objects.get().description.splitlines() == ["A long text.", "With two lines."]
    page.goto(address_of_form())
    expect(page.locator("[name=description]")).to_have_value("A long text.\nWith two lines.")
    expect(page.get_by_text(RESTORED)).to_have_count(0)
    assert "draft" not in kept(page)


@pytest.mark.thorough
def test_an_expired_token_leads_back_to_the_text(page: Page) -> None:
    page.fill("[name=name]", "Hearing")
    page.evaluate("document.querySelector('main [name=csrfmiddlewaretoken]').value = 'a'.repeat(64)")
    save(page)
    expect(page.get_by_role("heading", name="This form had expired")).to_be_visible()
    page.get_by_role("link", name="Back to the page").click()
    expect(page.locator("[name=name]")).to_have_value("Hearing")
    page.get_by_role("button", name="Discard").click()
    expect(page.locator("[name=name]")).to_have_value("Vision")
    page.reload()
    expect(page.get_by_text(RESTORED)).to_have_count(0)


def test_another_user_of_the_tab_does_not_see_the_draft(page: Page) -> None:
    page.fill("[name=description]", "Alice's own thoughts")
    end_sessions()
    save(page)
    sign_in(page, "bob")
    expect(page.locator("[name=description]")).to_have_value("Seeing things.")
    expect(page.get_by_text(RESTORED)).to_have_count(0)


@pytest.mark.thorough
def test_signing_out_forgets_the_drafts(page: Page) -> None:
    page.fill("[name=description]", "Half a thought")
    assert "Half a thought" in kept(page)
    page.locator(".menu summary").filter(has_text="alice").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert "Half a thought" not in kept(page)


def test_secrets_are_not_kept(page: Page) -> None:
    lines = ["LR=0.1", "WANDB_API_KEY=abc123", "export HF_TOKEN = abc123", "train --api-key abc123", "the key idea"]
    page.fill("[name=description]", "\n".join([*lines, "https://user:abc123@host/"]))
    assert "LR=0.1" in kept(page) and "the key idea" in kept(page)
    assert "abc123" not in kept(page)
    page.goto(reverse("accounts:profile"))
    page.fill("[name=password]", "abc123")
    page.fill("[name=first_name]", "Alice")
    assert "Alice" in kept(page)
    assert "abc123" not in kept(page) and "csrf" not in kept(page) and "shown_values" not in kept(page)


@pytest.mark.thorough
def test_a_refused_form_keeps_its_draft_without_a_notice(page: Page) -> None:
    page.evaluate("document.querySelector('[name=description]').removeAttribute('maxlength')")
    page.fill("[name=description]", "x" * 10_001)
    save(page)
    expect(page.get_by_text("Nothing you typed is lost")).to_be_visible()
    expect(page.get_by_text(RESTORED)).to_have_count(0)
    end_sessions()
    page.fill("[name=name]", "Hearing")
    save(page)
    sign_in(page, "alice")
    expect(page.locator("[name=name]")).to_have_value("Hearing")
    expect(page.locator("[name=description]")).to_have_value("x" * 10_001)


def test_the_job_form_is_restored_with_its_folded_fields(page: Page) -> None:
    project = Project.objects.get()
    keys = {make_environment(key).key for key in ("slim", "pytorch")}
    code = make_code(project)
    address = f"{reverse('jobs:new')}?code={code.pk}"
    page.goto(address)
    suggested = page.input_value("[name=environment]")
    (other,) = keys - {suggested}
    expect(page.locator("[name=command]")).to_be_visible()
    page.locator("[name=launcher][value=horovod]").check()
    page.fill("[name=min_gpus]", "2")
    page.select_option("[name=environment]", other)
    page.locator("details.more summary").click()
    page.fill("[name=env_vars]", "LR=0.2\nHF_TOKEN=abc123")
    end_sessions()
    page.get_by_role("button", name="Submit job").click()
    sign_in(page, "alice")
    expect(page.get_by_text("were not kept")).to_be_visible()
    expect(page.locator("[name=launcher][value=horovod]")).to_be_checked()
    expect(page.locator("[name=entry]")).to_be_visible()
    expect(page.locator("[name=min_gpus]")).to_have_value("2")
    expect(page.locator("[name=environment]")).to_have_value(other)
    expect(page.locator("[name=env_vars]")).to_be_visible()
    expect(page.locator("[name=env_vars]")).to_have_value("LR=0.2")
    page.get_by_role("button", name="Discard").click()
    expect(page.locator("[name=environment]")).to_have_value(suggested)
    expect(page.locator("[name=command]")).to_be_visible()
    expect(page.locator("[name=entry]")).to_be_hidden()
    assert "LR=0.2" not in kept(page)


@pytest.mark.thorough
def test_a_refused_form_at_the_address_of_a_button_is_found_again(page: Page) -> None:
    page.goto(reverse("projects:detail", args=[Project.objects.get().pk]))
    page.locator(".share [name=username]").fill("missing")
    page.get_by_role("button", name="Add").click()
    expect(page.get_by_text("There is no user with this name")).to_be_visible()
    page.locator(".share [name=username]").fill("carol")
    end_sessions()
    page.get_by_role("button", name="Add").click()
    sign_in(page, "alice")
    page.get_by_role("link", name="Back to the page").click()
    expect(page.locator(".share [name=username]")).to_have_value("carol")


def test_a_restored_draft_does_not_overwrite_what_was_changed_since(page: Page) -> None:
    page.fill("[name=description]", "My text")
    page.goto("/")
    project = Project.objects.get()
    services.edit_project(User.objects.get(username="bob"), project, description="Text of Bob")
    page.goto(address_of_form())
    expect(page.get_by_text(RESTORED)).to_be_visible()
    save(page)
    expect(page.get_by_text("Someone has changed this since you opened it")).to_be_visible()
    expect(page.locator("[name=description]")).to_have_value("My text")
    save(page)
    expect(page).to_have_url(re.compile(rf"/projects/{project.pk}/$"))
    project.refresh_from_db()
    assert project.description == "My text"


@pytest.mark.thorough
def test_a_discarded_draft_leaves_the_newest_values_to_edit(page: Page) -> None:
    page.fill("[name=description]", "My text")
    page.goto("/")
    project = Project.objects.get()
    services.edit_project(User.objects.get(username="bob"), project, description="Text of Bob")
    page.goto(address_of_form())
    page.get_by_role("button", name="Discard").click()
    expect(page.locator("[name=description]")).to_have_value("Text of Bob")
    page.fill("[name=description]", "Text of both")
    save(page)
    expect(page).to_have_url(re.compile(rf"/projects/{project.pk}/$"))
    project.refresh_from_db()
    assert project.description == "Text of both"


@pytest.mark.thorough
def test_what_is_typed_before_the_script_runs_is_kept(page: Page) -> None:
    page.fill("[name=description]", "An older draft")

    def type_first(route: Route) -> None:
        page.fill("[name=description]", "Typed at once")
        route.continue_()

    page.route("**/drafts*.js", type_first)
    page.goto(address_of_form())
    expect(page.locator("[name=description]")).to_have_value("Typed at once")
    page.unroute("**/drafts*.js")
    page.goto(address_of_form())
    expect(page.get_by_text(RESTORED)).to_be_visible()
    expect(page.locator("[name=description]")).to_have_value("Typed at once")
