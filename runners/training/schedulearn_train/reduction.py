"""Detects whether a loss is a mean over the samples or their sum, from the graph that computed it.

A step needs the sum over all ranks' samples; a mean contributes its value times its number of samples. The autograd graph
records which of the two a script passes: torch's own losses keep their ``reduction``, and ``mean()`` and ``sum()`` the shape of
their input. Operations after the reduction (a factor, a sum of several losses, another type) are followed, and terms of the
parameters alone (weight decay in the loss) are skipped. Samples are assumed to be the first dimension. Nothing is detected
where it is not clear which of several reductions combines the samples, or where losses are multiplied.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch

Reduction = Literal["mean", "sum"]
TORCH_REDUCTIONS = {1: "mean", 2: "sum"}
"""``_saved_reduction`` of torch's losses; 0 is neither of the two."""
PASS_THROUGH = {"Add", "Sub", "Neg", "Mul", "Div", "ToCopy", "Clone", "Alias", "View", "Reshape", "Squeeze"}
PASS_THROUGH |= {"Unsqueeze", "Expand", "Stack", "Cat", "Select", "_DDPSink"}
"""Operations after which a mean is still a mean and a sum still a sum."""
PARAMETER_OPERATIONS = PASS_THROUGH | {
    "Pow",
    "Abs",
    "Sqrt",
    "Sum",
    "Mean",
    "Norm",
    "LinalgVectorNorm",
    "T",
    "Transpose",
}
NOT_ADDITIVE = {"Var", "Std", "VarMean", "StdMean"}
"""Deviations of the parts of a batch do not add up to that of the batch."""
LEAF = "torch::autograd::AccumulateGrad"
MAX_SMALL_DIVISOR = 4
"""A loss that is divided by a larger whole number may be divided by a number of samples."""
MAX_NODES = 400
"""The nodes of the graph that are examined: a loss is reduced near its end."""


MAX_NEAR_NODES = 12
"""The nodes before a reduction that show whether it reduces a single sample."""
UNEQUAL = (
    "The loss is a mean over targets with unequal weights: classes have weights, or targets are ignored. Such a mean "
    "depends on how a batch is split over ranks, and a step is not exactly that of one process. For the same step with every "
    'split, use reduction="sum" in the loss; to keep the mean without this message, pass Run(..., reduction="mean")'
)


class _Divisor(NamedTuple):
    value: float
    counts: bool
    """Whether it may be a number of samples or of tokens, because it was computed or is not small."""


class _Path(NamedTuple):
    """A path from the loss to a node of its graph."""

    node: Any
    output: int
    """The output of the node."""
    divisors: tuple[_Divisor, ...]
    """The divisors on the path."""


def reduction_of(loss: torch.Tensor, samples: int) -> set[Reduction]:
    """Return how a loss over so many samples was reduced; both kinds when it adds up several losses.

    Empty when that cannot be detected, as for a sum divided by another number than that of the samples.
    """
    found: set[Reduction] = set()
    of_ones: list[Reduction | None] = []
    divided = False
    todo = [_Path(loss.grad_fn, loss.output_nr, ())]
    for _ in range(MAX_NODES):
        if not todo:
            if len(of_ones) >= samples:  # a loop over the samples
                return set() if None in of_ones else {kind for kind in of_ones if kind}
            return found if not divided or "mean" in found else set()
        path = todo.pop()
        if path.node is None or _is_of_parameters(path.node, samples):
            continue
        kind = _reduction(path.node, samples)
        if kind is not None:
            reduces_one_sample = _reduces_one_sample(path.node, samples)
            if reduces_one_sample:
                of_ones.append(_after_divisions(path, "sum", samples))
            kinds = {kind} if reduces_one_sample else _possible_kinds(path.node, kind, samples)
            if len(kinds) != 1:
                return set()
            kind = _after_divisions(path, kinds.pop(), samples)
            if kind is None:
                divided = True  # for example by the number of unmasked tokens; together with a mean it is one
            else:
                found.add(kind)
        elif _keeps_reduction(path.node, samples):
            todo += _inputs(path, samples)
        else:
            return set()
    return set()


def _after_divisions(path: _Path, kind: Reduction, samples: int) -> "Reduction | None":
    """Return the kind of a reduction after the divisions on the path; None where a sum is divided by another number."""
    values = [divisor.value for divisor in path.divisors]
    if kind == "sum" and samples in values:
        return "mean"
    if kind == "sum" and any(divisor.counts for divisor in path.divisors):
        return None
    return "sum" if kind == "mean" and 1 / samples in values else kind


def _reduction(node: Any, samples: int) -> Reduction | None:
    """Return the kind of reduction of a node that combines samples; None for any other node."""
    code = _saved(node, "reduction")
    if code is not None:
        return TORCH_REDUCTIONS.get(code)  # type: ignore[return-value]
    if _name(node) in ("Mean", "Sum") and not _reduces_others(node, samples):
        return "mean" if _name(node) == "Mean" else "sum"
    return None


def _possible_kinds(node: Any, kind: Reduction, samples: int) -> set[Reduction]:
    """Return the kinds that a reduction may be, given those before it: ``mean(0).sum()`` is a mean, ``sum(1).mean()`` too.

    Empty for a loss of torch that does not seem to cover all samples, for a reduction of some elements only, and for
    deviations within the batch.
    """
    shape = _shape_of_input(node)
    if shape is not None and not (shape and shape[0] != 1 and any(size % samples == 0 for size in shape[:2])):
        return set()
    if shape is None and _reduces_masked(node, samples):
        return set()
    found: set[Reduction] = set()
    todo = [input for input, _ in node.next_functions if input is not None] if shape is None else []
    for _ in range(MAX_NODES):
        if not todo:
            return found or {kind}
        each = todo.pop()
        reduction = TORCH_REDUCTIONS.get(_saved(each, "reduction") or 0)
        if reduction is not None:
            found |= {kind} if _reduces_one_sample(each, samples) else {kind, reduction}  # type: ignore[arg-type]
        elif _name(each) in NOT_ADDITIVE and _reduces_samples(each, samples):
            return set()
        elif _name(each) in ("Mean", "Sum"):
            found.add(_name(each).lower() if _reduces_samples(each, samples) else kind)  # type: ignore[arg-type]
        elif _name(each) in PASS_THROUGH:
            todo += [input for input, _ in each.next_functions if input is not None]
    return set()


def _shape_of_input(node: Any) -> tuple[int, ...] | None:
    """Return the shape of the input of a torch loss; None for a node that keeps no input."""
    if not _saved(node, "reduction"):
        return None
    input = _saved(node, "self")
    return tuple(input.shape) if isinstance(input, torch.Tensor) else None


def _reduces_samples(node: Any, samples: int) -> bool:
    """Return whether a sum or a mean reduces the first dimension, which has the samples."""
    shape, dims = _saved(node, "self_sym_sizes") or getattr(_saved(node, "self"), "shape", None), _saved(node, "dim")
    if not shape or shape[0] % samples:
        return False
    return dims is None or not dims or 0 in {dim if dim < len(shape) else dim - 2**64 + len(shape) for dim in dims}


def _reduces_one_sample(node: Any, samples: int) -> bool:
    """Return whether a reduction's input was picked out of the first dimension, as in a loop over the samples."""
    picks = (each for each in _nodes_before(node) if _name(each) in ("Select", "Unbind") and not _saved(each, "dim"))
    shapes = (_saved(each, "self_sym_sizes") for each in picks)
    return any(shape and shape[0] % samples == 0 for shape in shapes)


def _reduces_masked(node: Any, samples: int) -> bool:
    """Return whether a reduction's input are the elements under a mask, whose number differs between parts."""
    count = (_saved(node, "self_sym_sizes") or (samples,))[0]
    masks = (each for each in _nodes_before(node) if _name(each) in ("Index", "MaskedSelect"))
    shapes = (_saved(each, "self_sym_sizes") or getattr(_saved(each, "self"), "shape", None) for each in masks)
    return count != samples and any(shape and shape[0] != count for shape in shapes)


def _nodes_before(node: Any) -> Iterator[Any]:
    """Yield the nodes before a node, nearest first."""
    todo = deque(input for input, _ in node.next_functions if input is not None)
    for _ in range(MAX_NEAR_NODES):
        if not todo:
            return
        each = todo.popleft()
        yield each
        todo.extend(input for input, _ in each.next_functions if input is not None)


def _keeps_reduction(node: Any, samples: int) -> bool:
    """Return whether a mean is still a mean and a sum still a sum after a node: not after products of two values of samples."""
    if _name(node) in ("Mul", "Div"):
        inputs = [input for input, _ in node.next_functions if input is not None]
        return sum(not _is_of_parameters(each, samples) for each in inputs) < 2
    return _name(node) in PASS_THROUGH or _reduces_others(node, samples)


def counts_unequally(loss: torch.Tensor) -> bool:
    """Return whether a torch loss that is a mean weights some targets more than others, or ignores some."""
    todo = [loss.grad_fn]
    for _ in range(MAX_NODES):
        if not todo:
            return False
        node = todo.pop()
        if node is None:
            continue
        total, target = _saved(node, "total_weight"), _saved(node, "target")
        is_mean = TORCH_REDUCTIONS.get(_saved(node, "reduction") or 0) == "mean"
        if (
            is_mean
            and total is not None
            and target is not None
            and abs(float(total) - target.numel()) > 1e-4 * target.numel()
        ):
            return True
        todo += [input for input, _ in node.next_functions]
    return False


def _reduces_others(node: Any, samples: int) -> bool:
    """Return whether a node reduces another dimension than samples, such as features or the losses of several heads."""
    shape = _saved(node, "self_sym_sizes")
    return _name(node) in ("Mean", "Sum") and (not shape or shape[0] % samples != 0)


def _is_of_parameters(node: Any, samples: int) -> bool:
    """Return whether a node depends on parameters and plain numbers only."""
    shapes: list[Any] = []
    reduced: list[Any] = []
    todo = [node]
    for _ in range(MAX_NODES):
        if not todo:
            return all(
                shape in shapes for shape in reduced
            )  # a larger shape comes from data, as in parameter - samples
        each = todo.pop()
        if each.name() == LEAF:
            shapes.append(each.variable.shape)
            continue
        if _name(each) not in PARAMETER_OPERATIONS or any(map(_is_data, (_saved(each, "self"), _saved(each, "other")))):
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
    """Return the name of a node's operation: ``Mul`` for ``MulBackward0``."""
    return str(node.name()).rstrip("0123456789").removesuffix("Backward")


def _inputs(path: _Path, samples: int) -> Iterator[_Path]:
    inputs = path.node.next_functions
    if _name(path.node) == "_DDPSink":  # has all outputs of the model, in their order
        inputs = inputs[path.output : path.output + 1]
    divisor = _divisor(path.node, samples)
    divisors = path.divisors if divisor is None else (*path.divisors, divisor)
    yield from (_Path(node, output, divisors) for node, output in inputs)


def _divisor(node: Any, samples: int) -> "_Divisor | None":
    """Return the number by which a node divides. Factors are weights, unless they undo a reduction over the samples."""
    other = _saved(node, "other")
    is_plain = not isinstance(other, torch.Tensor) or _is_python_number(other)
    if isinstance(other, torch.Tensor):
        other = other.item() if other.ndim == 0 else None
    if not isinstance(other, int | float) or not other:
        return None
    if _name(node) == "Div":
        return _Divisor(float(other), not is_plain or (other > MAX_SMALL_DIVISOR and float(other).is_integer()))
    return _Divisor(1 / other, False) if _name(node) == "Mul" and other in (samples, 1 / samples) else None


def _is_python_number(number: torch.Tensor) -> bool:
    """Return whether a tensor stands for a Python number, which does not affect the type of the result."""
    small = torch.tensor(1, dtype=torch.float16 if number.is_floating_point() else torch.int8)
    return bool(torch.result_type(small, number.cpu() if number.is_cuda else number) == small.dtype)


class Losses:
    """The reduction of a script's losses: ``declared``, or else detected from the first loss."""

    def __init__(self, declared: Reduction | None, hints: bool = False) -> None:
        """With ``hints``, print what the reduction of the first loss means for several ranks."""
        if declared not in (None, "mean", "sum"):
            raise ValueError(f'reduction is "mean" or "sum", as in torch\'s losses, not {declared!r}')
        self._declared: Reduction | None = declared
        self._hints = hints
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
            if self._hints and not self._declared and self.reduction == "mean" and counts_unequally(loss):
                print(UNEQUAL)  # noqa: T201
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
            return found.pop()
        if self.assume_sum:
            return "sum"
        why = "parts of it are means and others sums" if found else "this could not be detected"
        raise ValueError(
            f"run.step(loss) needs to know whether the loss is a mean over the samples or their sum, but {why}. "
            'Pass Run(..., reduction="mean") or Run(..., reduction="sum")'
        )
