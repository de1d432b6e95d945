"""A corpus of failures: programs that fail, and what a good cause names.

``blind`` was written by someone who did not know how causes are found, and is not changed. Each folder has a program and
``case.json``. ``python -m tests.failures.record FOLDER`` runs them on the product and writes ``recorded.json`` beside each:
how the containers ended, and the log. ``score`` judges causes, of a run or found again from what was recorded.
"""
