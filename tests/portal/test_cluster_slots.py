"""A CPU slot is never called a GPU, and one is not several."""

import pytest

from portal.cluster.models import Gpu
from portal.cluster.slots import counted, in_cpu_slots, lab_noun, noun
from portal.control.places import Nodes, why_nowhere
from tests.portal.jobs_world import make_node


@pytest.mark.parametrize(
    ("kinds", "word"), [(["cpu", "cpu"], "CPU slot"), (["cuda"], "GPU"), (["cpu", "cuda"], "GPU"), ([], "GPU")]
)
def test_only_what_is_all_cpu_slots_is_called_so(kinds: list[str], word: str) -> None:
    assert noun(kinds) == word


def test_counting() -> None:
    assert [counted(count, "CPU slot") for count in (0, 1, 2)] == ["0 CPU slots", "1 CPU slot", "2 CPU slots"]


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("It needs 2 GPUs at once and only 1 is free.", "It needs 2 CPU slots at once and only 1 is free."),
        ("1 GPU is being given back.", "1 CPU slot is being given back."),
        ("It has had 3.0 GPU-hours on node GPU-box.", "It has had 3.0 GPU-hours on node GPU-box."),
        ("Nothing to replace.", "Nothing to replace."),
    ],
)
def test_reasons_of_a_lab_without_gpus_name_cpu_slots(sentence: str, expected: str) -> None:
    assert in_cpu_slots(sentence) == expected


@pytest.mark.django_db
def test_the_lab_is_named_by_what_its_machines_offer() -> None:
    assert lab_noun() == "GPU"
    make_node("a")
    assert lab_noun() == "CPU slot"
    Gpu.objects.create(node=make_node("b", 0), uuid="GPU-b", index=0, kind="cuda", model="NVIDIA A40")
    assert lab_noun() == "GPU"


@pytest.mark.parametrize(("count", "needed"), [(1, "1 GPU"), (3, "3 GPUs")])
def test_a_lab_that_is_too_small_is_reported_in_the_right_number(count: int, needed: str) -> None:
    nodes = Nodes([object()], {}, {}, {}, frozenset(), {}, {}, frozenset())  # type: ignore[list-item]
    assert why_nowhere(count, 1, "PyTorch", nodes, frozenset()).startswith(
        f"It needs {needed} at once, but the lab has 0"
    )
