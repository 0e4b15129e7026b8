"""Number of compilations by torch.compile as batch and sequence sizes change.

    python bench/torch_dynamic.py [--sizes 20] [--filter REGEX] [--backend tilewright]

Models are called with 20 sizes above 1 of batch, and of sequence or image, one after the other;
each answer is held against eager's. PyTorch first compiles for the sizes it sees, then for any: at
most two compilations of a graph; one with `dynamic=True`. (Batches are above 16: from there on
PyTorch itself chooses another convolution, which is a guard.)
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import report
import torch
import torch.nn.functional as F  # noqa: N812
from report import Figure
from torch import nn

from tilewright.plugins.torch import tilewright
from tilewright.plugins.torch.graphs import NativeGraph

OURS = "tilewright"
MOST, MAX_DYNAMIC = 2, 1  # compilations of one graph
Inputs = Callable[[int, int], tuple[torch.Tensor, ...]]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, _ = x.shape
        parts = self.into(x).view(n, length, 3, 4, 8).permute(2, 0, 3, 1, 4)
        made = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        return self.out(made.transpose(1, 2).reshape(n, length, 32))


class Pooled(nn.Module):
    """Words to vectors, averaged where a mask holds."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        mask = (words > 4).unsqueeze(-1).float()
        made = self.layer(self.table(words))
        return (made * mask).sum(1) / mask.sum(1).clamp(min=1.0)


def models() -> dict[str, tuple[nn.Module, Inputs]]:
    torch.manual_seed(0)
    return {
        "mlp": (
            nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)),
            lambda n, length: (torch.randn(n, length, 16),),
        ),
        "attention": (Attention(), lambda n, length: (torch.randn(n, length, 32),)),
        "encoder": (Pooled(), lambda n, length: (torch.randint(0, 50, (n, length)),)),
        "convolutions": (
            nn.Sequential(
                *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Conv2d(8, 8, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            ),
            lambda n, length: (torch.randn(n, 3, 2 * length + 8, 2 * length + 8),),
        ),
        "signal": (
            nn.Sequential(nn.Conv1d(4, 8, 5, padding=2), nn.ReLU(), nn.Conv1d(8, 4, 3)),
            lambda n, length: (torch.randn(n, 4, length + 4),),
        ),
    }


class Counted:
    """A backend that remembers the graphs it was handed."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.graphs = 0

    def __call__(self, module: Any, examples: Sequence[Any]) -> Any:
        self.graphs += 1
        if self.backend == OURS:
            return tilewright(module, examples, options={"fallback": "error"})
        return torch._dynamo.lookup_backend(self.backend)(module, examples)


def count(model: nn.Module, inputs: Inputs, sizes: int, dynamic: bool | None, backend: str) -> int:
    """Compilations of a model's one graph over many sizes; -1 where an answer is wrong."""
    torch._dynamo.reset()
    counted, packed = Counted(backend), NativeGraph.compilations
    compiled = torch.compile(model.eval(), backend=counted, dynamic=dynamic)
    with torch.no_grad():
        for at in range(sizes):
            given = inputs(17 + at, 7 + (7 * at) % sizes)  # equal sizes would be taken for one
            made, want = compiled(*given), model(*given)
            if not torch.allclose(made, want, rtol=1e-4, atol=1e-5):
                return -1
    # Dynamo may hand a graph over again and drop what came of the first: that costs no code.
    return NativeGraph.compilations - packed if backend == OURS else counted.graphs


def measure(options: argparse.Namespace) -> list[Figure]:
    figures: list[Figure] = []
    warnings.simplefilter("ignore")
    for name, (model, inputs) in models().items():
        if not re.search(options.filter, name):
            continue
        for dynamic, most in ((None, MOST), (True, MAX_DYNAMIC)):
            found = count(model, inputs, options.sizes, dynamic, options.backend)
            label = f"{name}, dynamic=True" if dynamic else name
            ok = 1 <= found <= most
            figures.append(Figure(label, found, "compilations", f"1 to {most}", ok))
    return figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=int, default=20, help="how many sizes")
    parser.add_argument("--filter", default="", help="a regular expression on names of models")
    parser.add_argument("--backend", default=OURS, help="another backend to compare with")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
