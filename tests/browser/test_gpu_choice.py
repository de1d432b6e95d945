"""Which GPUs a job accepts, on the form of a lab with different ones: by keyboard, at any width, in the dark."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from portal.accounts.models import User
from portal.cluster.models import Gpu
from portal.jobs.models import Job
from portal.projects.models import CodeVersion, Project
from tests.browser.axe import barriers
from tests.browser.portal import PASSWORD
from tests.examples import mostly_thorough
from tests.portal.control_world import ready_node, turn
from tests.portal.jobs_world import make_code, make_environment, make_project

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
MODELS = [("NVIDIA T4", 15_360), ("NVIDIA A100-SXM4-40GB", 40_960), ("NVIDIA A100-SXM4-40GB", 40_960)]


@pytest.fixture
def page(browser: Browser, live_server: Any, settings: Any) -> Iterator[Page]:
    """The form for a job of a lab with a T4 and two A100 in one machine, and two T4 in another."""
    settings.ALLOWED_HOSTS = ["*"]
    alice = User.objects.create_user("alice", password=PASSWORD, is_staff=True)
    make_environment()
    for node, models in ((ready_node("alpha", 3), MODELS), (ready_node("beta", 2), MODELS[:1] * 2)):
        for gpu, (model, memory) in zip(node.gpus.order_by("index"), models, strict=True):
            Gpu.objects.filter(pk=gpu.pk).update(kind="cuda", model=model, memory_mib=memory)
    code = make_code(make_project(alice))
    CodeVersion.objects.update(guess={"entry": "train.py", "launcher": "torchrun", "candidates": ["train.py"]})
    page = browser.new_context(base_url=live_server.url).new_page()
    page.route_web_socket("**/ws/page/**", lambda socket: None)  # the server of these tests has no sockets
    page.goto(f"/accounts/sign-in/?next=/jobs/new%3Fcode={code.pk}")
    page.fill("[name=username]", "alice")
    page.fill("[name=password]", PASSWORD)
    with page.expect_navigation():
        page.get_by_role("button", name="Sign in").click()
    yield page
    page.wait_for_load_state("networkidle")
    page.context.close()


def test_it_is_chosen_by_keyboard(page: Page) -> None:
    page.locator("summary", has_text="Which GPUs").focus()
    page.keyboard.press("Enter")
    page.get_by_label("Memory of each GPU, at least").select_option("40960")
    page.get_by_label("NVIDIA A100-SXM4-40GB (40 GiB, 2 of 2 free now)").press("Space")
    page.get_by_label("All of one model").press("Space")
    page.get_by_role("button", name="Submit job").last.click()
    expect(page.locator("main h1")).to_contain_text("train.py")
    job = Job.objects.get()
    assert (job.gpu_memory_mib, job.gpu_models, job.same_gpu_model) == (40_960, ["NVIDIA A100-SXM4-40GB"], True)


def test_what_the_lab_lacks_is_refused_at_the_field(page: Page) -> None:
    page.locator("summary", has_text="Which GPUs").click()
    page.get_by_label("NVIDIA A100-SXM4-40GB (40 GiB, 2 of 2 free now)").check()
    page.get_by_label("GPUs, at least").fill("3")
    page.get_by_label("GPUs, at most").fill("3")
    page.get_by_role("button", name="Submit job").last.click()
    expect(page.get_by_text("The lab has only 2 such GPUs")).to_be_visible()
    expect(page.get_by_label("NVIDIA A100-SXM4-40GB (40 GiB, 2 of 2 free now)")).to_be_checked()


@pytest.mark.parametrize(("width", "scheme"), mostly_thorough([(1280, "light"), (400, "dark")], (400, "dark")))
def test_it_has_no_barriers(page: Page, width: int, scheme: Any, tmp_path: Path) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 2000})
    page.locator("summary", has_text="Which GPUs").click()
    assert barriers(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.screenshot(path=tmp_path / "form.png", full_page=True)


def test_a_waiting_job_names_what_it_accepts(page: Page) -> None:
    project = Project.objects.get()
    for _ in range(2):
        Job.objects.create(
            project=project,
            code=project.code_versions.get(),
            environment=make_environment(),
            submitted_by=project.created_by,
            name="train",
            launcher="torchrun",
            entry="train.py",
            time_limit_seconds=3600,
            min_gpus=2,
            max_gpus=2,
            gpu_models=["NVIDIA A100-SXM4-40GB"],
        )
    turn()
    page.goto(f"/jobs/{Job.objects.latest('pk').pk}/")
    page.locator("summary", has_text="All 2 GPUs for it are in use").click()
    expect(
        page.get_by_text("It accepts only NVIDIA A100-SXM4-40GB GPUs; the open nodes have 2 of these.")
    ).to_be_visible()
