"""The documentation as a site: ``make docs`` builds it into docs/_build/html, which the portal serves at /help/."""

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "_ext"))

project = "Schedulearn"
copyright = "the Schedulearn authors"  # noqa: A001  # Sphinx reads this name
release = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser", "sphinx_copybutton", "strict_pages"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = True
smartquotes = False  # sentences have code in them, which readers copy: 'x' and --help stay as they are

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]

html_theme = "furo"
html_title = f"Schedulearn {release}"
html_logo = "../static/img/favicon.svg"
html_favicon = "../static/img/favicon.svg"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/portal.html",  # the pages are at /help/ of a portal
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_last_updated_fmt = None  # the same sources give the same pages
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"  # WCAG AAA
copybutton_exclude = ".linenos, .gp, .go"

# `make docs-links` follows links to other sites.
linkcheck_ignore = [r"http://(localhost|127\.0\.0\.1).*", r"https://[a-z.]*example\.org.*"]
linkcheck_timeout = 20
