"""Colours for code: HTML whose spans have classes only, so that it needs no inline style (static/css/highlight.css).

The language comes from the name of the file, or is named; never from the content. Lexers are patterns, some of which are slow
on malicious text, so files of users are highlighted in a process with limits (``portal.previews``).
"""

from html import escape

from pygments import highlight
from pygments.formatters.html import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import find_lexer_class_for_filename, get_lexer_by_name
from pygments.util import ClassNotFound

MAX_CHARACTERS = 300 * 1024
"""Longer texts stay without colours."""
CLASS_PREFIX = "hl-"
LANGUAGES = frozenset(
    {
        "bash", "c", "cmake", "cpp", "css", "cuda", "cython", "diff", "docker", "fortran", "go", "haskell", "html", "ini",
        "java", "javascript", "json", "jsx", "julia", "kotlin", "lua", "make", "markdown", "matlab", "perl", "php",
        "powershell", "properties", "protobuf", "python", "r", "restructuredtext", "ruby", "rust", "scala", "scss", "sql",
        "svg", "swift", "tex", "toml", "typescript", "xml", "yaml",
    }
)  # fmt: skip
"""What a lab writes, by the names of Pygments; anything else is plain text."""
OTHER_ENDINGS = {
    ".bib": "tex", ".ipynb": "json", ".jsonl": "json", ".m": "matlab", ".ndjson": "json", ".r": "r", ".sql": "sql", ".svg": "xml",
}  # fmt: skip
"""Languages of endings that Pygments knows for several languages, or does not know."""

_formatter = HtmlFormatter(nowrap=True, classprefix=CLASS_PREFIX)


def highlight_lines(text: str, *, path: str = "", language: str = "") -> list[str]:
    """Return the lines of a text as HTML, in the language that a file of this path has, or in the language named."""
    lines = text.split("\n")
    lexer = _lexer_named(language) if language else _lexer_for(path)
    if lexer is not None and len(text) <= MAX_CHARACTERS:
        coloured: list[str] = highlight(text, lexer, _formatter).split("\n")
        coloured = coloured[: len(lines)] if not any(coloured[len(lines) :]) else coloured
        if len(coloured) == len(lines):
            return coloured
    return [escape(line) for line in lines]


def highlight_block(text: str, *, path: str = "", language: str = "") -> str:
    """Return a text as HTML, for a ``<pre>`` without line numbers."""
    return "\n".join(highlight_lines(text, path=path, language=language))


def _lexer_for(path: str) -> Lexer | None:
    name = path.rpartition("/")[2]
    for ending, language in OTHER_ENDINGS.items():
        if name.lower().endswith(ending):
            return _lexer_named(language)
    found = find_lexer_class_for_filename(name)
    return _without_changes(found) if found is not None and not LANGUAGES.isdisjoint(found.aliases) else None


def _lexer_named(language: str) -> Lexer | None:
    try:
        found = type(get_lexer_by_name(language))
    except ClassNotFound:
        return None
    return _without_changes(found) if not LANGUAGES.isdisjoint(found.aliases) else None


def _without_changes(lexer: type[Lexer]) -> Lexer:
    """Return a lexer that keeps every character; by default they strip empty lines and end the last one."""
    return lexer(stripnl=False, stripall=False, ensurenl=False)
