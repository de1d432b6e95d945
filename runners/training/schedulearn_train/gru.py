"""A small recurrent network that predicts a worker's speed: sees rhythms in a load that smoothing only smears.

It predicts the difference to the last value from the last 24, and learns from its own worker's past while it goes: one
step of Adam for every five iterations. It takes part only once it has seen enough to have learnt anything.
"""

from collections import deque

import torch
from torch import nn

WINDOW = 24
HIDDEN = 16
ENOUGH = 64
"""So many values before it says anything."""
EVERY = 5
"""Iterations for each step of learning."""
EXAMPLES = 32
"""Windows in one step of learning."""
KEPT = 512
RATE = 5e-3


class Gru:
    """A ``Predictor``. Deterministic by ``seed``; on the processor, in milliseconds."""

    def __init__(self, seed: int = 0) -> None:
        self._chance = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._memory = nn.GRU(1, HIDDEN, batch_first=True)
            self._head = nn.Linear(HIDDEN, 1)
        nn.init.zeros_(self._head.weight)  # begins as "the last value"
        nn.init.zeros_(self._head.bias)
        self._adam = torch.optim.Adam([*self._memory.parameters(), *self._head.parameters()], lr=RATE)
        self._past: deque[float] = deque(maxlen=KEPT)
        self._seen = 0

    def observe(self, value: float) -> None:
        self._past.append(value)
        self._seen += 1
        if self._seen % EVERY == 0 and len(self._past) > WINDOW + 1:
            self._learn()

    def predict(self) -> float | None:
        if self._seen < ENOUGH:
            return None
        past = torch.tensor(list(self._past)[-WINDOW:])
        with torch.no_grad():
            return float(past[-1] + self._difference(past[None])[0])

    def shift(self, by: float) -> None:
        self._past = deque((value + by for value in self._past), maxlen=KEPT)

    def _difference(self, windows: torch.Tensor) -> torch.Tensor:
        """(n, WINDOW) values -> (n,) differences to the last of each."""
        past = torch.tensor(list(self._past))
        scale = past.std().clamp_min(1e-3)
        inner, _ = self._memory(((windows - windows[:, -1:]) / scale)[..., None])
        return self._head(inner[:, -1])[:, 0] * scale

    def _learn(self) -> None:
        past = torch.tensor(list(self._past))
        windows = past.unfold(0, WINDOW + 1, 1)
        chosen = windows[torch.randint(len(windows), (EXAMPLES,), generator=self._chance)]
        meant = self._difference(chosen[:, :-1])
        loss = nn.functional.huber_loss(meant, chosen[:, -1] - chosen[:, -2], delta=0.2)
        self._adam.zero_grad()
        loss.backward()
        self._adam.step()
