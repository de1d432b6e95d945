"""Makes the pages work under a content security policy that allows no inline scripts and styles, as the portal's does.

The theme writes a script and a style sheet into each page, and ``style`` attributes into its icons. The former become files;
of the latter there are two kinds, one that hides and one that only shades. Anything else inline fails the build. What
screen readers need and the theme lacks is added.
"""

import hashlib
import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

INLINE_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
INLINE_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
FORBIDDEN = re.compile(r"<style|<script(?![^>]*\bsrc=)|<[a-z][^>]*\s(?:style|on[a-z]+)=", re.IGNORECASE)
NAMED = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    '<aside class="sidebar-drawer"': '<aside class="sidebar-drawer" aria-label="Site"',
    '<aside class="toc-drawer': '<aside aria-label="On this page" class="toc-drawer',
    '<th class="head"><p></p></th>': "<td></td>",
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
    "<pre><span></span>": '<pre tabindex="0"><span></span>',
}
"""What screen readers and the keyboard miss in the theme's pages: names, levels, headers without a word, and what can
be scrolled."""


def separate(app: Sphinx, problem: Exception | None) -> None:
    """Move what is inline in the pages of a finished build into files. Raises ExtensionError for what it does not know."""
    if problem is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    for page in sorted(out.rglob("*.html")):
        depth = len(page.relative_to(out).parts) - 1
        root = "../" * depth

        def link(match: re.Match[str], kind: str, root: str = root) -> str:
            name = f"_static/{kind}-{hashlib.sha256(match[1].encode()).hexdigest()[:12]}.{kind}"
            (out / name).write_text(match[1].strip() + "\n")
            address = root + name
            return f'<link rel="stylesheet" href="{address}">' if kind == "css" else f'<script src="{address}"></script>'

        text = page.read_text()
        text = INLINE_STYLE.sub(lambda match: link(match, "css"), text)
        text = INLINE_SCRIPT.sub(lambda match: link(match, "js"), text)
        text = text.replace(' style="display: none;"', " hidden").replace(' style="opacity: 50%"', "")
        for found, named in NAMED.items():
            text = text.replace(found, named)
        if forbidden := FORBIDDEN.search(text):
            line = text.count("\n", 0, forbidden.start()) + 1
            raise ExtensionError(f"{page.relative_to(out)}:{line}: the portal's policy would block {forbidden[0]!r}.")
        page.write_text(text)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", separate)
    return {"parallel_read_safe": True}
