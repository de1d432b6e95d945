"""Looks for barriers in a page with axe; WCAG 2.2 A and AA."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

RULES = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
}


def barriers(page: Page) -> list[str]:
    """One line for each barrier: the rule, what it is about, and where."""
    found = Axe().run(page, options=RULES).response["violations"]
    return [
        f"{each['id']} ({each['impact']}): {each['help']}: {node['html'][:160]} {node['failureSummary'][:200]}"
        for each in found
        for node in each["nodes"]
    ]
