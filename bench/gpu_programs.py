"""Models of timm and transformers as programs of ATen operators, for machines with torch alone.

    python bench/gpu_programs.py FOLDER [--only REGEX]         written where the libraries are

    program = read(FOLDER / "swin_tiny.f16.b1.pt")             read where they need not be
    program.module("cuda"), program.inputs("cuda")

What torch.export traces is kept as text. Of weights there are shapes, means and deviations, and
they are drawn again; integers and small tensors are kept as they are, for they mean something.
"""

from __future__ import annotations

import argparse
import re
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gpu_draws import DRAWS
from torch import Tensor, nn
from torch.export.graph_signature import InputKind

SAMPLE = 100_000  # elements that tell mean and deviation
KEPT = 4096  # elements; longer tensors of floats are drawn
PRECISIONS = {"f16": torch.float16, "f32": torch.float32}
CASES = (("f16", 1), ("f16", 8), ("f32", 1), ("f32", 8))  # of every model; precision, batch
IMAGES = {name for draw in DRAWS for name in draw.images}
OTHERS = {name: other for draw in DRAWS for name, other in draw.others.items()}
NAMES = [name for draw in DRAWS for name in (*draw.images, *draw.others)]
PAST = 512  # tokens before the one of a step


def cases() -> list[tuple[str, str, int]]:
    """Name, precision, batch."""
    return [(name, precision, batch) for precision, batch in CASES for name in NAMES]


def title(name: str, precision: str, batch: int) -> str:
    return f"{name}.{precision}.b{batch}"


# ------------------------------------------------------------------------------------ builders


class First(nn.Module):
    """A model of transformers that gives its first result."""

    def __init__(self, model: nn.Module, key: str) -> None:
        super().__init__()
        self.model, self.key = model, key

    def forward(self, given: Tensor) -> Tensor:
        result: Tensor = self.model(**{self.key: given}, return_dict=False)[0]
        return result


class Step(nn.Module):
    """A language model that reads one token after those whose keys and values it is given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: Tensor, past: Tensor) -> Tensor:
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer, (keys, values) in enumerate(past):
            cache.update(keys, values, layer)
        places = torch.full_like(token, PAST)
        result: Tensor = self.model(
            input_ids=token, past_key_values=cache, position_ids=places, return_dict=False
        )[0]
        return result


def with_statistics(model: nn.Module, images: Tensor) -> None:
    """Batch norms keep in bounds what made-up weights make: without them some exceed f16."""
    norms = [each for each in model.modules() if isinstance(each, nn.BatchNorm2d)]
    if norms:
        for each in norms:
            each.momentum = 1.0
        with torch.no_grad():
            model.train()(images)


def build(name: str, batch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A model with weights that its library makes up, and inputs."""
    import torch_zoo

    torch.manual_seed(0)
    torch_zoo.prepare()
    if name in IMAGES:
        import timm

        model = timm.create_model(name, pretrained=False)
        side = model.default_cfg["input_size"][-1]
        with_statistics(model, torch.randn(2, 3, side, side))
        return model, (torch.randn(batch, 3, side, side),)
    from transformers import AutoConfig, AutoModel

    kind, changes, (key, shape) = OTHERS[name]
    config = AutoConfig.for_model(kind, **changes)
    config.use_cache = name.endswith("_step")
    model = AutoModel.from_config(config)
    if name.endswith("_encoder"):
        model = model.encoder
    size = (batch, *shape)
    given = torch.randint(0, 1000, size) if key == "input_ids" else torch.randn(size)
    if not name.endswith("_step"):
        return First(model, key), (given,)
    width = config.hidden_size // config.num_attention_heads
    past = (config.num_hidden_layers, 2, batch, config.num_key_value_heads, PAST, width)
    return Step(model), (given, torch.randn(past))


# ------------------------------------------------------------------------------------ programs


@dataclass(frozen=True)
class Drawn:
    """A tensor that is drawn again."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    mean: float
    deviation: float

    def tensor(self) -> Tensor:
        drawn = torch.empty(self.shape, dtype=torch.float32).normal_(self.mean, self.deviation)
        return drawn.to(self.dtype)


def told(value: Tensor) -> Tensor | Drawn:
    """What is kept of a tensor."""
    value = value.detach()
    if value.numel() <= KEPT or not value.is_floating_point():
        return value.clone()
    exact = value.flatten()[:SAMPLE].float()
    return Drawn(tuple(value.shape), value.dtype, float(exact.mean()), float(exact.std()))


class Traced(nn.Module):
    """The operators of a program over its weights."""

    def __init__(self, text: str, weights: Sequence[Tensor]) -> None:
        super().__init__()
        names = {"torch": torch, "device": torch.device, "inf": float("inf"), "nan": float("nan")}
        exec(compile(text, "<program>", "exec"), names)
        self.run: Any = names["forward"]
        self.weights = []
        for at, value in enumerate(weights):
            self.register_buffer(f"w{at}", value)
            self.weights.append(f"w{at}")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        result: tuple[Tensor, ...] = self.run(
            None, *[getattr(self, name) for name in self.weights], *inputs
        )
        return result


@dataclass(frozen=True)
class Program:
    """A model that needs nothing but torch."""

    text: str
    weights: tuple[Tensor | Drawn, ...]
    given: tuple[Tensor | Drawn, ...]

    def module(self, device: str = "cpu") -> Traced:
        """The same weights each time."""
        torch.manual_seed(0)
        weights = [each.tensor() if isinstance(each, Drawn) else each for each in self.weights]
        return Traced(self.text.replace("type='cpu'", f"type='{device}'"), weights).to(device)

    def inputs(self, device: str = "cpu") -> tuple[Tensor, ...]:
        torch.manual_seed(1)
        made = [each.tensor() if isinstance(each, Drawn) else each for each in self.given]
        return tuple(each.to(device) for each in made)

    def in_f32(self) -> Widened:
        """The same numbers, computed with in f32."""
        text = re.sub(r"torch\.(float16|half)\b", "torch.float32", self.text)
        return Widened(text, self.weights, self.given)


class Widened(Program):
    """A program whose tensors are drawn as they were, then widened."""

    def module(self, device: str = "cpu") -> Traced:
        return super().module(device).float()

    def inputs(self, device: str = "cpu") -> tuple[Tensor, ...]:
        return tuple(
            each.float() if each.is_floating_point() else each for each in super().inputs(device)
        )


def traced(model: nn.Module, inputs: tuple[Tensor, ...]) -> Program:
    """What torch.export makes of a model."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(model.eval(), inputs)
        if any(node.op == "get_attr" for node in exported.graph_module.graph.nodes):
            exported = exported.run_decompositions({})  # regions of gradients and autocasts: inline
    weights: list[Tensor | Drawn] = []
    for spec in exported.graph_signature.input_specs:
        if spec.kind != InputKind.USER_INPUT:
            held = {**exported.state_dict, **exported.constants}
            weights.append(told(held[str(spec.target)]))
    drop_checks(exported.graph_module)
    return Program(exported.graph_module.code, tuple(weights), tuple(map(told, inputs)))


def drop_checks(module: torch.fx.GraphModule) -> None:
    """Checks of what tensors are have no result, and name the device of the tracing."""
    for node in list(module.graph.nodes):
        if str(node.target) == "aten._assert_tensor_metadata.default":
            module.graph.erase_node(node)
    module.recompile()


def in_precision(values: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(each.to(dtype) if each.is_floating_point() else each for each in values)


def write(name: str, precision: str, batch: int, folder: Path) -> Path:
    model, inputs = build(name, batch)
    dtype = PRECISIONS[precision]
    made = traced(model.to(dtype), in_precision(inputs, dtype))
    path = folder / f"{title(name, precision, batch)}.pt"
    parts = {key: [vars(each) if isinstance(each, Drawn) else each for each in getattr(made, key)]
             for key in ("weights", "given")}  # fmt: skip
    torch.save({"text": made.text, **parts}, path)
    return path


def read(path: Path) -> Program:
    found = torch.load(path, weights_only=True)

    def values(key: str) -> Iterator[Tensor | Drawn]:
        return (Drawn(**each) if isinstance(each, dict) else each for each in found[key])

    return Program(found["text"], tuple(values("weights")), tuple(values("given")))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="a regular expression on titles")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for case in cases():
        path = options.folder / f"{title(*case)}.pt"
        if re.search(options.only, path.stem) and not path.exists():
            try:
                path = write(*case, options.folder)
                print(f"{path.name}: {path.stat().st_size >> 10} KB", flush=True)
            except Exception:  # one model's trouble is its own
                print(f"{title(*case)}: {traceback.format_exc(limit=-3)[-900:]}", flush=True)


if __name__ == "__main__":
    main()
