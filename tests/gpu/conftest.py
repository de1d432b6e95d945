"""Containers as the runners' tests make them. Everything here needs a CUDA device: ``make test-gpu``."""

from tests.runners.conftest import engine as engine
from tests.runners.conftest import folders as folders
from tests.runners.conftest import pretender as pretender
from tests.runners.runtimes.test_docker import runtime as runtime
