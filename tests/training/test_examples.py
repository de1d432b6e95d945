"""Each public docstring of the library has an example, and the example is true."""

import sys
from pathlib import Path

import pytest

from runners import training
from tests.training.real_ranks import SCRIPTS, run

WITHOUT_TORCH = ("AdaptiveBatch", "Notice", "Sampler", "Stopped", "SyncMode", "log_metric", "notice", "should_stop")


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_the_examples_of_what_needs_no_torch_are_true(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(training.__file__).parent))
    monkeypatch.delenv("SCHEDULEARN_CHECKPOINTS", raising=False)
    from tests.training.scripts import examples

    assert examples.failures([name]) == {}
    assert "torch" not in sys.modules


@pytest.mark.horovod
def test_the_examples_of_all_public_names_are_true(job_python: str) -> None:
    assert run([job_python, str(SCRIPTS / "examples.py")], job_python) == {"failures": {}}


@pytest.mark.horovod
@pytest.mark.thorough
def test_the_example_for_keras_is_true(keras_python: str) -> None:
    assert run([keras_python, str(SCRIPTS / "examples.py"), "keras.Training"], keras_python) == {"failures": {}}
