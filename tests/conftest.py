"""Fixtures every layer shares. Tests keep their files in a folder of their own, never in the user's home."""

import os
import tempfile

os.environ.setdefault("SCHEDULEARN_HOME", tempfile.mkdtemp(prefix="schedulearn-test-"))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
