"""Takes the pictures of a job that really changed its GPUs, over two machines with engines of their own:

python -m tests.cluster.pictures
"""

from playwright.sync_api import sync_playwright

from tests.browser.axe import barriers
from tests.browser.chromium import FLAGS, PROGRAM
from tests.browser.screenshots import FOLDER, LOOKS
from tests.cluster.lab import Lab
from tests.cluster.ring_run import Run, two_machines
from tests.system.product import PASSWORD, wait_for

SHOWN = ("job-resized", "node")
"""The others are prettier in a demo lab (tests/browser/screenshots.py)."""


def main() -> None:
    with two_machines() as it:
        run = resized(it)
        print(it.get(f"jobs/{run.job}/band/"))
        take(it, run.job)
        run.finish()


def resized(it: Lab) -> Run:
    """On 1 GPU, on 3 of both machines, on all 4; then its first machine is drained."""
    run = Run(it, "horovod", 4)
    run.sees("of 1 ranks", 20)
    run.node(run.other, "resume")
    run.sees("of 3 ranks", run.last() + 50)
    run.cancel(run.filler)
    run.sees("of 4 ranks", run.last() + 80)
    run.node(run.first, "drain")
    run.sees("of 2 ranks", run.last() + 50)
    wait_for("all changes have a cost", lambda: costs(it, run.job), 60)
    return run


def costs(it: Lab, job: int) -> bool:
    changes = it.get(f"jobs/{job}/band/")["changes"]
    return len(changes) >= 3 and all(change["cost_seconds"] is not None for change in changes)


def take(it: Lab, job: int) -> None:
    """Also looks for barriers, on the pages that only a real lab fills."""
    node = next(node["id"] for node in it.get("nodes/") if node["name"] == it.lan.machines[0].name)
    pages = {
        "job-resized": f"/jobs/{job}/",
        "node": f"/admin/nodes/{node}/",
        "gpus": f"/gpus/nodes/{node}/",
        "timeline": "/gpus/timeline/",
    }
    found: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=FLAGS)
        for look, (width, scheme) in LOOKS.items():
            viewport = {"width": width, "height": 860}
            page = browser.new_page(viewport=viewport, color_scheme=scheme, ignore_https_errors=True)  # type: ignore[arg-type]
            page.goto(f"{it.url}/accounts/sign-in/")
            page.fill("[name=username]", "ada")
            page.fill("[name=password]", PASSWORD)
            page.keyboard.press("Enter")
            page.wait_for_url(f"{it.url}/")
            for name, path in pages.items():
                page.goto(it.url + path)
                page.wait_for_timeout(500)
                found += [f"{path}, {look}: {barrier}" for barrier in barriers(page)]
                if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                    found.append(f"{path}, {look}: it scrolls sideways")
                page.evaluate("document.querySelector('#band')?.closest('section').scrollIntoView()")
                if name in SHOWN:
                    page.screenshot(path=FOLDER / f"{name}-{look}.png")
        browser.close()
    assert not found, "\n".join(found)


if __name__ == "__main__":
    main()
