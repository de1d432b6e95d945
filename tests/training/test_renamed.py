"""The old keywords and attributes of ``Run`` work for one more release, and each warns once."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from runners.training.schedulearn_train import renamed
from runners.training.schedulearn_train.checkpoints import ArrayCheckpoints, Checkpoints
from runners.training.schedulearn_train.options import AdaptiveBatch, SyncMode
from tests.training.real_ranks import SCRIPTS, run


@pytest.fixture(autouse=True)
def nothing_warned_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(renamed, "_warned", set())
    monkeypatch.delenv("SCHEDULEARN_MODE", raising=False)
    yield


class Taker:
    """Has the keywords of ``Run``."""

    @renamed.accepts_old_keywords
    def __init__(self, **keywords: Any) -> None:
        self.keywords = keywords


class KerasTaker:
    """Has the keywords and attributes of ``keras.Training``."""

    batch = renamed.OldAttribute("batch_size")
    checkpoint_seconds = renamed.OldAttribute("checkpoints.every_seconds")

    @renamed.accepts_old_keras_keywords
    def __init__(self, batch_size: int = 0, checkpoints: ArrayCheckpoints | None = None) -> None:
        self.batch_size, self.checkpoints = batch_size, checkpoints or ArrayCheckpoints()


def translated(**keywords: Any) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return Taker(**keywords).keywords


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"batch": 8}, {"batch_size": 8}),
        ({"workers": 2}, {"num_workers": 2}),
        ({"most_samples": 32}, {"micro_batch_size": 32}),
        ({"also": {"a": 1}}, {"extra_state": {"a": 1}}),
        ({"batch": 8, "batch_range": None}, {"batch_size": AdaptiveBatch(8, 8, 8)}),
        ({"batch": 8, "batch_range": (4, 9)}, {"batch_size": AdaptiveBatch(8, 4, 9)}),
        (
            {"batch": 8, "batch_range": (4, 9), "rate_rule": "sqrt"},
            {"batch_size": AdaptiveBatch(8, 4, 9, lr_scaling="sqrt")},
        ),
        ({"predict": "gru", "mode": "bsp_balanced"}, {"mode": SyncMode("bsp_balanced", predictor="gru")}),
        (
            {"mode": "kasync", "k": 2, "staleness": 3.0, "balanced": True, "shards": 4},
            {"mode": SyncMode("kasync", k=2, staleness=3.0, balanced=True, shards=4)},
        ),
    ],
)
def test_an_old_keyword_is_translated(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert translated(**old) == new
    assert translated(**new) == new


def test_the_mode_of_the_jobs_form_counts_more_than_that_of_old_keywords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEDULEARN_MODE", "kasync")
    assert translated(mode="bsp", k=2) == {"mode": SyncMode("kasync", k=2)}


def test_the_old_interval_of_checkpoints_is_that_of_the_checkpoints() -> None:
    given = Checkpoints("somewhere")
    assert translated(checkpoints=given, checkpoint_seconds=5.0) == {"checkpoints": given}
    assert given.every_seconds == 5.0
    assert translated(checkpoint_seconds=7.0)["checkpoints"].every_seconds == 7.0


def test_each_old_keyword_warns_once_with_its_new_name_at_the_line_that_uses_it() -> None:
    with pytest.warns(FutureWarning, match=r"Run\(batch=\.\.\.\) is now Run\(batch_size=\.\.\.\)") as caught:
        Taker(batch=8)
        Taker(batch=8)
        Taker(batch_size=8)
    assert [warning.filename for warning in caught] == [__file__]


def test_an_old_keyword_together_with_its_new_name_is_refused() -> None:
    with pytest.raises(TypeError, match="both batch and batch_size"):
        translated(batch=8, batch_size=8)


def test_keras_accepts_the_old_keywords_and_attributes() -> None:
    with pytest.warns(FutureWarning) as caught:
        training = KerasTaker(batch=32, checkpoint_seconds=5.0)  # type: ignore[call-arg]
        assert (training.batch, training.checkpoint_seconds) == (32, 5.0)
        training.checkpoint_seconds = 6.0
    assert (training.batch_size, training.checkpoints.every_seconds) == (32, 6.0)
    assert [warning.filename for warning in caught] == [__file__] * 4


@pytest.mark.parametrize(("given", "minimum", "maximum"), [(8, 9, 10), (8, 4, 7), (8, 0, 9)])
def test_a_batch_outside_of_its_limits_is_refused(given: int, minimum: int, maximum: int) -> None:
    with pytest.raises(ValueError, match=f"a batch of {given} is not within its own limits, {minimum} to {maximum}"):
        AdaptiveBatch(given, minimum, maximum)


@pytest.fixture(scope="module")
def found(job_python: str) -> dict[str, Any]:
    return run([job_python, str(SCRIPTS / "renamed.py")], job_python)


@pytest.mark.horovod
def test_a_training_with_old_keywords_is_that_with_new_ones(found: dict[str, Any]) -> None:
    assert found["same"] == [True, True] and found["same options"]
    assert found["intervals"] == [30.0, 60.0]


@pytest.mark.horovod
def test_a_training_warns_once_of_each_old_keyword(found: dict[str, Any]) -> None:
    named = sorted(text.partition("=")[0].removeprefix("Run(") for text in found["warned"])
    assert named == sorted(
        ["batch", "batch_range", "rate_rule", "workers", "most_samples", "checkpoint_seconds", "also"]
    )
    assert len(found["warned of the mode"]) == 5
    assert found["warned again"] == found["warned without old names"] == []


@pytest.mark.horovod
def test_each_old_attribute_works_and_warns_once(found: dict[str, Any]) -> None:
    assert {name: len(texts) for name, texts in found["attributes"].items()} == dict.fromkeys(found["attributes"], 1)
    assert len(found["attributes"]) == 18 and found["module"]
    assert found["values"] == [8, 8, 2, 16, "linear", 0.5, False]


@pytest.mark.horovod
def test_an_attribute_that_is_read_only_now_can_still_be_set_and_warns_once(found: dict[str, Any]) -> None:
    steps, texts = found["setting"]
    assert steps == 8
    assert len(texts) == 1 and texts[0].startswith("Run.steps is now read-only; ")
