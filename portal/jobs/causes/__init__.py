"""Finds why an attempt did not succeed; ``portal/sentences/causes`` has the words for it, with one next step.

``explain`` reads the rows and logs of an attempt and stores what ``classify``, which is pure, makes of them: ``output``
has the lines of a rank, ``tracebacks`` the exceptions in them, ``endings`` which of them ended which rank, and ``kinds``
recognises failures that are known.
"""

from portal.jobs.causes.cause import Cause, Facts
from portal.jobs.causes.classify import classify
from portal.jobs.causes.rows import QUICK_BYTES, explain, without_detail

__all__ = ["QUICK_BYTES", "Cause", "Facts", "classify", "explain", "without_detail"]
