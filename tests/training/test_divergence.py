"""Ranks train one and the same model: what would make them differ is put right, or ends the training with a reason."""

from typing import Any

import pytest

from tests.examples import mostly_thorough
from tests.training.real_ranks import LAUNCHERS, SCRIPTS, run

pytestmark = [pytest.mark.horovod, pytest.mark.timeout(400)]


@pytest.fixture(scope="module", params=mostly_thorough(["horovod", "torchrun"], "horovod"))
def found(request: pytest.FixtureRequest, job_python: str) -> dict[str, Any]:
    return run([*LAUNCHERS[request.param], str(SCRIPTS / "diverging.py"), request.param], job_python)


def test_ranks_that_begin_differently_train_what_rank_0_began_with(found: dict[str, Any]) -> None:
    assert found["beginning"] < 1e-9
    assert found["order"] < 1e-9


def test_a_layer_that_is_unfrozen_in_mid_run_gets_the_updates_of_one_process(found: dict[str, Any]) -> None:
    """Also where the optimizer knows nothing of it before, and where ranks have no samples in some of the steps."""
    assert found["unfrozen"] < 1e-9
    assert found["unfrozen, in passes"] < 1e-9
    assert found["given later"] < 1e-9


def test_a_loss_of_the_own_model_makes_the_updates_of_one_process(found: dict[str, Any]) -> None:
    assert found["own model"] < 1e-9
    assert found["own model, in passes"] < 1e-9


def test_a_layer_that_is_frozen_in_mid_run_stays_as_it_is(found: dict[str, Any]) -> None:
    assert found.get("frozen", 0.0) < 1e-9  # torchrun's ranks end with an error


def test_a_parameter_of_the_loss_gets_the_updates_of_one_process(found: dict[str, Any]) -> None:
    assert found.get("outside", 0.0) < 1e-9  # Horovod's optimizer refuses such


def test_a_rank_that_changes_a_weight_ends_all_ranks_and_is_named(found: dict[str, Any]) -> None:
    assert len(set(found["written"])) == 1
    text = found["written"][0]
    assert text.startswith("RanksDivergedError: The ranks have diverged: at step ")
    assert "the parameters of rank 2 differ from those of rank 0 in " in text and "of 4: 0.weight by " in text
    assert "check_divergence=False" in text


def test_updates_that_each_rank_makes_for_itself_end_all_ranks(found: dict[str, Any]) -> None:
    assert len(set(found["own updates"])) == 1
    assert "the parameters of ranks 1 and 2 differ from those of rank 0 in 2 of 4" in found["own updates"][0]


def test_ranks_with_other_data_or_in_another_order_end_and_are_named(found: dict[str, Any]) -> None:
    named = {"order": "rank 1 has", "parts": "ranks 1 and 2 have"}
    for kind, who in named.items():
        text = found["data"][kind]
        assert len(set(text)) == 1
        assert text[0].startswith(
            f"RanksDivergedError: The ranks do not have the same data: {who} other data than rank 0"
        )
        assert "check_divergence=False" in text[0]
    assert found["data"]["same"] == found["data"]["rounding"] == ["", "", ""]


def test_made_up_samples_that_differ_from_rank_to_rank_are_mentioned_and_go_on(found: dict[str, Any]) -> None:
    """A trial run on random numbers without a seed is no mistake."""
    assert found["data"]["tensors"] == ["", "", ""]
    assert [line.startswith("The ranks do not have the same data: rank 2 has") for line in found["printed"]] == [True]


def test_ranks_that_differ_by_rounding_or_on_purpose_go_on(found: dict[str, Any]) -> None:
    assert found["rounded"] == ["", "", ""]
    assert found["written, allowed"] == ["", "", ""]


def test_ranks_train_as_before_together_with_one_of_an_earlier_release(found: dict[str, Any]) -> None:
    assert max(found["earlier releases"]) < 1e-9
    assert all("an earlier release" in text for text in found["earlier, unfrozen"])


@pytest.fixture(scope="module")
def sums(job_python: str) -> dict[str, Any]:
    return run([job_python, str(SCRIPTS / "checksums.py")], job_python)


def test_checksums_depend_on_every_bit_and_on_nothing_else(sums: dict[str, Any]) -> None:
    assert all(sums["last bits"])
    assert sums["memory"] and sums["a part of a tensor"]
    assert sums["nothing"] == [[], [0]]


def test_differences_are_parts_of_the_largest_value(sums: dict[str, Any]) -> None:
    assert sums["distances"] == [0.2, 0.2, 0.0, 0.0]
    assert sums["beyond"] == [True, True]
    assert sums["tolerances"] == [1e-3, 0.03125, 0.0]


def test_a_divergence_is_reported_with_its_ranks_and_first_parameters(sums: dict[str, Any]) -> None:
    assert sums["message"].startswith(
        "The ranks have diverged: at step 12 the parameters of ranks 1 and 3 differ from those of rank 0 in 2 of 9: "
        "a.weight by 3.1% of its largest value, b by more than 1000% of its largest value. Update parameters by run.step"
    )


def test_a_parameter_server_refuses_a_layer_that_it_would_not_train(sums: dict[str, Any]) -> None:
    assert sums["server"]["bsp"] == ""
    assert "mode asp trains the parameters that required gradients" in sums["server"]["asp"]
    assert "0.weight did not" in sums["server"]["ksync"]
