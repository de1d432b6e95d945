"""Laws of all lists: whatever the bytes are, nothing raises, and what is accepted is harmless and means one thing."""

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement

from portal.projects.package_lists.model import PackageList, as_json, from_json
from portal.projects.package_lists.reading import read_list
from portal.projects.package_lists.typed import read_typed
from tests.examples import examples

PATHS = ("requirements.txt", "pyproject.toml", "environment.yml", "sub/requirements/base.txt")
ALLOWED = ("https://good.example.org/whl/", "git+https://git.example.org/lab")

WORDS = st.sampled_from(
    ["numpy", "Torch", "a.b_c", "1.2", "==", ">=", "<", "!=", "~=", "===", ",", ";", " ", "  ", "\t", "\n", "\r", "\\\n", "\x0b", "\x0c", "\x85",
     "\u2028", "\0", "#", " #", "@", " @ ", "[", "]", "(", ")", "'", '"', "python_version", "sys_platform", "extra", "and", "or", "in", "not",
     "-e ", "-r ", "-c ", "-i ", "--index-url ", "--hash=sha256:ab", " --no-binary ", "-", "--", "https://", "http://", "git+https://",
     "file:///croot/", "good.example.org", "evil.example.com", "/whl/", "git.example.org/lab/x", "..", "/", "base.txt", "requirements.txt", "$",
     "{A}", "%2e", "%2B", "*", ".*", "+cu118", "pip install ", "&&", "|", "é", "\ufeff", "dependencies:", "- pip:\n", "\n  - ", ": ",
     "[project]\n", "dependencies = [", "[tool.poetry.dependencies]\n", " = ", "^", "~", "&a", "*a", "!!python/name:os "]
)  # fmt: skip
TEXTS = st.lists(WORDS, max_size=25).map("".join)
HEADS = st.sampled_from(
    ["", "dependencies:\n  - ", "dependencies:\n- pip:\n  - ", "[project]\ndependencies = ['", '[project]\ndependencies = ["""',
     "[tool.poetry.dependencies]\nnumpy = '", "\ufeff"]
)  # fmt: skip
TAILS = st.sampled_from(["", "']", '"""]', "'", "\n"])
CONTENTS = (
    st.binary(max_size=200)
    | st.builds(lambda head, text, tail: (head + text + tail).encode(), HEADS, TEXTS, TAILS)
    | TEXTS.map(lambda text: text.encode("utf-16"))
    | TEXTS.map(lambda text: text.encode("latin-1", errors="replace"))
)


def check(found: PackageList, allowed: tuple[str, ...]) -> None:
    for line in (*found.lines, *found.constraints):
        assert re.fullmatch(r"[a-z0-9][ -~]*", line), line
        assert not re.search(r"(^|[ \t])-", line), line
        again = Requirement(line)
        assert read_list("requirements.txt", {"requirements.txt": line.encode()}.get, allowed).lines == (line,)
        assert Requirement(read_typed(line, allowed).lines[0]) == again
        if "://" in line or again.url:
            assert again.url and again.url.startswith(allowed), line
    assert all(index.startswith(allowed) for index in found.indexes)
    assert re.fullmatch(r"(3\.\d+)?", found.python)
    for each in found.refused:
        assert each.why.endswith(".") and each.text.isprintable() and each.line >= 0
    assert all(note.text.endswith(".") and note.text.isprintable() for note in found.notes)
    assert from_json(as_json(found)) == found


@settings(max_examples=examples(2000, 200))
@given(st.sampled_from(PATHS), CONTENTS, CONTENTS, st.sampled_from([(), ALLOWED]))
@example("requirements.txt", b"a @ https://good.example.org/whl/ ; extra == 'b'", b"", ALLOWED)
@example("requirements.txt", b"a; sys_platform == 'x\x0b--pre'", b"", ())
@example("environment.yml", b"dependencies: ['numpy=1=a --pre', \"six\\n--pre\"]", b"", ())
def test_no_file_raises_and_what_is_accepted_is_harmless(
    path: str, content: bytes, base: bytes, allowed: tuple[str, ...]
) -> None:
    check(read_list(path, {"base.txt": base, path: content}.get, allowed), allowed)


@settings(max_examples=examples(2000, 200))
@given(TEXTS | st.text(max_size=100), st.sampled_from([(), ALLOWED]))
def test_nothing_typed_raises_and_what_is_accepted_is_harmless(text: str, allowed: tuple[str, ...]) -> None:
    check(read_typed(text, allowed), allowed)
