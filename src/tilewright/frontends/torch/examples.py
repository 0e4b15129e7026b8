"""Example inputs for tracing models of transformers, from what the models say of themselves.

The type of the main input determines its kind, the config its sizes. Batch and sequence length are
dynamic where the model permits. What torch.export alone cannot trace, transformers' own exporter
may.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch.export import ExportedProgram

BATCH, TOKENS, WORDS = 2, 12, 128  # of examples
SAMPLES = 16_000  # of sound
Axes = dict[str, dict[int, str]]


@dataclass(frozen=True)
class Examples:
    """Inputs by name, and which of their axes may be dynamic."""

    kwargs: dict[str, torch.Tensor]
    axes: Axes

    def attempts(self) -> Iterator[Axes]:
        """Sets of dynamic axes to try, the largest first."""
        yield self.axes
        batch = {name: {0: axes[0]} for name, axes in self.axes.items()}
        if batch != self.axes:
            yield batch
        yield {}


def is_of_transformers(model: Any) -> bool:
    return "transformers" in {base.__module__.partition(".")[0] for base in type(model).__mro__}


def try_exporter(
    model: Any, kwargs: Mapping[str, Any], shapes: Mapping[str, Any] | None
) -> ExportedProgram | None:
    """The program of a model by transformers' exporter; None if it does not produce these inputs.

    Older versions have no exporter.
    """
    if not is_of_transformers(model) or find_spec("transformers.exporters") is None:
        return None
    from transformers.exporters import DynamoConfig, DynamoExporter  # takes seconds to import

    given = dict(kwargs)
    try:
        config = DynamoConfig(dynamic_shapes=None if shapes is None else dict(shapes))
        program: ExportedProgram = DynamoExporter().export(model, given, config)
    except Exception:  # what torch.export alone said of the model as it is, is told
        return None
    return program if given.keys() == kwargs.keys() else None  # it may ask for inputs of its own


def examples_of(model: Any, batch: int = BATCH) -> Examples | None:
    """Example inputs of a model of transformers; None for other models."""
    config, main = getattr(model, "config", None), getattr(model, "main_input_name", None)
    if not is_of_transformers(model) or config is None or main is None:
        return None
    made = _main(config, main, batch)
    if made is None:
        return None
    kwargs: dict[str, torch.Tensor] = {main: made}
    if getattr(config, "is_encoder_decoder", False):
        kwargs["decoder_input_ids"] = _words(config, batch)
    axes: Axes = {name: {0: "batch"} for name in kwargs}
    if main == "input_ids":
        axes[main][1] = "sequence"
    if "decoder_input_ids" in axes:
        axes["decoder_input_ids"][1] = "decoded"
    return Examples(kwargs, axes)


def _main(config: Any, name: str, batch: int) -> torch.Tensor | None:
    if name == "input_ids":
        return _words(config, batch)
    if name == "pixel_values":
        size = getattr(config, "image_size", None) or 224
        height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
        return torch.randn(batch, getattr(config, "num_channels", 3), height, width)
    if name == "input_values":
        return torch.randn(batch, SAMPLES)
    if name == "input_features":
        bands = getattr(config, "num_mel_bins", None)
        frames = getattr(config, "max_source_positions", None)
        return None if bands is None or frames is None else torch.randn(batch, bands, 2 * frames)
    return None


def _words(config: Any, batch: int) -> torch.Tensor:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    words = getattr(text, "vocab_size", None) or WORDS
    return torch.randint(0, min(int(words), WORDS), (batch, TOKENS))


@contextmanager
def without_cache(model: torch.nn.Module) -> Iterator[None]:
    """A context in which a model returns no keys and values for later calls.

    Its submodels may have configs of their own.
    """
    found = {id(config): config for config in _configs(model)}
    kept = {which: config.use_cache for which, config in found.items()}
    try:
        for config in found.values():
            config.use_cache = False
        yield
    finally:
        for which, config in found.items():
            config.use_cache = kept[which]


def _configs(model: torch.nn.Module) -> Iterator[Any]:
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if isinstance(getattr(config, "use_cache", None), bool):
            yield config
