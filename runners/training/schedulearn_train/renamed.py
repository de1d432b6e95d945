"""The keywords and attributes that ``Run`` and ``keras.Training`` had before. They work until the next release, and each warns once."""

import functools
import warnings
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any, ParamSpec

from .checkpoints import ArrayCheckpoints, Checkpoints
from .options import AdaptiveBatch, chosen_mode

SAME_VALUE = {
    "batch": "batch_size",
    "workers": "num_workers",
    "most_samples": "micro_batch_size",
    "also": "extra_state",
}
"""Old keywords, and the new ones that take the same value."""
OF_MODE = {"balanced": "balanced", "predict": "predictor", "k": "k", "staleness": "staleness", "shards": "shards"}
"""Old keywords, and the fields of ``SyncMode`` that take their values."""
READ_ONLY = frozenset({"checkpoints", "device", "loss", "noise", "optimizer", "steps", "world"})
"""Attributes of ``Run`` that programs could set."""
_warned: set[str] = set()
New = ParamSpec("New")


def _warn(old: str, new: str, stacklevel: int) -> None:
    if old not in _warned:
        _warned.add(old)
        text = f"{old} is now {new}; the old form works until the next release of schedulearn_train"
        warnings.warn(text, FutureWarning, stacklevel=stacklevel + 1)


def accepts_old_keywords(init: Callable[New, None]) -> Callable[New, None]:
    """Decorate ``Run.__init__`` to accept the old keywords, too."""

    @functools.wraps(init)
    def accepting(*args: New.args, **keywords: New.kwargs) -> None:
        translated: Any = _translated(keywords)
        init(*args, **translated)

    return accepting


def _translated(keywords: dict[str, Any]) -> dict[str, Any]:
    """Return keywords of which all have their new names."""
    new = {name: value for name, value in keywords.items() if not _is_old(name)}
    old = {name: value for name, value in keywords.items() if _is_old(name)}
    for name, value in old.items():
        if name in SAME_VALUE:
            _warn_keyword(name, f"{SAME_VALUE[name]}=...")
            if SAME_VALUE[name] in new:
                raise TypeError(f"Run got both {name} and {SAME_VALUE[name]}, which is its new name")
            new[SAME_VALUE[name]] = value
    if old.keys() & {"batch_range", "rate_rule"}:
        for name in sorted(old.keys() & {"batch_range", "rate_rule"}):
            _warn_keyword(name, "batch_size=AdaptiveBatch(...)")
        batch = new.get("batch_size", 0)
        minimum, maximum = old.get("batch_range") or (batch, batch)
        new["batch_size"] = AdaptiveBatch(batch, minimum, maximum, old.get("rate_rule", "none"))
    if "checkpoint_seconds" in old:
        _warn_keyword("checkpoint_seconds", "checkpoints=Checkpoints(every_seconds=...)")
        _set_interval(new, old["checkpoint_seconds"], Checkpoints)
    options = {OF_MODE[name]: value for name, value in old.items() if name in OF_MODE}
    for name in old.keys() & OF_MODE.keys():
        _warn_keyword(name, f"mode=SyncMode(..., {OF_MODE[name]}=...)")
    if options:
        new["mode"] = replace(chosen_mode(new.get("mode", "bsp")), **options)
    return new


def _set_interval(keywords: dict[str, Any], seconds: float, kind: type[Checkpoints]) -> None:
    checkpoints = keywords["checkpoints"] = keywords.get("checkpoints") or kind()
    checkpoints.every_seconds = seconds


def accepts_old_keras_keywords(init: Callable[New, None]) -> Callable[New, None]:
    """Decorate the ``__init__`` of ``keras.Training`` to accept the old keywords, too."""

    @functools.wraps(init)
    def accepting(*args: New.args, **keywords: New.kwargs) -> None:
        if "batch" in keywords:
            _warn("Training(batch=...)", "Training(batch_size=...)", stacklevel=2)
            keywords["batch_size"] = keywords.pop("batch")
        if "checkpoint_seconds" in keywords:
            new = "Training(checkpoints=ArrayCheckpoints(every_seconds=...))"
            _warn("Training(checkpoint_seconds=...)", new, stacklevel=2)
            seconds: Any = keywords.pop("checkpoint_seconds")
            _set_interval(keywords, seconds, ArrayCheckpoints)
        init(*args, **keywords)

    return accepting


def _is_old(keyword: str) -> bool:
    return keyword in SAME_VALUE or keyword in OF_MODE or keyword in {"batch_range", "rate_rule", "checkpoint_seconds"}


def _warn_keyword(old: str, new: str) -> None:
    _warn(f"Run({old}=...)", f"Run({new})", stacklevel=4)


class OldAttribute:
    """An attribute of ``Run`` that has another name now, or is not public any more."""

    def __init__(self, path: str) -> None:
        self._parents, _, self._name = path.rpartition(".")
        self._is_public = not path.startswith("_")
        self._path = path

    def __set_name__(self, owner: type, name: str) -> None:
        self._old = name

    def __get__(self, run: Any, owner: type) -> Any:
        if run is None:
            return self
        self._warn(run)
        return getattr(self._parent(run), self._name)

    def __set__(self, run: Any, value: Any) -> None:
        self._warn(run)
        parent = self._parent(run)
        try:
            setattr(parent, self._name, value)
        except FrozenInstanceError:
            run._training.batch = replace(parent, **{self._name: value})

    def _parent(self, run: Any) -> Any:
        return functools.reduce(getattr, filter(None, self._parents.split(".")), run)

    def _warn(self, run: Any) -> None:
        new = f"{type(run).__name__}.{self._path}" if self._is_public else "internal"
        _warn(f"{type(run).__name__}.{self._old}", new, stacklevel=3)


class OldAttributes:
    """The attributes that ``Run`` had before."""

    batch = OldAttribute("batch_size")
    base_batch = OldAttribute("_training.batch.initial")
    least_batch = OldAttribute("_training.batch.minimum")
    most_batch = OldAttribute("_training.batch.maximum")
    rate_rule = OldAttribute("_training.batch.lr_scaling")
    clip_norm = OldAttribute("_training.clip_norm")
    inner = OldAttribute("module")
    state = OldAttribute("state_dict")
    load = OldAttribute("load_state_dict")
    checkpoint_seconds = OldAttribute("checkpoints.every_seconds")
    also = OldAttribute("_training.extra_state")
    most = OldAttribute("_training.micro_batch_sizes")
    data = OldAttribute("_training.data")
    sampler = OldAttribute("_training.sampler")
    losses = OldAttribute("_training.losses")
    reporter = OldAttribute("_training.reporter")
    served = OldAttribute("_training.server_client")
    apart = OldAttribute("_training.uses_server")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in READ_ONLY:
            _warn(f"Run.{name}", "read-only", stacklevel=2)
            setattr(vars(self)["_training"], name, value)
        else:
            super().__setattr__(name, value)
