"""Ranks of a job environment, as the runners' tests prepare it."""

from tests.runners.conftest import job_python as job_python
from tests.runners.conftest import keras_python as keras_python
