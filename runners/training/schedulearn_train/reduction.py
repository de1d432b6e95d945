"""Detects whether a loss is a mean over the samples or their sum, from the graph that computed it.

A step needs the sum over all ranks' samples; a mean contributes its value times the number of samples it was taken over.
Which of the two a script passes is recorded in the autograd graph: torch's own losses keep their ``reduction``, and
``mean()`` and ``sum()`` the shape of what they reduced. What comes after the reduction (a factor, a sum of several losses,
another type) is passed through, and what depends on the parameters alone (weight decay in the loss) is passed over.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import torch

Reduction = Literal["mean", "sum"]
TORCHS = {1: "mean", 2: "sum"}
"""``_saved_reduction`` of torch's losses; 0 is none of the two."""
PASS_THROUGH = {"Add", "Sub", "Neg", "Mul", "Div", "ToCopy", "Clone", "Alias", "View", "Reshape", "Squeeze"}
PASS_THROUGH |= {"Unsqueeze", "Expand", "Stack", "Cat", "Select", "_DDPSink"}
"""Operations after which a mean is still a mean, and a sum a sum."""
OF_PARAMETERS = PASS_THROUGH | {"Pow", "Abs", "Sqrt", "Sum", "Mean", "Norm", "LinalgVectorNorm", "T", "Transpose"}
LEAF = "torch::autograd::AccumulateGrad"
MOST_WEIGHT = 4
"""A loss that is divided by a larger whole number may be divided by a number of samples."""
MAX_NODES = 400
"""Of the graph are looked at; a loss is reduced near its end."""


class _Divisor(NamedTuple):
    value: float
    counts: bool
    """It may be a number of samples, or of tokens: it was computed, or is not small."""


class _Way(NamedTuple):
    """From the loss to a node of its graph."""

    node: Any
    output: int
    """Of the node's."""
    divisors: tuple[_Divisor, ...]
    """What was divided by on the way."""


def reduction_of(loss: torch.Tensor, samples: int) -> set[Reduction]:
    """Return how a loss over so many samples was reduced; both kinds when it adds up several losses.

    Empty when that cannot be detected, as for a sum divided by another number than that of the samples.
    """
    found: set[Reduction] = set()
    divided = False
    todo = [_Way(loss.grad_fn, loss.output_nr, ())]
    for _ in range(MAX_NODES):
        if not todo:
            return found if not divided or "mean" in found else set()
        way = todo.pop()
        if way.node is None or _is_of_parameters(way.node, samples):
            continue
        kind = _reduction(way.node, samples)
        values = [divisor.value for divisor in way.divisors]
        if kind == "sum" and samples in values:
            found.add("mean")
        elif kind == "sum" and any(divisor.counts for divisor in way.divisors):
            divided = True  # by the tokens that count, say: beside a mean it is one
        elif kind == "mean" and 1 / samples in values:
            found.add("sum")
        elif kind is not None:
            found.add(kind)
        elif _name(way.node) in PASS_THROUGH or _reduces_others(way.node, samples):
            todo += _inputs(way, samples)
        else:
            return set()
    return set()


def _reduction(node: Any, samples: int) -> Reduction | None:
    """Of the node that takes the samples together; None for any other."""
    said = _saved(node, "reduction")
    if said is not None:
        return TORCHS.get(said)  # type: ignore[return-value]
    if _name(node) in ("Mean", "Sum") and not _reduces_others(node, samples):
        return "mean" if _name(node) == "Mean" else "sum"
    return None


def is_weighted_mean(loss: torch.Tensor) -> bool:
    """Whether a cross entropy in the graph of the loss weights classes, or ignores some of these labels.

    The mean over a part of a batch then stands for that part's weights, and not for its samples.
    """
    todo = [loss.grad_fn]
    for _ in range(MAX_NODES):
        if not todo:
            return False
        node = todo.pop()
        total = _saved(node, "total_weight")
        if total is not None and TORCHS.get(_saved(node, "reduction")) == "mean":
            if _saved(node, "weight") is not None or float(total) != _saved(node, "target").numel():
                return True
            continue
        todo += [input for input, _ in node.next_functions if input is not None]
    return False


WEIGHTED_MEAN = (
    "The loss is a mean over labels that do not count alike: classes have weights, or some labels are ignored. Updates then "
    "depend slightly on how a batch is split over the ranks. For the updates of a single process pass a sum "
    '(reduction="sum" of the loss); to keep the mean without this message, Run(..., reduction="mean")'
)


def _reduces_others(node: Any, samples: int) -> bool:
    """It takes together what is not samples: the features of a mean over them, say, or the losses of several heads."""
    shape = _saved(node, "self_sym_sizes")
    return _name(node) in ("Mean", "Sum") and (not shape or shape[0] % samples != 0)


def _is_of_parameters(node: Any, samples: int) -> bool:
    """Nothing but parameters and plain numbers went into it."""
    shapes: list[Any] = []
    reduced: list[Any] = []
    todo = [node]
    for _ in range(MAX_NODES):
        if not todo:
            return all(shape in shapes for shape in reduced)  # else data made it larger: a parameter less the samples
        each = todo.pop()
        if each.name() == LEAF:
            shapes.append(each.variable.shape)
            continue
        if _name(each) not in OF_PARAMETERS or any(map(_is_data, (_saved(each, "self"), _saved(each, "other")))):
            return False
        shape = _saved(each, "self_sym_sizes")
        if _name(each) in ("Mean", "Sum") and shape and shape[0] % samples == 0:
            reduced.append(shape)
        todo += [input for input, _ in each.next_functions if input is not None]
    return False


def _is_data(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 0 and value.is_leaf and not value.requires_grad


def _saved(node: Any, name: str) -> Any:
    return getattr(node, f"_saved_{name}", None)


def _name(node: Any) -> str:
    """Without the number of its variant: ``Mul`` for ``MulBackward0``."""
    return str(node.name()).rstrip("0123456789").removesuffix("Backward")


def _inputs(way: _Way, samples: int) -> Iterator[_Way]:
    inputs = way.node.next_functions
    if _name(way.node) == "_DDPSink":  # all that the model gave, in its order
        inputs = inputs[way.output : way.output + 1]
    divisor = _divisor(way.node, samples)
    divisors = way.divisors if divisor is None else (*way.divisors, divisor)
    yield from (_Way(node, output, divisors) for node, output in inputs)


def _divisor(node: Any, samples: int) -> "_Divisor | None":
    """The one number by which it divides. Of factors only those that undo a reduction count: others are weights."""
    other = _saved(node, "other")
    is_plain = not isinstance(other, torch.Tensor) or _was_plain(other)
    if isinstance(other, torch.Tensor):
        other = other.item() if other.ndim == 0 else None
    if not isinstance(other, int | float) or not other:
        return None
    if _name(node) == "Div":
        return _Divisor(float(other), not is_plain or (other > MOST_WEIGHT and float(other).is_integer()))
    return _Divisor(1 / other, False) if _name(node) == "Mul" and other in (samples, 1 / samples) else None


def _was_plain(number: torch.Tensor) -> bool:
    """A number of Python's, which does not decide what type comes out, and not a tensor that was computed."""
    small = torch.tensor(1, dtype=torch.float16 if number.is_floating_point() else torch.int8)
    return torch.result_type(small, number.cpu() if number.is_cuda else number) == small.dtype


class Losses:
    """The reduction of a script's losses: as ``declared``, else detected from the first one."""

    def __init__(self, declared: Reduction | None, warn: Callable[[str], None] = lambda _: None) -> None:
        if declared not in (None, "mean", "sum"):
            raise ValueError(f'reduction is "mean" or "sum", as in torch\'s losses, not {declared!r}')
        self._declared: Reduction | None = declared
        self._warn = warn
        self.reduction: Reduction | None = None
        """None until the first loss over several samples."""
        self.assume_sum = False
        """The checkpoint was written by a release that treated every loss as a sum."""

    def weight(self, loss: torch.Tensor, own: int) -> int:
        """Return the factor that turns a loss over this rank's ``own`` samples into their sum.

        Raises ``ValueError`` when the reduction cannot be detected and was not declared.
        """
        if own < 2:
            return 1  # mean and sum of one sample are the same; a rank without samples contributes nothing
        if self.reduction is None:
            self.reduction = self._find(loss, own)
        return own if self.reduction == "mean" else 1

    def _find(self, loss: torch.Tensor, own: int) -> Reduction:
        found = reduction_of(loss, own)
        if self._declared is not None:
            if found and self._declared not in found:
                raise ValueError(
                    f'Run was created with reduction="{self._declared}", but the loss passed to run.step is a {found.pop()} '
                    "over the samples"
                )
            return self._declared
        if len(found) == 1:
            if "mean" in found and is_weighted_mean(loss):
                self._warn(WEIGHTED_MEAN)
            return found.pop()
        if self.assume_sum:
            return "sum"
        why = "parts of it are means and others sums" if found else "this could not be detected"
        raise ValueError(
            f"run.step(loss) needs to know whether the loss is a mean over the samples or their sum, but {why}. "
            'Pass Run(..., reduction="mean") or Run(..., reduction="sum")'
        )
