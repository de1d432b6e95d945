"""``python -m portal.ops.reference``: write docs/api/schema.yml, then all pages that are written from the code."""

import os

import django
from django.core.management import call_command

from portal.ops.reference import SCHEMA, pages, write

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    django.setup()
    call_command("spectacular", fail_on_warn=True, file=str(SCHEMA))
    write(pages())
