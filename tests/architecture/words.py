"""Words that this project does not use, and where some still stand (docs/reference/glossary.md has the words to use instead).

``python -m tests.architecture.words`` counts them again and writes the places to ``words.toml``; it refuses to add one.
"""

import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = Path(__file__).with_suffix(".toml")
SOURCES = ("portal", "scheduling", "runners", "templates", "docs", "tests")
FOREIGN = {"migrations", "blind"}
"""Folders with what stays as it was written: old migrations, and programs of users (tests/failures/blind)."""
SUFFIXES = {".py", ".html", ".txt", ".md"}

BANNED = {
    "told": "reported, sent, given",
    "tells": "reports, sends, shows",
    "says": "reports, states",
    "said": "reported, status",
    "nobody": "no user, no one; or turn the sentence round",
    "somebody": "a user, another user",
    "anew": "again, from the beginning",
    "mend": "fix",
    "mends": "fixes",
    "mended": "fixed",
    "besides": "also, in addition",
    "lately": "recently",
    "door": "endpoint",
    "doors": "endpoints",
    "hands": "actions, passes",
    "deed": "action",
}
"""The word, and what to write instead. Identifiers are split at underscores and capitals."""

ALLOWED: dict[str, dict[str, str]] = {
    "docs/api/reference/nodes.md": {"mend": "former name of a JSON field, for one release"},
    "docs/architecture/layout.md": {"door": "former name of a module", "hands": "former name of a module"},
    "docs/reference/compatibility.md": {
        "mend": "former name of a JSON field",
        "said": "name of a column",
        "told": "key in files of the previous release",
    },
    "docs/reference/glossary.md": {
        "deed": "former name of a class",
        "door": "in a former name of a class",
        "hands": "former name of a class",
        "told": "former name of a class",
        "mend": "former name of a JSON field",
        "said": "in former names of functions and a field",
    },
    "portal/agents/queries.py": {"said": "name of a column"},
    "portal/cluster/models.py": {"said": "name of a column"},
    "runners/agent/journal.py": {"told": "key in files of the previous release"},
    "runners/environments/horovod_wheel.py": {"mend": "part of the key of wheels that are compiled already"},
    "runners/environments/images/constraints-cuda.txt": {"besides": "a change would resolve all packages again"},
    "runners/messages/problems.py": {"mend": "former name of a JSON field, for one release"},
    "tests/architecture/test_words.py": {"told": "a word to be found"},
    "tests/architecture/words.py": dict.fromkeys(BANNED, "the list itself"),
    "tests/outside/history_laws.py": {"told": "in histories of the previous release"},
    "tests/portal/agents/test_unchanged.py": {"mend": "former name of a JSON field, for one release"},
    "tests/portal/cluster/test_upgrade.py": {"mend": "in rows of an earlier release"},
    "tests/runners/agent/test_journal.py": {
        "nobody": "the Unix user, in the name of a helper",
        "told": "key in files of the previous release",
    },
    "tests/runners/conftest.py": {"nobody": "the Unix user"},
    "tests/runners/environments/test_images.py": {"nobody": "the Unix user"},
    "tests/runners/host/test_node_files.py": {"nobody": "the Unix user, in the name of a helper"},
    "tests/runners/runtimes/test_confined_jobs.py": {"nobody": "the Unix user"},
    "tests/runners/test_messages.py": {"mend": "former name of a JSON field, for one release"},
}
"""By file: the words that it may contain, each with the reason."""

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def words_in(text: str) -> Iterable[str]:
    """Yield the words of a text in lower case."""
    return (found.group().lower() for found in WORD.finditer(text))


def sources(root: Path = ROOT) -> list[Path]:
    """Return the tracked files in which words count: code, templates, documentation and tests, without migrations."""
    listed = subprocess.run(["git", "ls-files", *SOURCES], cwd=root, capture_output=True, text=True, check=True)
    paths = [root / line for line in listed.stdout.splitlines()]
    return [path for path in paths if path.suffix in SUFFIXES and not FOREIGN & set(path.parts) and path.is_file()]


def places(root: Path = ROOT) -> dict[str, dict[str, int]]:
    """Count the banned words by file, without those that are allowed there."""
    found = {}
    for path in sources(root):
        name = str(path.relative_to(root))
        counts = Counter(word for word in words_in(path.read_text()) if word in BANNED)
        left = {word: count for word, count in sorted(counts.items()) if word not in ALLOWED.get(name, {})}
        if left:
            found[name] = left
    return found


def listed() -> dict[str, dict[str, int]]:
    """Return the places that are known to be left, by file."""
    return tomllib.loads(PLACES.read_text()) if PLACES.exists() else {}


def total(found: Mapping[str, Mapping[str, int]]) -> Counter[str]:
    """Add up the places of each word."""
    counts: Counter[str] = Counter()
    for words in found.values():
        counts.update(words)
    return counts


def main() -> int:
    found, before = places(), listed()
    more = {word: count for word, count in total(found).items() if PLACES.exists() and count > total(before)[word]}
    if more:
        for word in more:
            sys.stderr.write(f"There are more places with {word!r} than before. Write: {BANNED[word]}.\n")
        return 1
    lines = [
        "# Places that still contain a banned word, with the count. Written by python -m tests.architecture.words\n"
    ]
    for name, words in found.items():
        lines.append(f'"{name}" = {{ {", ".join(f"{word} = {count}" for word, count in words.items())} }}\n')
    PLACES.write_text("".join(lines))
    sys.stdout.write(f"{sum(total(found).values())} places in {len(found)} files\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
