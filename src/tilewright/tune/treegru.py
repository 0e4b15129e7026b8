"""TreeGRU: a recurrent network over the levels of a nest, from the innermost outwards (PyTorch).

    model = TreeGRU(space.feature_names)
    model.fit(features, log_ratio)
    model.predict(features).mean

Each level of a nest is a node with its bytes, reuse and trips. A GRU cell computes a node's state
from its features and its child's state, so that one network handles nests of any depth; global
features join at the root. Learns log(measured / estimated), like the trees, by squared error and
pairwise ranking; an ensemble of differently initialized networks gives the uncertainty. Features
without levels are one node.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.errors import UserError
from tilewright.tune.cost.model import Array, Guess
from tilewright.tune.sketch.features import LEVEL_FEATURES

WIDTH = 24  # of a node's state
NETWORKS = 2
EPOCHS, RATE = 120, 0.02
PAIRS = 256  # ranked pairs per step
CHUNK_ROWS = 1 << 14
DECAY = 1e-3


def is_installed() -> bool:
    return importlib.util.find_spec("torch") is not None


class TreeGRU:
    """A cost model behind the same interface as boosted trees."""

    name = "TreeGRU"

    def __init__(self, names: Sequence[str] = (), seed: int = 0) -> None:
        """`names` are those of the features: levels are found by them."""
        if not is_installed():
            raise UserError(
                "TW5105",
                "TreeGRU needs PyTorch, which is not installed",
                help="pip install 'tilewright[torch]', or leave the model to be chosen",
            )
        import torch

        self._torch = torch
        self.seed, self._levels = seed, _levels(names)
        self._networks: list[Any] = []
        self._centre = self._scale = np.zeros(0)
        self._mean = 0.0

    def fit(self, features: Array, log_ratio: Array) -> None:
        torch = self._torch
        self._networks = []
        if not len(log_ratio):
            return
        rows = np.asarray(features, np.float64)
        values = np.asarray(log_ratio, np.float64)
        self._centre, spread = rows.mean(axis=0), rows.std(axis=0)
        self._scale = np.where(spread > 1e-6, spread, 1.0)
        self._mean = float(np.median(values))
        known = self._tensor(rows)
        wanted = torch.tensor(values - self._mean, dtype=torch.float32)
        for number in range(NETWORKS):
            self._networks.append(self._trained(known, wanted, self.seed + number))

    def _tensor(self, rows: Array) -> Any:
        scaled = ((rows - self._centre) / self._scale).astype(np.float32)
        return self._torch.from_numpy(np.clip(scaled, -6.0, 6.0))

    def _trained(self, known: Any, wanted: Any, seed: int) -> Any:
        torch = self._torch
        draw = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            network = _network(torch, known.shape[1], self._levels)
        steps = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
        count = len(wanted)
        for _ in range(EPOCHS):
            steps.zero_grad()
            told = network(known)
            loss = torch.nn.functional.huber_loss(told, wanted)
            if count > 1:
                first = torch.randint(count, (PAIRS,), generator=draw)
                second = torch.randint(count, (PAIRS,), generator=draw)
                apart = wanted[first] - wanted[second]
                said = told[first] - told[second]
                order = torch.nn.functional.softplus(-said * torch.sign(apart)) * apart.abs()
                loss = loss + 0.5 * order.mean()
            loss.backward()
            steps.step()
        network.eval()
        return network

    def predict(self, features: Array) -> Guess:
        zeros = np.zeros(len(features))
        if not self._networks or not len(features):
            return Guess(zeros, zeros)
        told = np.zeros((len(self._networks), len(features)))
        with self._torch.no_grad():
            for start in range(0, len(features), CHUNK_ROWS):
                some = slice(start, start + CHUNK_ROWS)
                rows = self._tensor(np.asarray(features[some], np.float64))
                for at, network in enumerate(self._networks):
                    told[at, some] = network(rows).numpy()
        return Guess(self._mean + told.mean(axis=0), told.std(axis=0))


def _levels(names: Sequence[str]) -> list[list[int]]:
    """The columns of each level of a nest, innermost first; none where features have no levels."""
    if not {each for level in LEVEL_FEATURES for each in level} <= set(names):
        return []
    return [[list(names).index(each) for each in level] for level in LEVEL_FEATURES]


def _network(torch: Any, columns: int, levels: Sequence[Sequence[int]]) -> Any:
    """A GRU cell along the levels, and a small network at the root."""
    inside = {at for level in levels for at in level}
    whole = [at for at in range(columns) if at not in inside]

    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.cell = torch.nn.GRUCell(len(levels[0]) if levels else 1, WIDTH)
            self.root = torch.nn.Sequential(
                torch.nn.Linear(WIDTH + len(whole), WIDTH),
                torch.nn.ReLU(),
                torch.nn.Linear(WIDTH, 1),
            )

        def forward(self, rows: Any) -> Any:
            state = torch.zeros(len(rows), WIDTH)
            for level in levels:
                state = self.cell(rows[:, level], state)
            return self.root(torch.cat([state, rows[:, whole]], dim=1))[:, 0]

    return Network()
