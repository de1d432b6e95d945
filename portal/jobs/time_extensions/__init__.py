"""Requests for more time for a job that runs: who asks, who decides, and what a rule of the lab grants without asking.

``models`` keeps the requests, ``services`` makes and decides them, ``messages`` are what people are notified of. Which jobs
would wait longer for it is computed in ``portal/forecast/delays.py``.
"""
