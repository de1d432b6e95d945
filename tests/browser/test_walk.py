"""The main job, done as a person does it: set-up link, project, a dropped zip, submit, live log, outputs.

Real processes started by ``manage.py up``, a real browser; with the process runtime and with a Docker Engine.
"""

import base64
import io
import re
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from portal.projects.examples import find
from tests import engine
from tests.system.product import PASSWORD, Product, running, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.system]

DROP = """
async ([name, content]) => {
  const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name));
  document.querySelector('[data-drop]').dispatchEvent(
    new DragEvent('drop', {bubbles: true, cancelable: true, dataTransfer: transfer}));
}
"""
MOST_CLICKS = 6
MOST_SECONDS = 60


@pytest.fixture(params=["docker", pytest.param("process", marks=pytest.mark.thorough)])
def product(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Product]:
    with ExitStack() as stack:
        env = {}
        if request.param == "docker":
            stack.enter_context(engine.docker_engine())
            env = {"SCHEDULEARN_BASE_IMAGE": engine.base_image()}
        product = stack.enter_context(running(Product.make(tmp_path, request.param, **env)))
        product.start("up")
        wait_for("the portal answers", product.answers, 60)
        yield product


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_context().new_page()
    yield page
    page.context.close()


def example_zip() -> bytes:
    example, buffer = find("horovod-elastic"), io.BytesIO()
    assert example is not None
    with zipfile.ZipFile(buffer, "w") as zipped:
        for name, path in example.files():
            zipped.write(path, name)
    return buffer.getvalue()


def test_from_the_set_up_link_to_downloaded_outputs(product: Product, page: Page) -> None:
    names = ("first job", "second job")  # on a busy machine the second may end first
    wait_for(
        "both examples have succeeded",
        lambda: all(f"{name}: succeeded" in product.output("up") for name in names),
        900,
    )
    for name in names:
        assert float(re.findall(rf"{name}: accuracy (\d\.\d+)", product.output("up"))[-1]) >= 0.95

    link = re.search(r"http://localhost:\d+(/accounts/invite/\S+)", product.output("up"))
    assert link
    page.goto(product.url + link.group(1))
    page.get_by_label("user name", exact=False).fill("ada")
    page.get_by_label("password", exact=False).first.fill(PASSWORD)
    page.get_by_role("button", name="Create account").click()
    expect(page.get_by_role("heading", name="Hello, ada")).to_be_visible()

    clicks = 0
    page.get_by_role("link", name="Projects").first.click()
    page.get_by_role("link", name="New project").first.click()
    page.get_by_label("Name").fill("Digits")
    page.get_by_role("button", name="Create").click()
    page.wait_for_load_state("load")  # else what listens for drops may not be there yet
    expect(page.locator("[data-drop]")).to_be_visible()
    page.evaluate(DROP, ["digits.zip", base64.b64encode(example_zip()).decode()])
    page.get_by_role("link", name="Submit a job with this").click()
    clicks += 4
    expect(page.get_by_role("radio", name="Horovod")).to_be_checked()
    page.get_by_label("at least", exact=False).fill("1")
    page.get_by_label("at most", exact=False).first.fill("2")
    page.get_by_role("button", name="Submit job").click()
    clicks += 1
    first_line = page.locator(".log-line .log-text", has_text=re.compile(r"rank|epoch"))
    expect(first_line.first).to_be_visible(timeout=MOST_SECONDS * 1000)
    assert clicks <= MOST_CLICKS
    expect(page.locator(".badge", has_text="running").first).to_be_visible()

    expect(page.locator(".badge", has_text="succeeded").first).to_be_visible(timeout=180_000)
    accuracy = page.locator(".log-text", has_text=re.compile(r"^accuracy: "))
    expect(accuracy.first).to_be_visible()
    assert float(accuracy.first.inner_text().split()[-1]) >= 0.95

    page.get_by_role("link", name=re.compile("^Files")).click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download metrics.csv").click()
    lines = download.value.path().read_text().splitlines()
    assert float(lines[-1].split(",")[-1]) >= 0.95
