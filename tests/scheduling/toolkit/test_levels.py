"""Numbers per node that answer questions as a look at every node would."""

from hypothesis import given
from hypothesis import strategies as st

from scheduling.toolkit.levels import Levels

NODES = "abcdef"
COUNTS = st.dictionaries(st.sampled_from(NODES), st.integers(0, 4))
SOME = st.none() | st.frozensets(st.sampled_from(NODES))


@given(
    counts=COUNTS,
    changes=st.lists(st.tuples(st.sampled_from(NODES), st.integers(-1, 5))),
    minimum=st.integers(1, 5),
    allowed=SOME,
    without=st.frozensets(st.sampled_from(NODES)),
    last=st.sampled_from(["", "b", "cc", "f"]),
)
def test_answers_are_those_of_a_plain_search(
    counts: dict[str, int],
    changes: list[tuple[str, int]],
    minimum: int,
    allowed: frozenset[str] | None,
    without: frozenset[str],
    last: str,
) -> None:
    levels, plain = Levels(counts), dict(counts)
    assert levels.sum_of(allowed) == sum(plain[node] for node in plain if allowed is None or node in allowed)
    for node, count in changes:
        if node in plain:
            levels[node] = plain[node] = count
    assert levels == plain and levels.sum == sum(plain.values())
    some = [node for node in plain if allowed is None or node in allowed]
    assert levels.sum_of(allowed) == sum(plain[node] for node in some)
    enough = [node for node in some if plain[node] >= minimum]
    roomy = [node for node in enough if node not in without]
    assert levels.tightest(minimum, allowed, without) == min(roomy, key=lambda node: (plain[node], node), default=None)
    free = [node for node in some if plain[node] > 0]
    assert list(levels.fullest(allowed)) == sorted(free, key=lambda node: (-plain[node], node))
    assert levels.first_after(last, minimum, allowed) == min(
        enough, key=lambda node: (node <= last, node), default=None
    )


def test_a_copy_is_its_own() -> None:
    one = Levels({"a": 1, "b": 2})
    two = Levels(one)
    two["a"] = 3
    assert one == {"a": 1, "b": 2} and one.tightest(3) is None and two.tightest(3) == "a"
