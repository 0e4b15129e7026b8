"""Models of the benchmarks, exported by torch with random weights from a fixed seed.

    python bench/models.py FOLDER [--only NAME ...]

Writes NAME.onnx and, for each case, NAME.CASE.in.npz with its inputs. Needs torch, and transformers
for the language and vision transformers. `build(name)` gives the torch module itself, with the same
weights, for peers that run torch.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

OPSET = 17
IMAGE = (3, 224, 224)


@dataclass
class Model:
    """A module, the inputs of each case by name, its outputs' names, and which sizes are open."""

    module: nn.Module
    cases: dict[str, dict[str, Tensor]]
    outputs: list[str]
    dynamic: dict[str, dict[int, str]] = field(default_factory=dict)


# --------------------------------------------------------------------------- convolutions


def conv_norm(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[Any]:
    """A convolution that keeps the size, and its batch normalization."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class Residual(nn.Module):
    """A branch added to what came in, or to its projection."""

    def __init__(self, branch: list[Any], shortcut: list[Any], activation: nn.Module) -> None:
        super().__init__()
        self.branch = nn.Sequential(*branch)
        self.shortcut = nn.Sequential(*shortcut)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.activation(self.branch(x) + self.shortcut(x))
        return result


def resnet_block(inputs: int, width: int, stride: int, wide: bool) -> tuple[nn.Module, int]:
    outputs = 4 * width if wide else width
    if wide:
        branch = [*conv_norm(inputs, width, 1), nn.ReLU(), *conv_norm(width, width, 3, stride)]
        branch += [nn.ReLU(), *conv_norm(width, outputs, 1)]
    else:
        branch = [*conv_norm(inputs, width, 3, stride), nn.ReLU(), *conv_norm(width, width, 3)]
    project = stride != 1 or inputs != outputs
    shortcut = conv_norm(inputs, outputs, 1, stride) if project else []
    return Residual(branch, shortcut, nn.ReLU()), outputs


def resnet(depths: tuple[int, ...], wide: bool) -> nn.Module:
    layers = [*conv_norm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, depth in enumerate(depths):
        for at in range(depth):
            stride = 2 if stage > 0 and at == 0 else 1
            block, channels = resnet_block(channels, 64 << stage, stride, wide)
            layers.append(block)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*layers)


# MobileNet-V2: expansion, channels, repetitions, stride.
MOBILENET = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
             (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip


def mobilenet() -> nn.Module:
    layers: list[nn.Module] = [*conv_norm(3, 32, 3, 2), nn.ReLU6()]
    channels = 32
    for expansion, outputs, repetitions, first_stride in MOBILENET:
        for at in range(repetitions):
            stride = first_stride if at == 0 else 1
            inner = channels * expansion
            branch = [*conv_norm(channels, inner, 1), nn.ReLU6()] if expansion > 1 else []
            branch += [*conv_norm(inner, inner, 3, stride, groups=inner), nn.ReLU6()]
            branch += conv_norm(inner, outputs, 1)
            same = stride == 1 and channels == outputs
            layers.append(Residual(branch, [], nn.Identity()) if same else nn.Sequential(*branch))
            channels = outputs
    layers += [*conv_norm(channels, 1280, 1), nn.ReLU6()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
    return nn.Sequential(*layers)


def dqn() -> nn.Module:
    """The network of Nature's deep Q-learning, 18 actions."""
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
        nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 18),
    )  # fmt: skip


def dcgan() -> nn.Module:
    """The generator of DCGAN: 100 numbers to an image of 64 x 64."""
    widths = (1024, 512, 256, 128)
    layers: list[nn.Module] = [nn.ConvTranspose2d(100, widths[0], 4, 1, 0, bias=False)]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.BatchNorm2d(inputs), nn.ReLU()]
        layers.append(nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=False))
    layers += [nn.BatchNorm2d(widths[-1]), nn.ReLU()]
    layers += [nn.ConvTranspose2d(widths[-1], 3, 4, 2, 1, bias=False), nn.Tanh()]
    return nn.Sequential(*layers)


def mlp() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((784, 2048), (2048, 2048), (2048, 2048)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(2048, 10), nn.Softmax(-1))


class LanguageModel(nn.Module):
    """Two layers of LSTM, time first."""

    def __init__(self, vocabulary: int = 10_000, width: int = 650) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, 2)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, h0: Tensor, c0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden, (h, c) = self.lstm(self.embedding(tokens), (h0, c0))
        return self.head(hidden), h, c


# --------------------------------------------------------------------------- transformers


class Bert(nn.Module):
    def __init__(self, attention: str, **sizes: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        self.inner = BertModel(BertConfig(attn_implementation=attention, **sizes))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Any:
        made = self.inner(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        )
        return made.last_hidden_state, made.pooler_output


class Gpt2(nn.Module):
    """A prompt of 128 tokens. The causal mask is given: the exporter cannot make it."""

    def __init__(self, attention: str) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        self.inner = GPT2LMHeadModel(GPT2Config(attn_implementation=attention, use_cache=False))
        mask = torch.full((1, 1, 128, 128), -1e9).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, input_ids: Tensor) -> Any:
        return self.inner(input_ids=input_ids, attention_mask=self.mask, use_cache=False).logits


class Vit(nn.Module):
    def __init__(self, attention: str) -> None:
        super().__init__()
        from transformers import ViTConfig, ViTForImageClassification

        config = ViTConfig(attn_implementation=attention, num_labels=1000)
        self.inner = ViTForImageClassification(config)

    def forward(self, x: Tensor) -> Any:
        return self.inner(pixel_values=x).logits


def sentence(length: int) -> dict[str, Tensor]:
    """Tokens, an eighth of them padding."""
    mask = torch.ones(1, length, dtype=torch.int64)
    mask[:, length - length // 8 :] = 0
    return {
        "input_ids": torch.randint(0, 30_522, (1, length)),
        "attention_mask": mask,
        "token_type_ids": torch.zeros(1, length, dtype=torch.int64),
    }


# --------------------------------------------------------------------------- all of them


def settle(module: nn.Module) -> nn.Module:
    """Weights that keep the scale of activations; statistics and biases that are not trivial."""
    for part in module.modules():
        if isinstance(part, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.4, 0.9)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
            nn.init.normal_(part.running_mean, 0.0, 0.1)
    for parameter in module.parameters():
        if parameter.dim() == 1:
            with torch.no_grad():
                parameter.add_(0.02 * torch.randn_like(parameter))
    return module.eval()


def image(batch: int = 1) -> dict[str, Tensor]:
    return {"x": torch.randn(batch, *IMAGE)}


def recurrent(steps: int) -> Model:
    state = {name: 0.1 * torch.randn(2, 1, 650) for name in ("h0", "c0")}
    tokens = torch.randint(0, 10_000, (steps, 1))
    cases = {"base": {"tokens": tokens, **state}}
    return Model(LanguageModel(), cases, ["logits", "h", "c"])


def bert(attention: str, lengths: tuple[int, ...] = (), **sizes: int) -> Model:
    cases = {f"s{n}": sentence(n) for n in lengths} or {"base": sentence(128)}
    open_sizes = {name: {1: "seq"} for name in (*sentence(1), "hidden")} if lengths else {}
    return Model(Bert(attention, **sizes), cases, ["hidden", "pooled"], open_sizes)


MINILM = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12}
Maker = Callable[[str], Model]
MODELS: Mapping[str, Maker] = {
    "resnet18": lambda _: Model(resnet((2, 2, 2, 2), False), {"base": image()}, ["y"]),
    "resnet50": lambda _: Model(resnet((3, 4, 6, 3), True), {"base": image()}, ["y"]),
    "mobilenet_v2": lambda _: Model(mobilenet(), {"base": image()}, ["y"]),
    "bert_base": lambda attention: bert(attention),
    "minilm6": lambda attention: bert(attention, **MINILM, intermediate_size=1536),
    "gpt2_small_prefill": lambda attention: Model(
        Gpt2(attention), {"base": {"input_ids": torch.randint(0, 50_257, (1, 128))}}, ["logits"]
    ),
    "vit_b16": lambda attention: Model(Vit(attention), {"base": image()}, ["y"]),
    "lstm_lm_step": lambda _: recurrent(1),
    "lstm_lm_seq35": lambda _: recurrent(35),
    "dqn": lambda _: Model(dqn(), {"base": {"x": torch.rand(1, 4, 84, 84)}}, ["y"]),
    "dcgan_generator": lambda _: Model(dcgan(), {"base": {"z": torch.randn(1, 100, 1, 1)}}, ["y"]),
    "mlp": lambda _: Model(mlp(), {"base": {"x": torch.randn(1, 784)}}, ["y"]),
    "resnet18_dyn": lambda _: Model(
        resnet((2, 2, 2, 2), False),
        {"b1": image(1), "b4": image(4)},
        ["y"],
        {"x": {0: "batch"}, "y": {0: "batch"}},
    ),
    "bert_base_dyn": lambda attention: bert(attention, (128, 77)),
}


def build(name: str, attention: str = "eager") -> Model:
    """A model by name; `attention` is how transformers computes it: eager exports, sdpa runs."""
    torch.manual_seed(0)
    made = MODELS[name](attention)
    settle(made.module)
    return made


def export(name: str, folder: Path) -> Path:
    """Write the model and the inputs of its cases."""
    made = build(name)
    first = next(iter(made.cases.values()))
    path = folder / f"{name}.onnx"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            made.module,
            tuple(first.values()),
            str(path),
            input_names=list(first),
            output_names=made.outputs,
            dynamic_axes=made.dynamic or None,
            opset_version=OPSET,
            dynamo=False,
        )
    for case, inputs in made.cases.items():
        arrays = {key: tensor.numpy() for key, tensor in inputs.items()}
        np.savez(folder / f"{name}.{case}.in.npz", **arrays)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=list(MODELS), choices=list(MODELS))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        path = export(name, options.folder)
        print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)", flush=True)


if __name__ == "__main__":
    main()
