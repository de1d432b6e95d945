"""Predicts a worker's speed with a small recurrent network, which learns periodic loads that smoothing only averages.

It predicts the next value's difference to the last one from the last 24, and learns from its own worker's past: one step of
Adam for every five iterations. It makes no predictions before it has seen enough to learn from.
"""

from collections import deque

import torch
from torch import nn

WINDOW = 24
HIDDEN = 16
MIN_VALUES = 64
"""Values before the first prediction."""
VALUES_PER_STEP = 5
"""Iterations per step of learning."""
WINDOWS_PER_STEP = 32
"""Windows per step of learning."""
MAX_VALUES = 512
LEARNING_RATE = 5e-3


class Gru:
    """A ``Predictor``. It is deterministic for a ``seed``, and takes milliseconds on the CPU."""

    def __init__(self, seed: int = 0) -> None:
        self._chance = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._memory = nn.GRU(1, HIDDEN, batch_first=True)
            self._head = nn.Linear(HIDDEN, 1)
        nn.init.zeros_(self._head.weight)  # at first it predicts the last value
        nn.init.zeros_(self._head.bias)
        self._adam = torch.optim.Adam([*self._memory.parameters(), *self._head.parameters()], lr=LEARNING_RATE)
        self._past: deque[float] = deque(maxlen=MAX_VALUES)
        self._seen = 0

    def observe(self, value: float) -> None:
        self._past.append(value)
        self._seen += 1
        if self._seen % VALUES_PER_STEP == 0 and len(self._past) > WINDOW + 1:
            self._learn()

    def predict(self) -> float | None:
        if self._seen < MIN_VALUES:
            return None
        past = torch.tensor(list(self._past)[-WINDOW:])
        with torch.no_grad():
            return float(past[-1] + self._difference(past[None])[0])

    def shift(self, by: float) -> None:
        self._past = deque((value + by for value in self._past), maxlen=MAX_VALUES)

    def _difference(self, windows: torch.Tensor) -> torch.Tensor:
        """Predict from (n, WINDOW) values the (n,) differences to the last value of each window."""
        past = torch.tensor(list(self._past))
        scale = past.std().clamp_min(1e-3)
        inner, _ = self._memory(((windows - windows[:, -1:]) / scale)[..., None])
        return self._head(inner[:, -1])[:, 0] * scale

    def _learn(self) -> None:
        past = torch.tensor(list(self._past))
        windows = past.unfold(0, WINDOW + 1, 1)
        chosen = windows[torch.randint(len(windows), (WINDOWS_PER_STEP,), generator=self._chance)]
        predicted = self._difference(chosen[:, :-1])
        loss = nn.functional.huber_loss(predicted, chosen[:, -1] - chosen[:, -2], delta=0.2)
        self._adam.zero_grad()
        loss.backward()
        self._adam.step()
