"""Writes the pages of the documentation that list what the code has: causes, reasons, settings, parameters, the API.

``python -m portal.ops.reference`` writes them; tests/portal/ops/test_reference.py finds those that are out of date.
"""

from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"
COMMAND = "python -m portal.ops.reference"
NOTE = f"<!-- Written by {COMMAND}: change the code, not this file. -->\n\n"


def pages() -> dict[str, str]:
    """Return the text of each written page by its path below ``docs``."""
    from portal.ops.reference import api, causes, parameters, reasons, settings  # noqa: PLC0415  # they import this module

    found = {
        "policies/parameters.md": parameters.page(),
        "reference/causes.md": causes.page(),
        "reference/settings.md": settings.page(),
        "reference/waiting-reasons.md": reasons.page(),
        **{f"api/{name}": text for name, text in api.pages(DOCS / "api" / "schema.yml").items()},
    }
    return {name: NOTE + text.rstrip() + "\n" for name, text in found.items()}


def cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
