"""The glossary of the pages and that of the docs have one meaning for a term."""

import re

from portal.jobs.templatetags.jobs import FIELD_TERMS
from portal.sentences.glossary import TERMS
from tests.architecture.test_house import ROOT, tracked

ONLY_FOR_READERS = {"epoch", "checkpoint", "environment", "outputs", "launcher", "k-sync"}
"""Terms of the field that developers know."""


def test_templates_explain_terms_that_there_are() -> None:
    used = set()
    for path in tracked("templates/*.html"):
        used |= set(re.findall(r'{% term "([^"]+)" %}|term="([^"]+)"', path.read_text()))
    keys = {key for pair in used for key in pair if key} | set(FIELD_TERMS.values())
    assert keys and keys <= TERMS.keys()


def test_the_docs_have_the_terms_of_the_pages() -> None:
    docs = (ROOT / "docs" / "reference" / "glossary.md").read_text().casefold()
    missing = {key for key, term in TERMS.items() if term.title.casefold().removeprefix("on ") not in docs}
    assert missing <= ONLY_FOR_READERS
    assert TERMS.keys() >= ONLY_FOR_READERS


def test_an_explanation_is_a_short_text_of_whole_sentences() -> None:
    for term in TERMS.values():
        assert term.text.endswith(".") and len(term.text) < 200 and not term.title[0].islower()
