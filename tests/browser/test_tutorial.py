"""docs/user/tutorial.md, followed word for word in a clean account: its scripts as they stand there, its clicks in its order."""

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.test_walk import DROP
from tests.system.product import PASSWORD, Product, running, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.system, pytest.mark.thorough, pytest.mark.timeout(900)]

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "user" / "tutorial.md"
JOB_SECONDS = 300


def scripts() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def product(tmp_path: Path) -> Iterator[Product]:
    # an admin and a newcomer are two people, for whom no job starts as a plain process otherwise
    product = Product.make(tmp_path, "process", SCHEDULEARN_CPU_SLOTS="2", SCHEDULEARN_UNSAFE_PROCESSES="yes")
    with running(product):
        product.start_all()
        product.wait_for_environment("pytorch-horovod")
        yield product


@pytest.fixture
def page(product: Product, browser: Browser) -> Page:
    """The page of a user whose account is new."""
    product.shell(
        "from portal.accounts.models import User; "
        f"User.objects.create_user('newcomer', 'newcomer@example.org', {PASSWORD!r})"
    )
    page = browser.new_page()
    page.goto(product.url + "/accounts/sign-in/")
    page.fill("[name=username]", "newcomer")
    page.fill("[name=password]", PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Hello, newcomer")).to_be_visible()
    return page


def drop(page: Page, script: str) -> None:
    page.wait_for_load_state("load")  # else what listens for drops may not be there yet
    expect(page.locator("[data-drop]")).to_be_visible()
    page.evaluate(DROP, ["train.py", base64.b64encode(script.encode()).decode()])
    page.get_by_role("link", name="Submit a job with this").click()


def succeeds(page: Page, line: str) -> None:
    """Wait until the log has a matching line and the job has succeeded."""
    expect(page.locator(".log-text", has_text=re.compile(line)).first).to_be_visible(timeout=JOB_SECONDS * 1000)
    expect(page.locator(".badge", has_text="succeeded").first).to_be_visible(timeout=JOB_SECONDS * 1000)


def test_the_tutorial_works_as_written(product: Product, page: Page) -> None:
    plain, elastic = scripts()

    page.get_by_role("link", name="Projects").first.click()
    page.get_by_role("link", name="New project").first.click()
    page.get_by_label("Name").fill("Digits")
    page.get_by_role("button", name="Create").click()
    drop(page, plain)
    expect(page.get_by_role("radio", name="plain command")).to_be_checked()
    expect(page.get_by_label("Environment", exact=True)).to_have_value("pytorch")
    page.get_by_role("button", name="Submit job").click()
    succeeds(page, r"^epoch 10 loss \d\.\d{4}$")

    page.get_by_role("link", name="Projects").first.click()
    page.get_by_role("link", name="Digits").first.click()
    drop(page, elastic)
    expect(page.get_by_role("radio", name="Horovod")).to_be_checked()
    expect(page.get_by_label("Environment", exact=True)).to_have_value("pytorch-horovod")
    expect(page.get_by_label("Elastic: the number of CPU slots may change while it runs")).to_be_checked()
    expect(page.get_by_label("CPU slots, at least")).to_have_value("1")
    expect(page.get_by_label("CPU slots, at most")).to_have_value("2")
    page.locator("summary", has_text="More").click()
    page.get_by_label("Resumes from checkpoints").check()
    page.get_by_role("button", name="Submit job").click()
    succeeds(page, r"^epoch 60 loss \d\.\d{4} on [12] ranks$")
    wait_for("the curves are there", lambda: product.get("jobs/2/progress/")["done"] == pytest.approx(1.0), 30)
    page.reload()
    training = page.get_by_role("region", name="Training")
    curves = page.get_by_role("region", name="Curves")
    expect(curves.get_by_role("heading", name="train/loss")).to_be_visible()
    expect(curves.locator("canvas").first).to_be_visible()
    expect(training.get_by_role("heading", name="A step, rank by rank")).to_be_visible()
