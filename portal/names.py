"""What makes two names the same, and which characters a name may have."""

import unicodedata

INVISIBLE = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and symbols that are drawn as nothing."""
BAD_CHARACTERS_MESSAGE = (
    "A name has no invisible characters, such as zero-width spaces or marks that change the direction of the text. "
    "Type it instead of pasting it."
)


def name_key(text: str) -> str:
    """Return what two names have in common that people would mistake for each other: José, JOSÉ, and José with a separate accent."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def search_key(text: str) -> str:
    """Return the form in which texts are searched. The function ``Folded`` of the databases does the same."""
    text = unicodedata.normalize("NFKC", text).upper().lower().replace("ς", "σ")
    return unicodedata.normalize("NFKC", text)


def has_invisible_characters(text: str) -> bool:
    """Return whether a text has control or format characters, or others that no one sees."""
    return any(c in INVISIBLE or unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in text)


def name_problem(name: str) -> str:
    """Return a sentence on why nothing can have this name, or ""."""
    if name in (".", ".."):
        return "“.” and “..” cannot be names, because paths use them. Choose another."
    return BAD_CHARACTERS_MESSAGE if has_invisible_characters(name) else ""
