"""Takes the pictures of docs/screenshots from a portal with made-up people and jobs:

python -m tests.browser.screenshots

Those of a job that really changed its GPUs, and of a real node, are taken by ``python -m tests.cluster.pictures``.
"""

import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.browser.chromium import FLAGS, PROGRAM
from tests.browser.portal import PASSWORD, ROOT, Portal, new_portal

FOLDER = ROOT / "docs" / "screenshots"
PAGES = {
    "project": "/projects/1/",
    "submit": "/jobs/new?code=1",
    "job-running": "/jobs/{running}/",
    "job-log": "/jobs/{running}/log/",
    "job-files": "/jobs/{done}/files/",
    "job-gpus": "/jobs/{running}/gpus/",
    "job-details": "/jobs/{running}/details/",
    "compare": "/jobs/compare?job={done}&job={running}&smoothing=some",
    "job-failed": "/jobs/{failed}/",
    "nodes": "/nodes/",
    "reservations": "/reservations/",
    "policy": "/admin/policy/?policy=tiresias",
    "policy-preview": "/admin/policy/preview/?policy=fifo",
    "projects": "/projects/",
    "new-project": "/projects/new",
    "gallery": "/gallery/",
    "search": "/search/?q=digits",
    "glossary": "/glossary/",
    "profile": "/accounts/profile/",
    "tokens": "/accounts/tokens/",
    "secrets": "/accounts/secrets/",
    "project-secrets": "/projects/1/secrets/",
    "own-space": "/accounts/space/",
    "project-space": "/projects/1/space",
    "space": "/admin/space/",
    "space-of-people": "/admin/space/people/",
    "trash": "/jobs/trash",
    "delete-code": "/projects/1/code/delete",
    "delete-code-confirm": "/projects/1/code/delete?version=1",
    "delete-project": "/projects/2/delete",
    "trash-of-code": "/trash/code/",
    "erase-person": "/admin/users/2/erase",
    "notices": "/notices/",
    "notifications": "/accounts/notifications/",
    "project-notifications": "/projects/1/notifications",
    "mail-and-channels": "/admin/notifications/",
    "channels-and-hosts": "/admin/notifications/settings",
    "admin": "/admin/",
    "admin-nodes": "/admin/nodes/",
    "users": "/admin/users/",
    "groups": "/admin/groups/",
    "invites": "/admin/invites/",
    "limits": "/admin/limits/",
    "audit": "/admin/audit/",
    "simulations": "/admin/simulations/",
    "lab-settings": "/admin/lab/",
    "walls": "/admin/walls/",
    "components": "/admin/components/",
}
WAITING_PAGES = {"job-waiting": "/jobs/{waits}/"}
MONTH_PAGES = {
    "usage": "/usage/",
    "ledger": "/usage/ledger/",
    "whatif": "/admin/simulations/{simulation}/",
    "whatif-new": "/admin/simulations/new?policy=tiresias&policy=srjf",
}
"""Of a lab with a month of history (tests/month.py)."""
DEMO_PAGES = {
    "gpus": "/gpus/",
    "timeline": "/gpus/timeline/?window=day",
    "gpu-node": "/gpus/nodes/{node}/?window=day",
    "git": "/projects/{bound}/git",
    "git-hosts": "/admin/git-hosts/",
    "schedule": "/schedules/{schedule}/",
    "new-schedule": "/schedules/new?job={chained}",
    "after-another": "/jobs/{chained}/",
    "more-time": "/admin/more-time/",
    "which-gpus": "/jobs/new?copy={chained}",
}
"""Of a demo lab with its month of history, for an admin."""
RESEARCHER = "ada"
RESEARCHER_PAGES = {"home": "/", "jobs": "/jobs/", "queue": "/jobs/queue", "curves": "/jobs/{curves}/"}
"""Of the same lab, for the person who uses it most."""
HEIGHT = 860
TALLER = {"home": 1240}
"""The height of a picture that shows more than the first screen, in pixels."""
LOOKS = {"light": (1280, "light"), "dark": (1280, "dark"), "phone": (400, "light")}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=FLAGS)
        take(browser, "seeded", PAGES)
        take(browser, "month_simulated", MONTH_PAGES)
        take(browser, "waiting", WAITING_PAGES)
        take(browser, "demo_lab", DEMO_PAGES, RESEARCHER_PAGES)
        browser.close()


def take(browser: Browser, order: str, pages: dict[str, str], researcher_pages: dict[str, str] | None = None) -> None:
    """Take pictures of a lab that an order of ``tests.browser.orders`` has made, as its admin and as a researcher."""
    with tempfile.TemporaryDirectory() as home:
        portal = new_portal(Path(home))
        try:
            made = portal.ask(order)
            portal.start()
            for username, shown in (("alice", pages), (RESEARCHER, researcher_pages or {})):
                if shown:
                    take_as(browser, portal, username, {name: path.format(**made) for name, path in shown.items()})
        finally:
            portal.stop()


def take_as(browser: Browser, portal: Portal, username: str, pages: dict[str, str]) -> None:
    for look, (width, scheme) in LOOKS.items():
        page = browser.new_page(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)  # type: ignore[arg-type]
        page.goto(f"{portal.url}/accounts/sign-in/")
        page.screenshot(path=FOLDER / f"sign-in-{look}.png")
        page.fill("[name=username]", username)
        page.fill("[name=password]", PASSWORD)
        page.keyboard.press("Enter")
        page.wait_for_url(f"{portal.url}/")
        for name, path in pages.items():
            page.set_viewport_size({"width": width, "height": TALLER.get(name, HEIGHT)})
            page.goto(portal.url + path)
            page.wait_for_timeout(800)
            page.screenshot(path=FOLDER / f"{name}-{look}.png")
        page.close()


if __name__ == "__main__":
    main()
