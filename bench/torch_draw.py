"""Models drawn at random from torchvision, timm and transformers.

A third each of torchvision's builders, the smallest models of timm's files, and the base models of
transformers' types, in the sizes that their authors gave them: images as large as each wants them,
texts of 128 tokens, a second of sound. What has more parameters than `MAX_PARAMETERS` has fewer
layers, and is passed over where it cannot; so is what cannot be built, or does not run in eager.
Detectors are left out: their results are as long as what made-up weights find.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch_shrunk
import torch_zoo

MAX_PARAMETERS = 150_000_000
LAYERS = 4  # of what is too large whole
SIZES = torch_shrunk.Sizes(tokens=128, samples=16_000, frames=500, words=1000, side=224)
Model = tuple[torch.nn.Module, dict[str, Any]]


def draw(seed: int, count: int, is_taken: Callable[[str], bool]) -> Iterator[str]:
    """So many models, of the sources in turn; one that is not taken is drawn again."""
    sources = list(NAMES)
    orders = {source: _shuffled(source, seed) for source in sources}
    for at in range(count):
        source = sources[at % len(sources)]
        for name in orders[source]:
            path = f"{source}/{name}"
            if is_taken(path):
                yield path
                break


def _shuffled(source: str, seed: int) -> Iterator[str]:
    names = NAMES[source]()
    random.Random(f"{seed} {source}").shuffle(names)
    return iter(names)


def build(path: str) -> Model:
    """A model and its inputs, one of a batch."""
    source, _, name = path.partition("/")
    model, inputs = BUILDERS[source](name)
    parameters = sum(each.numel() for each in model.parameters())
    if parameters > MAX_PARAMETERS:
        raise ValueError(f"{parameters} parameters are too many")
    with torch.no_grad():
        torch_zoo.without_zeros(model)
    return model.eval(), inputs(1)


def _of_torchvision() -> list[str]:
    torch_zoo.prepare()
    from torchvision import models

    detectors = {*models.list_models(module=models.detection)}
    return [name for name in torch_zoo.torchvision_names() if name not in detectors]


def _transformer(name: str) -> tuple[torch.nn.Module, Callable[[int], dict[str, Any]]]:
    torch_zoo.prepare()
    return torch_shrunk.deployed(name, MAX_PARAMETERS, LAYERS, SIZES)


NAMES: dict[str, Callable[[], list[str]]] = {
    "torchvision": _of_torchvision,
    "timm": torch_zoo.timm_names,
    "transformers": torch_zoo.transformers_names,
}
BUILDERS: dict[str, Callable[[str], tuple[torch.nn.Module, Callable[[int], dict[str, Any]]]]] = {
    "torchvision": lambda name: torch_zoo.build_torchvision(name, is_small=False),
    "timm": lambda name: torch_zoo.build_timm(name, is_small=False),
    "transformers": _transformer,
}


def distance(made: list[torch.Tensor], want: list[torch.Tensor]) -> float:
    """The greatest difference of results as a part of the greatest element of each."""
    worst = 0.0
    for a, b in zip(made, want, strict=True):
        if a.shape != b.shape:
            return math.inf
        if b.numel():
            off = float((a - b).abs().max()) / max(float(b.abs().max()), torch_zoo.LEAST)
            worst = max(worst, off if off == off else math.inf)
    return worst
