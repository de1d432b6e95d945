"""Parts of ``manage.py up`` (``make run``): checks before the start, running processes, and the report of first jobs."""
