"""Runs the examples in the docstrings of the library's public names; prints JSON of what went wrong.

python examples.py [NAME ...]        all public names but keras.Training by default
"""

import doctest
import importlib
import inspect
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import schedulearn_train

KERAS = "keras.Training"


def fresh_run() -> dict[str, Any]:
    """Return what examples of the methods of ``Run`` use, as the example of the class makes it."""
    import torch

    os.environ["SCHEDULEARN_CHECKPOINTS"] = tempfile.mkdtemp()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.zeros(8, 1))
    run = schedulearn_train.Run(model, optimizer, data, batch_size=4)
    return {"torch": torch, "model": model, "optimizer": optimizer, "run": run, "loss": torch.nn.functional.mse_loss}


def fresh_checkpoints() -> dict[str, Any]:
    checkpoints = schedulearn_train.Checkpoints(tempfile.mkdtemp())
    for step in (10, 20, 30):
        checkpoints.save(step, {"step": step})
    return {"checkpoints": checkpoints}


def fresh_sampler() -> dict[str, Any]:
    return {"sampler": schedulearn_train.Sampler(5, shuffle=False)}


OF_MEMBERS: dict[str, Callable[[], dict[str, Any]]] = {
    "Run": fresh_run,
    "Checkpoints": fresh_checkpoints,
    "Sampler": fresh_sampler,
    "AdaptiveBatch": lambda: {"AdaptiveBatch": schedulearn_train.AdaptiveBatch},
    "SyncMode": lambda: {"SyncMode": schedulearn_train.SyncMode},
}


def docstrings(name: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield name, docstring and namespace of a public name and, of a class, of its public methods and properties."""
    if name == KERAS:
        yield name, inspect.getdoc(importlib.import_module("schedulearn_train.keras").Training) or "", {}
        return
    thing = getattr(schedulearn_train, name)
    yield name, inspect.getdoc(thing) or "", {}
    if inspect.isclass(thing):
        for member, value in vars(thing).items():
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                yield f"{name}.{member}", inspect.getdoc(value) or "", OF_MEMBERS[name]()


def failures(names: list[str]) -> dict[str, str]:
    """Return the output of examples that failed, and of names without any."""
    found = {}
    with tempfile.TemporaryDirectory() as tempfile.tempdir:
        os.environ["SCHEDULEARN_CHECKPOINTS"] = tempfile.mkdtemp()
        for name, text, namespace in itertools.chain.from_iterable(map(docstrings, names)):
            test = doctest.DocTestParser().get_doctest(text, namespace, name, None, None)
            lines: list[str] = []
            doctest.DocTestRunner().run(test, out=lines.append)
            if lines or not test.examples:
                found[name] = "".join(lines) or "has no example"
    tempfile.tempdir = None
    return found


if __name__ == "__main__":
    print(json.dumps({"failures": failures(sys.argv[1:] or schedulearn_train.__all__)}))
