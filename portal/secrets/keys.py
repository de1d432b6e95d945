"""The key of secrets, which is kept outside the database."""

from django.views.decorators.debug import sensitive_variables

from portal import sealing

KEY_FILE = "secrets_key"
"""In the portal's folder. Backups leave it out, or encrypt it: with it, whoever has the database reads all secrets."""


@sensitive_variables("value")
def seal(value: str) -> str:
    return sealing.seal(value, KEY_FILE)


def unseal(sealed: str) -> str | None:
    """Return the value; None if it was sealed with a key that is lost, as after a restore of the database alone."""
    return sealing.unseal(sealed, KEY_FILE)
