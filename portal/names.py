"""What makes two names the same, and which characters a name may have."""

import unicodedata

INVISIBLE = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and symbols that are drawn as nothing."""
MAX_TYPED_CHARACTERS = 254
"""No name of a user or group and no e-mail address is longer."""
SPARE = "\n"
"""What the key of a row begins with whose own key another row has; no name has it."""
BAD_CHARACTERS_MESSAGE = (
    "A name has no invisible characters, such as zero-width spaces or marks that change the direction of the text. "
    "Type it instead of pasting it."
)


def name_key(text: str) -> str:
    """Return what two names have in common that people would mistake for each other: José, JOSÉ, and José with a separate accent."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def spare_key(key: str, pk: int) -> str:
    """Return the key of a row whose name has the same key as that of an earlier row, as earlier releases allowed."""
    return f"{SPARE}{key}{SPARE}{pk}"


def is_key_of(stored: str, key: str) -> bool:
    """Return whether a stored key is this one or stands for it."""
    return stored == key or stored.startswith(f"{SPARE}{key}{SPARE}")


def is_unstorable(text: str) -> bool:
    """Return whether a text has a NUL, which PostgreSQL cannot store, or half a surrogate pair."""
    return "\0" in text or any("\ud800" <= character <= "\udfff" for character in text)


def may_be_name(typed: str) -> bool:
    """Return whether a user, a group or an e-mail address may be called this; databases refuse to look for other texts."""
    return len(typed) <= MAX_TYPED_CHARACTERS and not is_unstorable(typed)


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
