"""Whether a loss is a mean or a sum is detected or declared, never guessed."""

from typing import Any

import pytest

from tests.training.real_ranks import SCRIPTS, run

pytestmark = [pytest.mark.horovod, pytest.mark.timeout(120)]

MEANS = {
    "cross_entropy", "label smoothing", "probabilities", "mse", "l1", "bce", "kl, batchmean", "gaussian", "triplet", "tokens",
    "by hand", "mean of sums over features", "sum divided by samples", "times one over the samples", "weighted", "two heads",
    "two heads, stacked", "decay of a parameter as long as the samples", "half precision", "half of the mean squares", "weight decay",
    "wide, mean over samples, sum over features", "wide, sum over features, mean over samples", "autoencoder",
    "loop over samples, divided by them", "loop over samples, stacked", "as many heads as samples, mean",
    "picked for each sample", "over a parameter",
}  # fmt: skip
SUMS = {
    "cross_entropy, sum", "label smoothing, sum", "mse, sum", "smooth l1, sum", "by hand, sum", "sum of means over features",
    "mean over features of sums", "mean times samples", "weighted, sum", "two heads, sums", "half of the squares",
    "weight decay, sum", "nothing but a parameter less the samples",
    "wide, sum over samples, mean over features", "wide, mean over features, sum over samples", "loop over samples",
}  # fmt: skip
UNSEEN = {
    "masked tokens", "masked by a plain number", "sum over a constant", "a function of its own", "norm", "nothing to learn",
    "as many heads as samples, sum", "losses of single samples", "chosen by a mask", "deviation within the batch",
    "product of means", "ratio of means",
}  # fmt: skip


@pytest.fixture(scope="module")
def found(job_python: str) -> dict[str, Any]:
    return run([job_python, str(SCRIPTS / "reductions.py")], job_python)


def test_losses_are_seen_as_they_were_reduced(found: dict[str, Any]) -> None:
    kinds = found["kinds"]
    assert {name for name, kind in kinds.items() if kind == ["mean"]} == MEANS
    assert {name for name, kind in kinds.items() if kind == ["sum"]} == SUMS
    assert {name for name, kind in kinds.items() if not kind} == UNSEEN
    assert {name for name, kind in kinds.items() if len(kind) == 2} == {"mean and sum"}


def test_what_cannot_be_seen_is_asked_for_and_what_cannot_be_right_is_refused(found: dict[str, Any]) -> None:
    answers = found["answers"]
    assert (answers["a mean"], answers["a sum"], answers["one sample"]) == ("8", "1", "1")
    assert "parts of it are means and others sums. Pass Run(..., reduction=" in answers["both"]
    assert "this could not be detected. Pass Run(" in answers["hidden"]
    assert (answers["hidden, declared"], answers["both, declared"]) == ("8", "8")
    assert answers["hidden, in a training that began when all were sums"] == "1"
    assert answers["a mean, declared a sum"].startswith(
        'Run was created with reduction="sum", but the loss passed to run.step is a mean'
    )


def test_means_over_targets_that_count_unequally_are_noticed(found: dict[str, Any]) -> None:
    assert found["hinted"] == {
        "classes with weights": True,
        "the second of two heads": True,
        "targets left out": True,
        "all alike": False,
        "a sum": False,
    }
