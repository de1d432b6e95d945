"""Which samples come next: each of an epoch exactly once, however many workers there are and however unequal."""

from collections import deque
from collections.abc import Sequence, Sized
from typing import Any

import numpy as np

Indices = np.ndarray
"""(n,) int64: positions in the data set."""


class Sampler:
    """One order of all samples per epoch, and a cursor in it that all ranks share.

    Every rank has one, in the same state: all take the whole batch of a step, and each computes with its own part of it.
    So nothing is said between them, and a rank that comes or goes changes nothing: only the parts do. In the modes with
    a server it is the server's alone, and what a worker was given and did not compute is given back.

    The order is that of ``numpy.random.default_rng((seed, epoch))``.
    """

    def __init__(self, samples: int | Sized, *, seed: int = 0, shuffle: bool = True) -> None:
        self.length = samples if isinstance(samples, int) else len(samples)
        if self.length < 1:
            raise ValueError("a data set without samples cannot be trained on")
        self.seed, self.shuffle = seed, shuffle
        self.epoch = 0
        self._cursor = 0
        self._back: deque[int] = deque()
        """Given back, to be taken again before the rest."""
        self._order = self._shuffled()

    def _shuffled(self) -> Indices:
        if not self.shuffle:
            return np.arange(self.length)
        return np.random.default_rng((self.seed, self.epoch)).permutation(self.length)

    @property
    def left(self) -> int:
        """Samples of this epoch that nobody has taken, or that were given back."""
        return self.length - self._cursor + len(self._back)

    def take(self, count: int) -> Indices:
        """The next samples of this epoch: ``count`` of them, fewer at its end, none after it."""
        again = [self._back.popleft() for _ in range(min(count, len(self._back)))]
        fresh = self._order[self._cursor : self._cursor + count - len(again)]
        self._cursor += len(fresh)
        return np.concatenate([np.array(again, dtype=np.int64), fresh]) if again else fresh

    def give_back(self, indices: Sequence[int] | Indices) -> None:
        """Samples of this epoch that were taken and not computed."""
        self._back.extend(int(index) for index in indices)

    def next_epoch(self) -> None:
        """Raises ``RuntimeError`` while samples of this one are left: nothing is lost silently."""
        if self.left:
            raise RuntimeError(f"{self.left} samples of epoch {self.epoch} are left")
        self.start(self.epoch + 1)

    def start(self, epoch: int) -> None:
        """From the beginning of an epoch."""
        self.epoch, self._cursor = epoch, 0
        self._back.clear()
        self._order = self._shuffled()

    def state_dict(self) -> dict[str, Any]:
        back = list(self._back)
        return {"epoch": self.epoch, "cursor": self._cursor, "back": back, "seed": self.seed, "length": self.length}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ``ValueError`` for that of another data set: its cursor means nothing here."""
        if state["length"] != self.length:
            raise ValueError(
                f"the checkpoint is of a data set with {state['length']} samples, this one has {self.length}. "
                "Begin anew, or give back the data it was made with."
            )
        self.seed = state["seed"]
        self.start(state["epoch"])
        self._cursor = state["cursor"]
        self._back.extend(state["back"])
