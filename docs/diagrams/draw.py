"""Draw the diagrams: ``make diagrams`` turns each NAME.mmd of this folder that has changed into NAME.svg.

Needs Node.js and Chromium. The pictures are committed, so building the documentation needs neither; a test compares the
hash in each picture with its source.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PROGRAM = ["npx", "--yes", "@mermaid-js/mermaid-cli@11.17.0"]
FONT = "Verdana, 'DejaVu Sans', sans-serif"
"""Two fonts of nearly the same widths, one of which most systems have: texts fit into their boxes everywhere."""
MARGIN = 16
TITLE = re.compile(r'(<rect style="" x="(-?[\d.]+)"[^>]*/><g class="cluster-label" transform="translate\()-?[\d.]+')
"""The title of a frame, which goes to its left corner: in the middle, arrows would cross it."""
SETTINGS = {
    "theme": "base",
    "htmlLabels": False,
    "deterministicIds": True,
    "fontFamily": FONT,
    "themeVariables": {
        "fontFamily": FONT,
        "fontSize": "14px",
        "background": "#ffffff",
        "primaryColor": "#dbeafe",
        "primaryBorderColor": "#2563eb",
        "primaryTextColor": "#111827",
        "lineColor": "#4b5563",
        "clusterBkg": "#fafafa",
        "clusterBorder": "#9ca3af",
        "titleColor": "#374151",
        "edgeLabelBackground": "#ffffff",
        "actorBkg": "#dbeafe",
        "actorBorder": "#2563eb",
        "actorTextColor": "#111827",
        "actorLineColor": "#9ca3af",
        "signalColor": "#374151",
        "signalTextColor": "#111827",
        "noteBkgColor": "#fef3c7",
        "noteBorderColor": "#b45309",
        "noteTextColor": "#111827",
        "labelBoxBkgColor": "#f3f4f6",
        "labelBoxBorderColor": "#6b7280",
        "labelTextColor": "#111827",
        "loopTextColor": "#374151",
        "sequenceNumberColor": "#ffffff",
        "transitionLabelColor": "#111827",
    },
    "themeCSS": ".edgeLabel rect, .edgeLabel .background { opacity: 1; fill: #ffffff; }",
    "flowchart": {
        **{"htmlLabels": False, "curve": "basis", "padding": 12, "nodeSpacing": 30, "rankSpacing": 30},
        **{"wrappingWidth": 500, "subGraphTitleMargin": {"top": 4, "bottom": 8}},
    },
    "sequence": {
        **{"mirrorActors": False, "messageMargin": 26, "actorMargin": 10, "width": 90, "height": 40},
        **{"boxMargin": 8, "noteMargin": 8},
    },
}


def hash_of(source: Path) -> str:
    """Return the hash that the picture of a source carries."""
    return hashlib.sha256(source.read_bytes()).hexdigest()


def draw(source: Path) -> None:
    """Draw one diagram on an opaque sheet with a border, so that it is legible on light and dark pages."""
    with tempfile.TemporaryDirectory() as folder:
        settings, browser, drawn = (Path(folder) / name for name in ("settings.json", "browser.json", "drawn.svg"))
        settings.write_text(json.dumps(SETTINGS))
        chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        browser.write_text(json.dumps({"args": ["--no-sandbox"]} | ({"executablePath": chromium} if chromium else {})))
        program = [os.environ["MMDC"]] if "MMDC" in os.environ else PROGRAM
        options = ["-q", "-c", settings, "-p", browser, "-I", source.stem, "-i", source, "-o", drawn]
        subprocess.run([*program, *map(str, options)], check=True, env=os.environ | {"PUPPETEER_SKIP_DOWNLOAD": "1"})
        text = drawn.read_text()
    source.with_suffix(".svg").write_text(on_a_sheet(text, hash_of(source)))


def on_a_sheet(text: str, digest: str) -> str:
    """Return the picture with a margin, a sheet behind it, its size in pixels, and the hash of its source."""
    if "<foreignObject" in text:
        raise ValueError("a label is HTML, which many viewers of pictures do not show")
    text = TITLE.sub(lambda found: f"{found[1]}{float(found[2]) + 12:g}", text)
    head = re.match(r"<svg[^>]*>", text)
    box = re.search(r'viewBox="([^"]+)"', head[0]) if head else None
    if head is None or box is None:
        raise ValueError("not the SVG that was expected")
    x, y, width, height = (float(part) for part in box[1].split())
    x, y, width, height = x - MARGIN, y - MARGIN, width + 2 * MARGIN, height + 2 * MARGIN
    size = f'viewBox="{x:g} {y:g} {width:g} {height:g}" width="{width:.0f}" height="{height:.0f}"'
    opening = re.sub(r'\s(?:width|height|style|viewBox)="[^"]*"', "", head[0]).replace("<svg", f"<svg {size}", 1)
    sheet = f'<rect x="{x + 0.5:g}" y="{y + 0.5:g}" width="{width - 1:g}" height="{height - 1:g}" rx="8" '
    sheet += 'fill="#ffffff" stroke="#d1d5db"/>'
    return f"{opening}\n<!-- source: {digest} -->\n{sheet}{text[head.end() :]}\n"


def main() -> int:
    for source in sorted(FOLDER.glob("*.mmd")):
        picture = source.with_suffix(".svg")
        if "--all" in sys.argv or not picture.exists() or hash_of(source) not in picture.read_text():
            print(f"Drawing {picture.name}")
            draw(source)
    return 0


if __name__ == "__main__":
    sys.exit(main())
