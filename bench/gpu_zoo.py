"""Models for benchmarks on a GPU: those of bench/models.py, and a plain BERT encoder.

`case(name, folder)` gives a torch module, its inputs, and the ONNX file that it was exported to;
`batch=32` makes larger inputs, `is_open=True` leaves the batch open in the file.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import models
import torch
from torch import Tensor, nn


class EncoderLayer(nn.Module):
    """One layer of BERT."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.last = nn.LayerNorm(width)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(part(x)) for part in (self.query, self.key, self.value))
        scores = (q @ k.transpose(-1, -2)) * (q.shape[-1] ** -0.5)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
        x = self.norm(x + self.out(mixed))
        return self.last(x + self.down(nn.functional.gelu(self.up(x))))


class Encoder(nn.Module):
    """BERT from token numbers to hidden states."""

    def __init__(self, layers: int, width: int, heads: int, words: int = 30_522) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(EncoderLayer(width, heads, 4 * width) for _ in range(layers))

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.words(tokens) + self.places(places))
        for layer in self.layers:
            x = layer(x)
        return x


def encoder(layers: int, width: int, heads: int, words: int, length: int) -> models.Model:
    tokens = torch.randint(0, words, (1, length))
    return models.Model(
        Encoder(layers, width, heads, words), {"base": {"tokens": tokens}}, ["hidden"]
    )


ENCODERS = {
    "bert": lambda: encoder(12, 768, 12, 30_522, 128),
    "smallbert": lambda: encoder(4, 512, 8, 30_522, 128),  # heads of 64, as BERT has
    "minibert": lambda: encoder(6, 384, 12, 30_522, 128),  # heads of 32
    "tinybert": lambda: encoder(2, 64, 4, 100, 16),
}
NAMES = ("dqn", "mlp", "dcgan_generator", "lstm_lm_step", "mobilenet_v2", "resnet18", "bert")


@dataclass
class Case:
    """A model as torch has it, and as we get it."""

    module: nn.Module
    inputs: dict[str, Tensor]
    path: Path


def case(name: str, folder: Path, batch: int = 1, *, is_open: bool = False) -> Case:
    """A model by name, exported into the folder."""
    torch.manual_seed(0)
    made: Any = ENCODERS[name]() if name in ENCODERS else models.build(name)
    made.module.eval()
    inputs = {
        key: torch.cat([value] * batch, batch_axis(name))
        for key, value in next(iter(made.cases.values())).items()
    }
    axes = {key: {batch_axis(name): "batch"} for key in (*inputs, *made.outputs) if is_open}
    path = folder / f"{name}{'_open' if is_open else f'_b{batch}'}.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made_here = path.with_suffix(f".{os.getpid()}")  # whole, or not there at all
            torch.onnx.export(
                made.module,
                tuple(inputs.values()),
                str(made_here),
                input_names=list(inputs),
                output_names=made.outputs,
                dynamic_axes=axes or None,
                opset_version=models.OPSET,
                dynamo=False,
            )
            made_here.replace(path)
    return Case(made.module, inputs, path)


def batch_axis(name: str) -> int:
    """Which axis counts sequences or images: recurrent models have time, or layers, before it."""
    return 1 if name.startswith("lstm") else 0
