"""Writes the pages of the documentation that list what the code has: causes, reasons, settings, parameters, the API.

``python -m portal.ops.reference`` writes them, and first the schema of the API. tests/portal/ops/test_reference.py finds pages that
are out of date, tests/architecture/test_schema_file.py the schema.
"""

from collections.abc import Mapping
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"
SCHEMA = DOCS / "api" / "schema.yml"
COMMAND = "python -m portal.ops.reference"
OUT_OF_DATE = f"docs/{{}} is out of date. Run .venv/bin/{COMMAND} and commit what changes."
"""What a test that finds an old file prints."""
NOTE = f"<!-- Written by {COMMAND}: change the code, not this file. -->\n\n"


def pages() -> dict[str, str]:
    """Return the text of each written page by its path below ``docs``."""
    from portal.ops.reference import api, causes, parameters, reasons, settings  # noqa: PLC0415  # they import this module

    found = {
        "policies/parameters.md": parameters.page(),
        "reference/causes.md": causes.page(),
        "reference/settings.md": settings.page(),
        "reference/waiting-reasons.md": reasons.page(),
        **{f"api/{name}": text for name, text in api.pages(SCHEMA).items()},
    }
    return {name: NOTE + text.rstrip() + "\n" for name, text in found.items()}


def write(texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        path = DOCS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
