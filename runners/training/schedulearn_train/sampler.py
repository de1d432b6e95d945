"""The order of samples: each exactly once per epoch, for any number of workers, however unequal."""

from collections import deque
from collections.abc import Sequence, Sized
from typing import Any

import numpy as np

Indices = np.ndarray
"""(n,) int64: positions in the data set."""


class Sampler:
    """One order of all samples per epoch, and a cursor in it that all ranks share.

    Every rank has a sampler in the same state: all take the whole batch of a step, and each computes its own part of it. So
    samplers need no communication, and only the parts change when a rank joins or leaves. In the modes with a server only
    the server has a sampler, and the samples of thrown away gradients are given back to it.

    The order is that of ``numpy.random.default_rng((seed, epoch))``.

    >>> from schedulearn_train import Sampler
    >>> sampler = Sampler(5, shuffle=False)
    >>> sampler.take(3).tolist()
    [0, 1, 2]
    >>> sampler.take(3).tolist()
    [3, 4]
    """

    def __init__(self, samples: int | Sized, *, seed: int = 0, shuffle: bool = True) -> None:
        self.length = samples if isinstance(samples, int) else len(samples)
        if self.length < 1:
            raise ValueError("a data set without samples cannot be trained on")
        self.seed, self.shuffle = seed, shuffle
        self.epoch = 0
        self._cursor = 0
        self._back: deque[int] = deque()
        """Samples that were given back, taken again before the rest."""
        self._order = self._shuffled()

    def _shuffled(self) -> Indices:
        if not self.shuffle:
            return np.arange(self.length)
        return np.random.default_rng((self.seed, self.epoch)).permutation(self.length)

    @property
    def left(self) -> int:
        """The number of samples of this epoch that were not taken yet, or were given back.

        >>> sampler.left
        5
        """
        return self.length - self._cursor + len(self._back)

    def take(self, count: int) -> Indices:
        """Return the next ``count`` samples of this epoch: fewer at its end, none after it.

        >>> sampler.take(2).tolist()
        [0, 1]
        """
        again = [self._back.popleft() for _ in range(min(count, len(self._back)))]
        fresh = self._order[self._cursor : self._cursor + count - len(again)]
        self._cursor += len(fresh)
        return np.concatenate([np.array(again, dtype=np.int64), fresh]) if again else fresh

    def give_back(self, indices: Sequence[int] | Indices) -> None:
        """Give back samples of this epoch that were taken and not computed.

        >>> sampler.give_back(sampler.take(2))
        >>> sampler.take(3).tolist()
        [0, 1, 2]
        """
        self._back.extend(int(index) for index in indices)

    def next_epoch(self) -> None:
        """Start the next epoch. Raises ``RuntimeError`` while samples of this one are left.

        >>> sampler.next_epoch()
        Traceback (most recent call last):
        RuntimeError: 5 samples of epoch 0 are left
        """
        if self.left:
            raise RuntimeError(f"{self.left} samples of epoch {self.epoch} are left")
        self.start(self.epoch + 1)

    def start(self, epoch: int) -> None:
        """Start at the beginning of an epoch.

        >>> sampler.start(3)
        >>> sampler.epoch
        3
        """
        self.epoch, self._cursor = epoch, 0
        self._back.clear()
        self._order = self._shuffled()

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data.

        >>> sampler.state_dict()
        {'epoch': 0, 'cursor': 0, 'back': [], 'seed': 0, 'length': 5}
        """
        back = list(self._back)
        return {"epoch": self.epoch, "cursor": self._cursor, "back": back, "seed": self.seed, "length": self.length}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state. Raises ``ValueError`` if it belongs to a data set of another length.

        >>> sampler.load_state_dict({**sampler.state_dict(), "cursor": 4})
        >>> sampler.left
        1
        """
        if state["length"] != self.length:
            raise ValueError(
                f"the checkpoint is of a data set with {state['length']} samples, this one has {self.length}. "
                "Start without the checkpoint, or use the data that it was made with."
            )
        self.seed = state["seed"]
        self.start(state["epoch"])
        self._cursor = state["cursor"]
        self._back.extend(state["back"])
