"""The rows of the database at ``/admin/data/``: Django's own admin for looking things up (docs/admin/data.md).

It reads. What may be changed there goes through a service of its app (``edits``), never to a column directly.
"""
