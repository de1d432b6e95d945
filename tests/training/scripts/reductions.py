"""Detects the reduction of losses as scripts write them; prints JSON: the kinds of each, and what ``Losses`` does with some."""

import json
from typing import Any

import torch
from schedulearn_train.reduction import Losses, Reduction, counts_unequally, reduction_of
from torch import nn
from torch.nn import functional as f

torch.manual_seed(0)
SAMPLES, KINDS = 8, 3
model = nn.Linear(4, KINDS)
x, y = torch.randn(SAMPLES, 4), torch.randint(KINDS, (SAMPLES,))
aim, ones = torch.rand(SAMPLES, KINDS), torch.ones(SAMPLES)
out = model(x)
mask = torch.arange(SAMPLES) > 2
long = nn.Parameter(torch.randn(SAMPLES, 5))
own = torch.softmax(torch.randn(SAMPLES, KINDS), 1)
wide, wide_aim = nn.Linear(4, 2 * SAMPLES)(x), torch.rand(SAMPLES, 2 * SAMPLES)
errors = (wide - wide_aim) ** 2
heads = [f.mse_loss(out[:, kind % KINDS], aim[:, kind % KINDS]) for kind in range(SAMPLES)]
some = torch.arange(4 * SAMPLES) % 2 == 0


class Custom(torch.autograd.Function):
    """A mean that autograd knows nothing of."""

    @staticmethod
    def forward(_context: Any, values: torch.Tensor) -> torch.Tensor:
        return values.mean()


losses = {
    "cross_entropy": f.cross_entropy(out, y),
    "cross_entropy, sum": f.cross_entropy(out, y, reduction="sum"),
    "label smoothing": f.cross_entropy(out, y, label_smoothing=0.1),
    "label smoothing, sum": f.cross_entropy(out, y, label_smoothing=0.1, reduction="sum"),
    "probabilities": f.cross_entropy(out, own),
    "mse": f.mse_loss(out, aim),
    "mse, sum": f.mse_loss(out, aim, reduction="sum"),
    "l1": f.l1_loss(out, aim),
    "smooth l1, sum": f.smooth_l1_loss(out, aim, reduction="sum"),
    "bce": f.binary_cross_entropy_with_logits(out, aim),
    "kl, batchmean": f.kl_div(out.log_softmax(1), own, reduction="batchmean"),
    "gaussian": f.gaussian_nll_loss(out, aim, torch.ones_like(out)),
    "triplet": f.triplet_margin_loss(out, out + 1, out - 1),
    "by hand": ((out - aim) ** 2).mean(),
    "by hand, sum": ((out - aim) ** 2).sum(),
    "sum of means over features": ((out - aim) ** 2).mean(1).sum(),
    "mean of sums over features": ((out - aim) ** 2).sum(1).mean(),
    "mean over features of sums": ((out - aim) ** 2).sum(0).mean(),
    "sum divided by samples": f.cross_entropy(out, y, reduction="sum") / len(x),
    "mean times samples": f.cross_entropy(out, y) * len(x),
    "weighted": 0.3 * f.cross_entropy(out, y),
    "two heads": f.cross_entropy(out, y) + 0.1 * f.mse_loss(out, aim),
    "two heads, stacked": torch.stack([f.cross_entropy(out, y), f.mse_loss(out, aim)]).mean(),
    "two heads, sums": sum([f.cross_entropy(out, y, reduction="sum"), f.mse_loss(out, aim, reduction="sum")]),
    "nothing but a parameter less the samples": ((model.bias - aim) ** 2).sum() / 2,
    "decay of a parameter as long as the samples": f.mse_loss(out, aim) + long.pow(2).sum(),
    "half precision": f.cross_entropy(out, y).half().float(),
    "weight decay": f.cross_entropy(out, y) + 0.1 * model.weight.pow(2).sum() + model.weight.norm(),
    "weight decay, sum": f.cross_entropy(out, y, reduction="sum")
    + 0.1 * sum(w.abs().sum() for w in model.parameters()),
    "weighted, sum": 0.3 * f.cross_entropy(out, y, reduction="sum"),
    "times one over the samples": (1 / SAMPLES) * f.cross_entropy(out, y, reduction="sum"),
    "masked tokens": (f.cross_entropy(out, y, reduction="none") * mask).sum() / mask.sum(),
    "half of the squares": ((out - aim) ** 2).sum() / 2,
    "half of the mean squares": f.mse_loss(out, aim) / 2,
    "masked by a plain number": f.cross_entropy(out, y, reduction="sum") / 5,
    "sum over a constant": f.cross_entropy(out, y, reduction="sum") / 256,
    "tokens": f.cross_entropy(out.repeat(5, 1), y.repeat(5)),
    "mean and sum": f.cross_entropy(out, y) + f.mse_loss(out, aim, reduction="sum"),
    "wide, mean over samples, sum over features": errors.mean(0).sum(),
    "wide, sum over samples, mean over features": errors.sum(0).mean(),
    "wide, sum over features, mean over samples": errors.sum(1).mean(0),
    "wide, mean over features, sum over samples": errors.mean(-1).sum(),
    "autoencoder": f.mse_loss(wide, wide_aim) + errors.mean(0).sum(),
    "loop over samples": sum(f.mse_loss(wide[at], wide_aim[at]) for at in range(SAMPLES)),
    "loop over samples, divided by them": sum(f.mse_loss(wide[at], wide_aim[at]) for at in range(SAMPLES)) / SAMPLES,
    "loop over samples, stacked": torch.stack([f.mse_loss(wide[at], wide_aim[at]) for at in range(SAMPLES)]).mean(),
    "as many heads as samples, mean": torch.stack(heads).mean(),
    "as many heads as samples, sum": torch.stack(heads).sum(),
    "losses of single samples": sum(f.mse_loss(model(x[at : at + 1]), aim[at : at + 1]) for at in range(SAMPLES)),
    "chosen by a mask": errors.reshape(-1)[: 4 * SAMPLES][some].mean(),
    "picked for each sample": -out.log_softmax(1)[torch.arange(SAMPLES), y].mean(),
    "deviation within the batch": f.mse_loss(wide, wide_aim) + wide.var(0).mean(),
    "product of means": f.mse_loss(out, aim) * f.l1_loss(out, aim),
    "ratio of means": f.mse_loss(out, aim) / out.abs().mean(),
    "over a parameter": f.mse_loss(out, aim) / model.bias.pow(2).sum(),
    "a function of its own": Custom.apply(out),
    "norm": out.norm(),
    "nothing to learn": torch.zeros(()),
}


def refused(loss: torch.Tensor, declared: Reduction | None = None, assume_sum: bool = False) -> str:
    """Why, or how often the loss counts."""
    given = Losses(declared)
    given.assume_sum = assume_sum
    try:
        return str(given.weight(loss, SAMPLES))
    except ValueError as error:
        return str(error)


answers = {
    "a mean": refused(losses["mse"]),
    "a sum": refused(losses["mse, sum"]),
    "both": refused(losses["mean and sum"]),
    "hidden": refused(losses["a function of its own"]),
    "hidden, in a training that began when all were sums": refused(losses["a function of its own"], assume_sum=True),
    "hidden, declared": refused(losses["a function of its own"], "mean"),
    "both, declared": refused(losses["mean and sum"], "mean"),
    "a mean, declared a sum": refused(losses["mse"], "sum"),
    "one sample": str(Losses(None).weight(losses["a function of its own"], 1)),
}
hinted = {
    "classes with weights": counts_unequally(f.cross_entropy(out, y, weight=torch.tensor([0.2, 1.0, 3.0]))),
    "targets left out": counts_unequally(f.cross_entropy(out, y.where(mask, -100)) + f.mse_loss(out, aim)),
    "the second of two heads": counts_unequally(f.cross_entropy(out, y.where(mask, -100)) + f.cross_entropy(out, y)),
    "all alike": counts_unequally(f.cross_entropy(out, y, weight=torch.ones(KINDS))),
    "a sum": counts_unequally(f.cross_entropy(out, y.where(mask, -100), reduction="sum")),
}
kinds = {name: sorted(reduction_of(loss, SAMPLES)) for name, loss in losses.items()}
print(json.dumps({"kinds": kinds, "answers": answers, "hinted": hinted}))
